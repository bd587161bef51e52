"""The kernels between two passes give the bits of the torch lines that they replace, for all that they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_chains import random_chain, state_for
from synthetic import MarkovDrafter, MarkovTarget, random_table
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import COUPLINGS, INITIAL_GUESSES, JacobiDrafter
from specdecode.drafters.known_tokens import KnownTokensDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput, dynamic_tree
from specdecode.finite import FiniteWatch
from specdecode.kernels import judging
from specdecode.loop import decode
from specdecode.ragged import append, newest
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.runs.skipping import PendingChain
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, largest, sample
from specdecode.tree import TokenTree
from specdecode.verifiers.annealed import AnnealedVerifier
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier
from specdecode.verifiers.lantern import LanternVerifier
from specdecode.verifiers.neighbours import nearest_neighbours

SAMPLED, GREEDY = SamplingConfig(0.9), SamplingConfig(0)
FILTERED = SamplingConfig(0.8, top_k=9, top_p=0.9)
VOCABULARIES = (2, 15, 16, 17, 50)
many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**31)


@pytest.fixture
def either(monkeypatch: pytest.MonkeyPatch, own_kernels: None) -> Callable[[Callable[[], Any]], tuple[Any, Any]]:
    """What a function returns in operations of torch, and what it returns with the kernels."""

    def run(function: Callable[[], Any]) -> tuple[Any, Any]:
        results = []
        for choice in ("plain", "auto"):
            monkeypatch.setenv("VARGEN_KERNELS", choice)
            with torch.no_grad():
                results.append(function())
        return results[0], results[1]

    return run


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of kernels that are called."""
    names: list[str] = []
    call = judging._call
    with monkeypatch.context() as patch:
        patch.setattr(judging, "_call", lambda name, *given: names.append(name) or call(name, *given))
        yield names


def assert_equal(one: Any, other: Any) -> None:
    """The same bits."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, Verdict):
        for name in ("accepted", "next_tokens", "path", "relaxed"):
            assert_equal(getattr(one, name), getattr(other, name))
    elif isinstance(one, tuple | list):
        for each, its in zip(one, other, strict=True):
            assert_equal(each, its)
    else:
        assert one == other


@many
@given(seed=seeds, vocab_size=st.sampled_from(VOCABULARIES))
def test_the_largest_is_the_first_of_equal_ones(either: Any, seed: int, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 3, (3, 2, vocab_size), generator=generator).float()
    values = values.where(torch.rand(values.shape, generator=generator) > 0.1, -torch.inf)
    strange = values.where(torch.rand(values.shape, generator=generator) > 0.05, torch.nan)
    for each in (values, strange, -values.abs()):
        assert_equal(*either(lambda each=each: largest(each)))


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, None])
def test_logits_that_are_not_finite_are_noted(either: Any, wrong: float | None, vocab_size: int) -> None:
    logits = torch.randn(3, 2, vocab_size)
    logits[0, 0, 1] = -torch.inf
    if wrong is not None:
        logits[1, 1] = wrong
        logits[2, 0, vocab_size - 1] = wrong

    def noted() -> list[int | None]:
        watch = FiniteWatch(3, torch.device("cpu"))
        watch.step = 3
        watch.look(logits, torch.ones(3, 2, dtype=torch.bool), torch.tensor([True, True, False]))
        return watch.first_steps()

    torch_lines, kernels = either(noted)
    assert torch_lines == kernels == [None, None if wrong is None else 4, None]


@many
@given(seed=seeds, vocab_size=st.sampled_from(VOCABULARIES))
def test_races_read_numbers_where_they_lie(either: Any, seed: int, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    counters = torch.randint(0, 40, (3, 4), generator=generator)
    probabilities = (4 * torch.randn(3, 6, vocab_size, generator=generator)).softmax(-1)[:, 1:5]
    keys = torch.randint(-(2**62), 2**62, (3,), generator=generator)

    def raced() -> list[Tensor]:
        streams = RandomStreams(keys)
        return [streams.race(probabilities, tag, counters + later) for tag in (1, 2, 1) for later in (0, 1, 30)]

    torch_lines, kernels = either(raced)
    assert_equal(torch_lines, kernels)
    noise = RandomStreams(keys).exponential(Tag.TARGET, counters, vocab_size)
    assert_equal(kernels[0], sample(probabilities, noise))


@many
@given(seed=seeds, vocab_size=st.sampled_from(VOCABULARIES), rule=st.sampled_from(["exact", "grouped", "annealed"]))
def test_chains_of_drawn_tokens(either: Any, seed: int, vocab_size: int, rule: str) -> None:
    draft, output, lengths = random_chain(seed % 2**20, 6, 5, vocab_size)
    vectors = torch.randn(vocab_size, 3, generator=torch.Generator().manual_seed(seed))
    verifier = {
        "exact": ExactVerifier(),
        "grouped": GroupedVerifier(vectors, 5, 0.4, 2.0),
        "annealed": AnnealedVerifier(1.3, 0.5),
    }[rule]
    for sampling in (SAMPLED, FILTERED):
        assert_equal(*either(lambda at=sampling: verifier.accept(draft, output, state_for(lengths, at))))


@many
@given(seed=seeds, vocab_size=st.sampled_from(VOCABULARIES), sampling=st.sampled_from([SAMPLED, FILTERED, GREEDY]))
def test_tokens_drawn_by_the_target(either: Any, seed: int, vocab_size: int, sampling: SamplingConfig) -> None:
    draft, output, lengths = random_chain(seed % 2**20, 5, 4, vocab_size)
    tree, generator = random_tree(seed, vocab_size)
    logits = 2 * torch.randn(5, 9, vocab_size, generator=generator)
    for drafted, said in ((Draft(draft.tree), output), (Draft(tree), TargetOutput(logits))):
        make = lambda d=drafted, s=said: ExactVerifier().accept(d, s, state_for(lengths, sampling))  # noqa: E731
        assert_equal(*either(make))


def random_tree(seed: int, vocab_size: int, batch_size: int = 5, nodes: int = 9) -> tuple[TokenTree, torch.Generator]:
    """Each row clipped somewhere."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, *(int(torch.randint(0, node, (), generator=generator)) for node in range(1, nodes))]
    rows = torch.tensor(parents).expand(batch_size, -1)
    tokens = torch.randint(0, vocab_size, rows.shape, generator=generator)
    depth = torch.randint(-1, 5, (batch_size,), generator=generator)
    return TokenTree.from_parents(tokens, rows, max_children=nodes - 1).clip(depth), generator


@many
@given(seed=seeds, vocab_size=st.sampled_from(VOCABULARIES), budget=st.sampled_from([0.05, 0.3, 1.0]))
@pytest.mark.parametrize("kind", ["delta", "multiplier"])
def test_lanterns_walk(either: Any, seed: int, vocab_size: int, budget: float, kind: str) -> None:
    tree, generator = random_tree(seed, vocab_size)
    vectors = torch.randn(vocab_size, 2, generator=generator)
    verifier = LanternVerifier(
        nearest_neighbours(vectors, min(6, vocab_size - 1)), **{kind: budget + (kind == "multiplier")}
    )
    output = TargetOutput(1.5 * torch.randn(5, 9, vocab_size, generator=generator))
    lengths = torch.randint(1, 50, (5,), generator=generator)
    one, other = either(lambda: verifier.accept(Draft(tree), output, state_for(lengths, FILTERED)))
    for name in ("accepted", "next_tokens", "path"):
        assert_equal(getattr(one, name), getattr(other, name))
    reached = torch.arange(tree.max_depth) < one.accepted[:, None]  # what lies beyond means nothing
    lent = torch.zeros_like(reached) if one.relaxed is None else one.relaxed & reached
    assert_equal(lent, other.relaxed & reached)


@many
@given(seed=seeds, depth=st.integers(1, 4), top_k=st.integers(1, 4), total=st.integers(2, 20))
def test_grown_trees(either: Any, seed: int, depth: int, top_k: int, total: int) -> None:
    def grown() -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def guess(level: int, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
            assert mask.shape == (3, top_k, top_k * level) and int(depths.unique()) == level - 1
            shape = tokens.shape
            return DraftHeadOutput(torch.randn(*shape, 9, generator=generator), torch.randn(*shape, 2))

        root, lengths = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])
        first, size = torch.randn(3, 9, generator=generator), DraftSize(max(total, depth + 1), depth)
        made = dynamic_tree(root, first[:, None], torch.zeros(3, 1, 2), state_for(lengths, SAMPLED), top_k, size, guess)
        tree = made.draft.tree
        tree.check()
        return [tree.tokens, tree.parents, tree.depth, tree.valid, made.draft.confidence, made.scores, made.levels]

    assert_equal(*either(grown))


@many
@given(seed=seeds, width=st.integers(1, 5))
def test_layouts(either: Any, seed: int, width: int) -> None:
    tree, generator = random_tree(seed, 7)
    left, right = (torch.randn(5, size, 3, generator=generator).bfloat16() for size in (4, width))
    counts = torch.randint(0, 5, (5,), generator=generator)
    pending = PendingChain(torch.randint(0, 7, (5, 4), generator=generator), counts)
    ends, both = torch.randint(0, 9, (5,), generator=generator), torch.randn(5, 9, 3, generator=generator)[:, 1:]

    def laid_out() -> list[Any]:
        path = tree.path_to(ends)
        verdict = Verdict(path.clamp(min=0), counts, counts)
        joined = pending.join(tree), pending.nodes(verdict)
        last = [newest(values, ends.clamp(1, 8), counts, width) for values in (both, both[..., 0])]
        return [path, tree.ancestor_mask(), *joined, append(left, counts, right, counts), *last]

    assert_equal(*either(laid_out))


class Proposed(Drafter):
    """Drafts what it was given."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def propose(self, state: DecodeState) -> Draft:
        tree, drawn_from = self.draft.tree, self.draft.probabilities
        tokens = tree.tokens.clone()
        tree = TokenTree.chain(tokens) if tree.is_chain else replace(tree, tokens=tokens)
        return Draft(tree, None if drawn_from is None else drawn_from.clone())


@many
@given(seed=seeds, vocab_size=st.sampled_from(VOCABULARIES), claims=st.booleans(), branches=st.booleans())
def test_known_tokens(either: Any, seed: int, vocab_size: int, claims: bool, branches: bool) -> None:
    draft, output, lengths = random_chain(seed % 2**20, 4, 5, vocab_size)
    if branches:
        assert draft.probabilities is not None
        draft = Draft(random_tree(seed, vocab_size, 4, draft.probabilities.shape[1])[0], draft.probabilities)
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.tensor([-1, -1, 0, min(1, vocab_size - 2)])
    known = kinds[torch.randint(4, (4, 30), generator=generator)]
    given = replace(draft, probabilities=draft.probabilities if claims else None)

    def corrected() -> list[Tensor | None]:
        drafter = KnownTokensDrafter(Proposed(given), known, vocab_size)
        drafter.start(output, state_for(lengths, SAMPLED))
        made = drafter.propose(state_for(lengths, SAMPLED))
        return [made.tree.tokens, made.probabilities]

    assert_equal(*either(corrected))


@many
@given(
    seed=seeds, coupling=st.sampled_from(COUPLINGS), guess=st.sampled_from(INITIAL_GUESSES), varied=st.booleans(),
    vocab_size=st.sampled_from(VOCABULARIES), known=st.booleans(),
)  # fmt: skip
def test_windows(either: Any, seed: int, coupling: str, guess: str, varied: bool, vocab_size: int, known: bool) -> None:
    draft, output, lengths = random_chain(seed % 2**20, 4, 5, vocab_size)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab_size, (4, 99), generator=generator)
    kinds = torch.tensor([-1, -1, 0, min(1, vocab_size - 2)])
    form = kinds[torch.randint(4, (4, 30), generator=generator)]

    def drawn() -> list[Tensor | None]:
        window = JacobiDrafter(vocab_size, FixedDraftSize(DraftSize(8, 7)), guess, coupling)
        drafter: Drafter = KnownTokensDrafter(window, form, vocab_size) if known else window
        state = DecodeState(tokens, lengths, lengths > 0, 99, SAMPLED, RandomStreams.from_seeds(range(4)))
        drafter.start(TargetOutput(output.logits[:, :1]), state)
        made: list[Tensor | None] = []
        for accepted in ([0, 0, 0, 0], [0, 1, 4, 5]):
            proposed = drafter.propose(state)
            made += [proposed.tree.tokens, proposed.probabilities]
            seen = Draft(draft.tree, None if coupling == "target" else draft.probabilities)
            following = torch.zeros(4, dtype=torch.int64)
            drafter.observe(seen, output, Verdict(draft.tree.tokens, torch.tensor(accepted), following), state)
            if varied:
                window._last_node = torch.tensor([[5], [3], [4], [5]])
        again = drafter.propose(state)
        assert again.has_known == (known and judging.serves(tokens)), "the window's own call writes known tokens"
        return [*made, again.tree.tokens]

    assert_equal(*either(drawn))


@many
@given(seed=seeds, stops=st.lists(st.integers(0, 5), max_size=2), sampling=st.sampled_from([SAMPLED, GREEDY]))
@pytest.mark.parametrize("parents", [None, [-1, 0, 1, 2], [-1, 0, 0, 0, 1, 1, 2, 4]])
def test_whole_rows(either: Any, seed: int, stops: list[int], sampling: SamplingConfig, parents: Any) -> None:
    prompts = torch.tensor([[1, 2], [3, 0], [5, 5]])

    def decoded() -> tuple[Tensor, Tensor, dict[str, Any]]:
        drafter = None if parents is None else MarkovDrafter(random_table(6, seed + 1), prompts, parents)
        result = decode(
            MarkovTarget(random_table(6, seed), prompts, 40),
            max_new_tokens=17,
            sampling=sampling,
            streams=RandomStreams.from_seeds([seed, 1, 2]),
            drafter=drafter,
            stop_token=stops,
        )
        return result.tokens, result.lengths, {**result.trace.to_dict(), "phase_seconds": 0}

    assert_equal(*either(decoded))


def test_they_are_called(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, output, lengths = random_chain(1, 6, 5, 16)
    with counted(monkeypatch) as names:
        either(lambda: ExactVerifier().accept(draft, output, state_for(lengths, SAMPLED)))
        either(lambda: ExactVerifier().accept(Draft(draft.tree), output, state_for(lengths, SAMPLED)))
    assert {"uniform", "chain", "walk"} <= set(names)


def test_what_they_do_not_take_is_left_to_torch(own_kernels: None) -> None:
    rows = torch.zeros(4, 4)
    assert judging.serves(rows) and judging.serves(rows[:, None].expand(4, 3, 4))
    assert not judging.serves(rows.t()) and not judging.serves(rows.double())


def test_tokens_that_are_none_are_refused(own_kernels: None) -> None:
    draft, output, lengths = random_chain(1, 6, 5, 16)
    beyond = replace(draft, tree=replace(draft.tree, tokens=draft.tree.tokens + 16))
    state = state_for(lengths, SAMPLED)
    with pytest.raises(IndexError, match="outside the vocabulary"):
        ExactVerifier().accept(beyond, output, state)
    table = nearest_neighbours(torch.randn(16, 2), 3)
    with pytest.raises(IndexError, match="outside the vocabulary"):
        LanternVerifier(table, delta=0.3).accept(replace(beyond, probabilities=None), output, state)
