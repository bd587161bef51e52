"""Triton's kernels without a GPU: interpreted, they give what torch's lines give; they compile for sm_80 and sm_90."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from random_chains import random_chain, state_for
from synthetic import MarkovDrafter, MarkovTarget, random_table
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.kernels import judging
from specdecode.loop import decode
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import RandomStreams, SamplingConfig, Tag
from specdecode.verifiers.annealed import AnnealedVerifier
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier

SAMPLED = SamplingConfig(0.9)
VOCAB_SIZE = 50
KERNELS = ("race_kernel", "accept_kernel", "keep_kernel")


@pytest.fixture
def same(interpreted: ModuleType, torch_lines: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Check that a function returns the same tensors by torch's lines and by the kernels; says which kernels ran."""

    def run(function: Callable[[], list[Tensor | None]]) -> set[str]:
        wanted, ran = function(), set[str]()
        with monkeypatch.context() as patch:
            patch.setattr(judging, "gpu", interpreted)
            for name in KERNELS:
                interpreter = getattr(interpreted, name)
                patch.setattr(interpreter, "pre_run_hooks", [lambda *_, name=name, **__: ran.add(name)])
            found = function()
        for one, other in zip(wanted, found, strict=True):
            assert (one is None and other is None) or (one.dtype == other.dtype and torch.equal(one, other))
        return ran

    return run


def test_races(same: Any) -> None:
    """Equal arrivals go to the first token; a race of one token; strides."""
    probabilities = torch.randn(3, 3, VOCAB_SIZE).softmax(-1)[:, 1:]
    counters, streams = torch.tensor([[0, 3], [2**40, 7], [5, 5]]), RandomStreams(torch.tensor([-5, 2**62, 0]))
    assert same(lambda: [streams.race(probabilities, Tag.BRANCH, counters)]) == {"race_kernel"}
    nothing = torch.zeros(3, 2, VOCAB_SIZE)
    same(lambda: [streams.race(nothing, Tag.BRANCH, counters)])
    strange = probabilities.index_fill(2, torch.tensor([40, 47]), torch.nan)
    same(lambda: [streams.race(strange, Tag.BRANCH, counters)])


@pytest.mark.parametrize("rule", ["exact", "grouped", "annealed"])
def test_chains(same: Any, rule: str) -> None:
    draft, output, lengths = random_chain(3, 6, 5, VOCAB_SIZE)
    vectors = torch.randn(VOCAB_SIZE, 3, generator=torch.Generator().manual_seed(1))
    verifier: Any = {
        "exact": ExactVerifier(),
        "grouped": GroupedVerifier(vectors, 5, 0.4, 2.0),
        "annealed": AnnealedVerifier(1.3, 0.5),
    }[rule]

    def judged() -> list[Tensor | None]:
        verdict = verifier.accept(draft, output, state_for(lengths, SAMPLED))
        return [verdict.accepted, verdict.next_tokens, verdict.relaxed]

    assert same(judged) == {"race_kernel", "accept_kernel"}
    assert len(judged()[0].unique()) > 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("coupling", "guess", "varied"),
    [("target", "random", False), ("target", "repeat", True), ("gumbel", "random", True),
     ("independent", "repeat", False), ("maximal", "random", False), ("maximal", "repeat", True)],
)  # fmt: skip
def test_windows(same: Any, coupling: str, guess: str, varied: bool) -> None:
    draft, output, lengths = random_chain(2, 3, 4, VOCAB_SIZE)
    tokens = torch.randint(0, VOCAB_SIZE, (3, 99), generator=torch.Generator().manual_seed(2))

    def drawn() -> list[Tensor | None]:
        drafter = JacobiDrafter(VOCAB_SIZE, FixedDraftSize(DraftSize(4, 3)), guess, coupling)
        state = DecodeState(tokens, lengths, lengths > 0, 99, SAMPLED, RandomStreams.from_seeds(range(3)))
        drafter.start(TargetOutput(output.logits[:, :1]), state)
        seen = Draft(draft.tree, None if coupling == "target" else draft.probabilities)
        drafter.observe(seen, output, Verdict(draft.tree.tokens, torch.tensor([0, 2, 4]), tokens[:, 0]), state)
        if varied:
            drafter._last_node = torch.tensor([[4], [3], [4]])
        proposed = drafter.propose(state)
        return [proposed.tree.tokens, proposed.probabilities]

    assert same(drawn) == {"race_kernel"}


@pytest.mark.parametrize("stops", [None, [2, 4]])
@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, 0, 0, 1, 3]])
def test_whole_rows(same: Any, stops: list[int] | None, parents: list[int]) -> None:
    """Chains and trees, greedily, so that only what is kept is at stake; rows end, with and without stop tokens."""
    prompts = torch.tensor([[1, 2], [3, 0], [5, 5]])

    def decoded() -> list[Tensor | None]:
        result = decode(
            MarkovTarget(random_table(6, 7), prompts, 40),
            max_new_tokens=9,
            sampling=SamplingConfig(0),
            streams=RandomStreams.from_seeds([0, 1, 2]),
            drafter=MarkovDrafter(random_table(6, 7), prompts, parents),
            stop_token=stops,
        )
        trace = result.trace
        return [result.tokens, result.lengths, *(torch.tensor(each) for each in trace.accepted_lengths)]

    assert same(decoded) == {"keep_kernel"}


POINTERS = {
    **dict.fromkeys(
        ("numbers", "taken", "weights", "copied", "target", "drawn", "numerators", "denominators"), "*fp32"
    ),
    **dict.fromkeys(("valid", "relaxed", "active", "going_on"), "*i1"),
    **dict.fromkeys(("of_row", "of_node", "taken_of_row", "taken_of_node", "drawn_of_row", "drawn_of_node"), "i32"),
    **dict.fromkeys(("vocab", "nodes_of_row", "length", "depth", "num_stops", "most"), "i32"),
    "even": "fp32",
}
"""Types of arguments; all others are addresses of int64."""
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "race_kernel": [
        {"leaves": False, "weighs": False, "copies": False, "block": 1024},
        {"leaves": True, "weighs": True, "copies": True, "block": 1024},
    ],
    "accept_kernel": [{"compares": False, "block": 8}, {"compares": True, "block": 64}],
    "keep_kernel": [{"walks": True, "follows": True, "notes": True, "block": 64}],
}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("name", "constants"), [(name, each) for name, all_ in VARIANTS.items() for each in all_])
def test_they_compile(name: str, constants: dict[str, Any], capability: int, tmp_path: Path) -> None:
    """To machine code that keeps all it works on in registers."""
    triton: Any = pytest.importorskip("triton", reason="triton is not installed")
    from triton.backends.compiler import GPUTarget

    from specdecode.kernels import judging_gpu

    kernel = getattr(judging_gpu, name)
    kinds = {each.name: "constexpr" if each.is_constexpr else POINTERS.get(each.name, "*i64") for each in kernel.params}
    source = triton.compiler.ASTSource(fn=kernel, signature=kinds, constexprs=constants)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(made.asm["ptx"])
    architecture = re.search(r"\.target (\w+)", made.asm["ptx"])
    assert architecture and architecture[1].startswith(f"sm_{capability}")
    ptxas = triton.knobs.nvidia.ptxas.path
    command = [ptxas, "-v", f"-arch={architecture[1]}", str(ptx), "-o", str(tmp_path / "cubin")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = re.search(r"Used (\d+) registers", said)
    assert spilled and registers and spilled.groups() == ("0", "0"), said
    assert int(registers[1]) <= 128, "at most a quarter of what a block of 128 threads could have"
    assert "div.full" not in made.asm["ptx"] and "div.approx" not in made.asm["ptx"], "divisions round as torch's do"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of a vocabulary of many blocks, by the kernels and by torch's lines."""
    from specdecode.kernels import judging_gpu

    draft, output, lengths = random_chain(3, 64, 5, 5000)
    move = lambda each: each.cuda() if isinstance(each, Tensor) else each  # noqa: E731
    tree = replace(draft.tree, **{name: move(value) for name, value in vars(draft.tree).items()})
    moved = Draft(tree, draft.probabilities.cuda())  # type: ignore[union-attr]
    streams, verdicts = RandomStreams(torch.arange(64).cuda()), []
    for gpu in (judging_gpu, None):
        monkeypatch.setattr(judging, "gpu", gpu)
        state = replace(state_for(lengths, SAMPLED), lengths=lengths.cuda(), streams=streams)
        verdicts.append(ExactVerifier().accept(moved, TargetOutput(output.logits.cuda()), state))
    assert torch.equal(verdicts[0].accepted, verdicts[1].accepted)
    assert (verdicts[0].next_tokens == verdicts[1].next_tokens).float().mean() > 0.95, "logarithms may differ"
