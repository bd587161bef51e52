"""Compiled passes: one whole graph for every width, the tokens of eager decoding, and nothing that waits for a device.

Most of these run the captured graphs as they are (backend "eager"), which shows what is captured without the minutes
that machine code takes.
"""

from __future__ import annotations

from typing import Any

import language_models
import pytest
import torch
from language_models import VOCAB_SIZE, ragged_prompts
from torch import Tensor

from specdecode.compilation import PassCompiler, copied
from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import DecodeResult, decode
from specdecode.roles import Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.targets.transformers import TransformersTarget
from vargen.models.llamagen.target import LlamaGenTargetOutput

SAMPLED = SamplingConfig(temperature=0.9, top_k=20)
GREEDY = SamplingConfig(temperature=0)
TREE = StaticTree.from_child_counts("3 / 2 1 / 1")
NEW = 24


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Graphs are kept by function, whoever has them compiled."""
    torch._dynamo.reset()


def build(model: Any, compiler: PassCompiler | None, seed: int = 0, length: int = 9) -> TransformersTarget:
    target = TransformersTarget(model, *ragged_prompts(seed, length), max_new_tokens=NEW, max_draft_nodes=8)
    target.compile(compiler)
    return target


def run(target: TransformersTarget, sampling: SamplingConfig = SAMPLED, drafter: Drafter | None = None) -> DecodeResult:
    streams = RandomStreams.from_seeds(range(3))
    return decode(target, max_new_tokens=NEW, sampling=sampling, streams=streams, drafter=drafter)


def window(size: int = 4, coupling: str = "target") -> JacobiDrafter:
    return JacobiDrafter(VOCAB_SIZE, FixedDraftSize(DraftSize(size + 1, size)), coupling=coupling)


def test_tokens_are_those_of_eager_decoding() -> None:
    model, compiler = language_models.make("qwen3", num_hidden_layers=1), PassCompiler("eager", 8)
    drafters = {"plain": lambda: None, "chain": window, "drawn": lambda: window(coupling="gumbel")}
    for sampling in (GREEDY, SAMPLED):
        for name, drafter in drafters.items():
            eager, compiled = (run(build(model, each), sampling, drafter()) for each in (None, compiler))
            assert torch.equal(eager.tokens, compiled.tokens), name
            assert eager.trace.target_passes == compiled.trace.target_passes
    assert compiler.num_compiled == 2  # of one token and of five, whatever the bucket


def test_layers_with_windows_and_two_kinds_of_masks() -> None:
    model, results = language_models.make("gemma3", num_hidden_layers=2), []
    compiler = PassCompiler("eager", 16)
    for each in (None, compiler):
        results.append(run(build(model, each), SAMPLED, window()).tokens)
    assert torch.equal(*results) and compiler.num_compiled == 1


def test_trees_of_a_smaller_model_both_compiled() -> None:
    model, compiler = language_models.make("qwen3", num_hidden_layers=1), PassCompiler("eager", 8)
    smaller, results = language_models.disturbed(model, 0.02), []
    for each in (None, compiler):
        drafter = DraftModelTreeDrafter(build(smaller, each), TREE)
        results.append(run(build(model, each), SAMPLED, drafter))
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert 0.1 < results[0].trace.mean_accepted_length < 2


def test_nothing_is_compiled_twice_for_one_shape() -> None:
    model, told = language_models.make("qwen3", num_hidden_layers=1), []
    compiler = PassCompiler("eager", 32, lambda *what: told.append(what))
    run(build(model, compiler), SAMPLED)
    assert [(name, width) for name, width, _ in told] == [("target", 1)] and compiler.num_compiled == 1
    assert compiler.seconds == pytest.approx(told[0][2])
    others = {"prompts": {"seed": 5}, "longer prompts, another bucket of use": {"length": 13}}
    for name, what in others.items():
        run(build(model, compiler, **what), SAMPLED)
        assert compiler.num_compiled == 1, name
    unpadded = TransformersTarget(model, ragged_prompts(3)[0].clamp(min=1), max_new_tokens=NEW, max_draft_nodes=8)
    unpadded.compile(compiler)
    run(unpadded, GREEDY)
    assert compiler.num_compiled == 1
    run(build(model, compiler), SAMPLED, window(2))
    assert [(name, width) for name, width, _ in told] == [("target", 1), ("target", 3)]


def test_what_a_captured_graph_wrote_is_copied() -> None:
    """It writes to the same place at every pass."""
    output = LlamaGenTargetOutput(torch.ones(1, 2, 3), torch.ones(1, 2, 4), None)
    probabilities, number = torch.ones(2), 7
    found = copied((output, probabilities, number))
    output.logits.zero_(), output.hidden_states.zero_(), probabilities.zero_()
    assert isinstance(found[0], LlamaGenTargetOutput) and found[0].unconditional_hidden_states is None
    assert found[0].logits.sum() == 6 and found[0].hidden_states.sum() == 8 and found[1].sum() == 2 and found[2] == 7


@pytest.mark.parametrize(("length", "most", "slots"), [(1, 99, 8), (8, 99, 8), (9, 99, 16), (9, 12, 12), (12, 12, 12)])
def test_attention_reaches_whole_buckets_and_never_past_the_cache(length: int, most: int, slots: int) -> None:
    reach = PassCompiler("eager", 8).reach(length, most, torch.device("cpu"))
    assert reach.tolist() == list(range(slots))


def test_a_cache_is_used_again_where_it_fits() -> None:
    """Captured graphs write to fixed addresses."""
    model, compiler = language_models.make("qwen3", num_hidden_layers=1), PassCompiler("eager", 32)
    first = build(model, compiler)
    plain = run(first).tokens
    second = build(model, compiler, seed=4)
    second.compile(compiler, first.kv_cache)
    other = run(second).tokens
    assert second.kv_cache is first.kv_cache and torch.equal(other, run(build(model, None, seed=4)).tokens)
    third = build(model, compiler, length=40)  # too long for it
    third.compile(compiler, first.kv_cache)
    run(third)
    assert third.kv_cache is not first.kv_cache
    assert torch.equal(run(build(model, compiler)).tokens, plain)


class _WaitsForTheDevice(TransformersTarget):
    """A planted fault."""

    def _pass(self, tokens: Tensor, mask: Tensor, depths: Tensor, reach: Tensor) -> Any:
        tokens = tokens * int(tokens.max() > -1)
        return super()._pass(tokens, mask, depths, reach)


class _CountsTokensOnTheHost(TransformersTarget):
    """A planted fault: every length is another graph."""

    def _pass(self, tokens: Tensor, mask: Tensor, depths: Tensor, reach: Tensor) -> Any:
        return super()._pass(tokens + 0 * self._most_committed, mask, depths, reach)


def test_planted_faults_are_seen() -> None:
    model = language_models.make("qwen3", num_hidden_layers=1)
    waiting = _WaitsForTheDevice(model, *ragged_prompts(), max_new_tokens=NEW, max_draft_nodes=8)
    waiting.compile(PassCompiler("eager", 8))
    waiting.prefill()
    with pytest.raises(Exception, match=r"(?i)data.dependent|_local_scalar_dense|\.item"):
        one = torch.zeros(3, 1, dtype=torch.long)
        waiting.forward(one, torch.ones(3, 1, 1, dtype=torch.bool), one.clone())
    compiler = PassCompiler("eager", 8)
    counting = _CountsTokensOnTheHost(model, *ragged_prompts(), max_new_tokens=NEW, max_draft_nodes=8)
    counting.compile(compiler)
    run(counting)
    assert compiler.num_compiled > 1


def test_sizes_that_do_not_fit_are_refused() -> None:
    model = language_models.make("qwen3")
    with pytest.raises(ValueError, match="bucket must be at least 2 slots, got 1"):
        PassCompiler("eager", 1)
    with pytest.raises(ValueError, match="compile_bucket must be at least the 8 tokens of a draft, got 4"):
        build(model, PassCompiler("eager", 4))


def test_machine_code_says_what_eager_passes_say() -> None:
    """With torch's own compiler, on a model of one layer."""
    model = language_models.make("qwen3", dtype=torch.float32, num_hidden_layers=1)
    compiler = PassCompiler("inductor", 16)
    outputs = []
    for each in (None, compiler):
        target = build(model, each)
        target.prefill()
        tokens = torch.tensor([[3, 4, 5]] * 3)
        mask, depths = torch.ones(3, 3, 3, dtype=torch.bool).tril(), torch.arange(3).expand(3, -1)
        outputs.append(target.forward(tokens, mask, depths).logits)
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)
    assert compiler.num_compiled == 1
