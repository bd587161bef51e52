"""Every fused operation gives the bits of the torch lines that stand behind it, for all that it takes.

A case makes random inputs of one or several operations and returns what to call. Row windows are in `test_lines.py`.
"""

import random
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_chains import random_chain, state_for
from refusals import raised
from synthetic import GREEDY, MarkovDrafter, MarkovTarget, chain_of, decoded, random_table
from torch import Tensor

from specdecode.checks import FiniteWatch
from specdecode.drafters.draft_size import DraftSize
from specdecode.drafters.jacobi import COUPLINGS, INITIAL_GUESSES, JacobiDrafter
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput, dynamic_tree
from specdecode.kernels import fused_ops
from specdecode.kv_cache import StaticKVCache
from specdecode.ragged import newest
from specdecode.roles import Draft, TargetOutput, Verdict
from specdecode.runs.skipping import PendingChain
from specdecode.sampling import RandomStreams, SamplingConfig, largest, logits_to_probabilities
from specdecode.tree import TokenTree
from specdecode.verifiers.annealed import AnnealedVerifier
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier
from specdecode.verifiers.lantern import LanternVerifier
from specdecode.verifiers.neighbours import nearest_neighbours

SAMPLED = SamplingConfig(0.9)
FILTERED = SamplingConfig(0.8, top_k=9, top_p=0.9)
VOCABULARIES = (2, 15, 16, 17, 50)


class Inputs:
    """Random inputs: `choose` one of several things, and tensors by `generator`."""

    def __init__(self, seed: int) -> None:
        self.seed, self.generator = seed, torch.Generator().manual_seed(seed)
        self.choose: Callable[..., Any] = random.Random(seed).choice
        self.vocab_size = self.choose(VOCABULARIES)

    def numbers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def chain(self, rows: int = 5, length: int = 4) -> tuple[Draft, TargetOutput, Tensor]:
        return random_chain(self.seed % 2**20, rows, length, self.vocab_size)

    def tree(self, nodes: int = 9, rows: int = 5) -> TokenTree:
        """Each row clipped somewhere."""
        parents = [-1, *(int(self.numbers(0, node)) for node in range(1, nodes))]
        tree = torch.tensor(parents).expand(rows, -1)
        tokens = self.numbers(0, self.vocab_size, *tree.shape)
        return TokenTree.from_parents(tokens, tree, max_children=nodes - 1).clip(self.numbers(-1, 5, rows))


def searches(some: Inputs) -> Callable[[], Any]:
    """Also for infinities and what is no number."""
    values = some.numbers(-3, 3, 3, 2, some.vocab_size).float()
    values = values.where(some.normal(*values.shape) > -1.3, -torch.inf)
    strange = values.where(some.normal(*values.shape) > -1.6, torch.nan)
    return lambda: [largest(each) for each in (values, strange, -values.abs())]


def watches(some: Inputs) -> Callable[[], Any]:
    logits, rows = some.normal(3, 2, some.vocab_size), torch.tensor([True, True, False])
    logits[0, 0, 1] = -torch.inf
    for place in ((1, 1), (2, 0, some.vocab_size - 1)):
        logits[place] = some.choose((torch.nan, torch.inf, -torch.inf, 0.0))

    def noted() -> list[int | None]:
        watch = FiniteWatch(3, torch.device("cpu"))
        watch.step = 3
        watch.note(logits, torch.ones(3, 2, dtype=torch.bool), rows)
        return watch.first_steps()

    return noted


def races(some: Inputs) -> Callable[[], Any]:
    """Numbers are read where they lie, and made ahead."""
    counters, keys = some.numbers(0, 40, 3, 4), some.numbers(-(2**62), 2**62, 3)
    probabilities = (4 * some.normal(3, 6, some.vocab_size)).softmax(-1)[:, 1:5]

    def raced() -> list[Tensor]:
        streams = RandomStreams(keys)
        drawn = [streams.race(probabilities, tag, counters + later) for tag in (1, 2, 1) for later in (0, 1, 30)]
        return [*drawn, streams.uniform(2, counters), streams.exponential(3, counters, some.vocab_size)]

    return raced


def verdicts_on_chains(some: Inputs) -> Callable[[], Any]:
    draft, output, lengths = some.chain(6, 5)
    vectors = some.normal(some.vocab_size, 3)
    rule = some.choose((ExactVerifier(), GroupedVerifier(vectors, 5, 0.4, 2.0), AnnealedVerifier(1.3, 0.5)))
    return lambda: [rule.accept(draft, output, state_for(lengths, each)) for each in (SAMPLED, FILTERED)]


def verdicts_by_the_targets_tokens(some: Inputs) -> Callable[[], Any]:
    chain, output, lengths = some.chain()
    tree, sampling = some.tree(), some.choose((SAMPLED, FILTERED, GREEDY))
    said = ((chain.tree, output), (tree, TargetOutput(2 * some.normal(5, 9, some.vocab_size))))
    return lambda: [ExactVerifier().accept(Draft(each), by, state_for(lengths, sampling)) for each, by in said]


def verdicts_of_lantern(some: Inputs) -> Callable[[], Any]:
    """On children that are a choice, and on drawn ones, which the exact rule judges, too."""
    tree, kind, budget = some.tree(), some.choose(("delta", "multiplier")), some.choose((0.05, 0.3, 1.0))
    table = nearest_neighbours(some.normal(some.vocab_size, 2), min(6, some.vocab_size - 1))
    verifier = LanternVerifier(table, **{kind: budget + (kind == "multiplier")})
    output, lengths = TargetOutput(1.5 * some.normal(5, 9, some.vocab_size)), some.numbers(1, 50, 5)
    above = output.logits.gather(1, tree.parents.clamp(min=0)[..., None].expand_as(output.logits))
    apart = some.choose((0.0, 0.5, 3.0)) * some.normal(*above.shape)
    drawn_from = logits_to_probabilities(above + apart, some.choose((SAMPLED, FILTERED)))

    def judged() -> list[Verdict]:
        verdicts = [
            rule.accept(Draft(tree, drawn), output, state_for(lengths, FILTERED))
            for rule, drawn in ((verifier, None), (verifier, drawn_from), (ExactVerifier(), drawn_from))
        ]
        reached = torch.arange(tree.max_depth)  # what lies beyond means nothing
        relaxed = [torch.tensor(False) if each.relaxed is None else each.relaxed for each in verdicts]
        return [
            replace(each, relaxed=lent & (reached < each.accepted[:, None]))
            for each, lent in zip(verdicts, relaxed, strict=True)
        ]

    return judged


def grown_trees(some: Inputs) -> Callable[[], Any]:
    depth, top_k, total = some.choose(range(1, 5)), some.choose(range(1, 5)), some.choose(range(2, 21))
    size, lengths = DraftSize(max(total, depth + 1), depth), torch.tensor([4, 5, 6])

    def grown() -> Any:
        again = Inputs(some.seed)

        def guess(level: int, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
            assert mask.shape == (3, top_k, top_k * level) and int(depths.unique()) == level - 1
            return DraftHeadOutput(again.normal(*tokens.shape, 9), torch.zeros(*tokens.shape, 2))

        first, feature = again.normal(3, 1, 9), torch.zeros(3, 1, 2)
        made = dynamic_tree(torch.tensor([1, 2, 3]), first, feature, state_for(lengths, SAMPLED), top_k, size, guess)
        made.tree.check()
        return [made.tree, made.confidence]

    return grown


def layouts(some: Inputs) -> Callable[[], Any]:
    tree, counts, width = some.tree(), some.numbers(0, 5, 5), some.choose(range(1, 6))
    pending = PendingChain(some.numbers(0, 7, 5, 4), counts)
    ends, both = some.numbers(0, 9, 5), some.normal(5, 9, 3)[:, 1:]

    def laid_out() -> list[Any]:
        path = tree.path_to(ends)
        joined = pending.join(tree), pending.nodes(Verdict(path.clamp(min=0), counts, counts))
        last = [newest(values, ends.clamp(1, 8), counts, width) for values in (both, both[..., 0])]
        return [path, tree.ancestor_mask(), *joined, *last]

    return laid_out


def kept_entries(some: Inputs) -> Callable[[], Any]:
    rows, lengths, counts = some.normal(2, 2, 3 * 12, 4), some.numbers(0, 5, 3), some.numbers(0, 5, 3)
    nodes = torch.stack([torch.randperm(6, generator=some.generator)[:4].sort().values for _ in range(3)])

    def kept() -> list[Tensor]:
        cache = StaticKVCache(2, 3, 2, 12, 2)
        cache._rows.copy_(rows), cache.lengths.copy_(lengths)
        cache.keep(nodes, counts)
        ends = torch.arange(12) < cache.lengths[:, None]  # what lies beyond means nothing
        return [cache._rows.view(2, 2, 3, 12, 4) * ends[..., None], cache.lengths]

    return kept


def copied_chains(some: Inputs) -> Callable[[], Any]:
    prompt, tokens, lengths = some.numbers(0, 3, 4, 9), some.numbers(0, 3, 4, 12), some.numbers(1, 12, 4)
    state = state_for(lengths, GREEDY, tokens, most=12)
    drafter = PromptLookupDrafter(prompt, chain_of(4), max_ngram_size=some.choose((1, 2, 4)))
    return lambda: [drafter.last_occurrence(state), drafter.propose(state).tree]


def windows(some: Inputs) -> Callable[[], Any]:
    draft, output, lengths = some.chain(4, 5)
    tokens = some.numbers(0, some.vocab_size, 4, 99)
    coupling, guess, varied = some.choose(COUPLINGS), some.choose(INITIAL_GUESSES), some.choose((True, False))

    def drawn() -> list[Tensor | None]:
        window = JacobiDrafter(some.vocab_size, chain_of(7), guess, coupling)
        state = state_for(lengths, SAMPLED, tokens)
        window.start(TargetOutput(output.logits[:, :1]), state)
        made: list[Tensor | None] = []
        for accepted in ([0, 0, 0, 0], [0, 1, 4, 5]):
            proposed = window.propose(state)
            made += [proposed.tree.tokens, proposed.probabilities]
            seen = Draft(draft.tree, None if coupling == "target" else draft.probabilities)
            following = torch.zeros(4, dtype=torch.int64)
            window.observe(seen, output, Verdict(draft.tree.tokens, torch.tensor(accepted), following), state)
            if varied:
                window._last_node = torch.tensor([[5], [3], [4], [5]])
        return [*made, window.propose(state).tree.tokens]

    return drawn


def whole_rows(some: Inputs) -> Callable[[], Any]:
    prompts, sampling = torch.tensor([[1, 2], [3, 0], [5, 5]]), some.choose((SAMPLED, GREEDY))
    parents = some.choose((None, [-1, 0, 1, 2], [-1, 0, 0, 0, 1, 1, 2, 4]))
    stops = some.numbers(0, 6, some.choose((0, 1, 2))).tolist()

    def drawn() -> Any:
        drafter = None if parents is None else MarkovDrafter(random_table(6, some.seed + 1), prompts, parents)
        target = MarkovTarget(random_table(6, some.seed), prompts, 40)
        result = decoded(target, 17, sampling, [9, 1, 2], drafter=drafter, stop_token=stops)
        return result.tokens, result.lengths, {**result.trace.to_dict(), "phase_seconds": 0}

    return drawn


CASES: tuple[Callable[[Inputs], Callable[[], Any]], ...] = (
    *(searches, watches, races, verdicts_on_chains, verdicts_by_the_targets_tokens, verdicts_of_lantern, grown_trees),
    *(layouts, kept_entries, copied_chains, windows, whole_rows),
)


def flat(value: Any) -> list[Any]:
    """The tensors and numbers of a result."""
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    return [each for part in value for each in flat(part)] if isinstance(value, list | tuple) else [value]


def by_choice(monkeypatch: pytest.MonkeyPatch, choice: str, call: Callable[[], Any]) -> list[Any]:
    monkeypatch.setenv("VARGEN_KERNELS", choice)
    with torch.no_grad():
        return flat(call())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_plain_and_fused_agree(own_kernels, monkeypatch, case, seed):
    call = case(Inputs(seed))
    plain, fused = (by_choice(monkeypatch, each, call) for each in ("plain", "auto"))
    for one, other in zip(plain, fused, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other) and one.dtype == other.dtype if isinstance(one, Tensor) else one == other


def test_every_kernel_is_tried(own_kernels, monkeypatch):
    """But for what other files try: row windows, and features that VVS stores and takes."""
    names: set[str] = set()
    call = fused_ops._call
    monkeypatch.setattr(fused_ops, "_call", lambda name, *given: names.add(name) or call(name, *given))
    for case in CASES:
        for seed in range(8):
            by_choice(monkeypatch, "auto", case(Inputs(seed)))
    source = Path(fused_ops.__file__).with_name("judging.cpp").read_text()
    assert set(re.findall(r"\bjudging_(\w+)\(", source)) - names == {"store", "taken"}


def test_what_they_do_not_take_is_left_to_torch(own_kernels):
    rows = torch.zeros(4, 4)
    assert fused_ops.serves(rows) and fused_ops.serves(rows[:, None].expand(4, 3, 4))
    assert not fused_ops.serves(rows.t()) and not fused_ops.serves(rows.double())


def test_tokens_that_are_none_are_refused(own_kernels):
    draft, output, lengths = random_chain(1, 6, 5, 16)
    beyond = replace(draft, tree=replace(draft.tree, tokens=draft.tree.tokens + 16))
    state = state_for(lengths, SAMPLED)
    raised(IndexError, "outside the vocabulary", ExactVerifier().accept, beyond, output, state)
    table = nearest_neighbours(torch.randn(16, 2), 3)
    with pytest.raises(IndexError, match="outside the vocabulary"):
        LanternVerifier(table, delta=0.3).accept(replace(beyond, probabilities=None), output, state)
