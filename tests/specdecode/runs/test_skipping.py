"""Skipped steps: pending tokens are fed once, in place, and everything verified behind them is the target's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_chains import way_to
from scipy import stats
from synthetic import MarkovDrafter, MarkovTarget, chi_square_p_value, decoded, random_table
from torch import Tensor

from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Draft, Schedule, Selection, TargetOutput, Verdict
from specdecode.runs.skipping import PendingChain
from specdecode.sampling import SamplingConfig, Tag, logits_to_probabilities
from specdecode.trace import TokenOrigin
from specdecode.tree import TokenTree

VOCAB, LENGTH = 12, 30
TABLE = random_table(VOCAB, seed=1, scale=2.0)
DRAFT_TABLE = TABLE + random_table(VOCAB, seed=2, scale=1.0)
TREE = [-1, 0, 0, 1, 1, 2, 3]
CHAIN = [-1, 0, 1, 2]


class SkippingMarkovDrafter(MarkovDrafter):
    """Reads nothing but the tokens, so there is nothing to keep. It insists on being told what it has to be told."""

    waiting: Tensor | None = None
    """How many tokens of each row were skipped and not yet fed."""

    @property
    def skipping(self) -> SkippingMarkovDrafter:
        return self

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        assert not selection.counts[~state.active].any(), "a row that has ended has nothing left to verify"
        self.waiting = selection.counts

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        assert self.waiting is not None and torch.equal(counts, self.waiting)
        self.waiting = None

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        assert self.waiting is None, "what was skipped comes first"


class Pattern(Schedule):
    """Skips as a list says: for each step, per row, how many tokens of the first leaf path to take; None: nobody."""

    def __init__(self, steps: list[list[int] | None]) -> None:
        self.steps, self.turn = steps, 0
        self.unverified: list[tuple[int, int]] = []  # row, position

    def start(self, state: DecodeState) -> None:
        self.turn = 0
        assert state.lengths.tolist() == [1] * len(state.lengths)

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        wanted = self.steps[self.turn % len(self.steps)]
        self.turn += 1
        if wanted is None:
            return None
        tree = draft.tree
        deepest = torch.where(tree.valid, tree.depth, -1).argmax(1)
        path = tree.paths()[torch.arange(tree.batch_size), deepest]
        counts = torch.minimum(torch.tensor(wanted), (path >= 0).sum(1) - 1) * state.active
        for row, count in enumerate(counts.tolist()):
            start = int(state.lengths[row])
            self.unverified += [(row, position) for position in range(start, start + count)]
        return Selection(path.clamp(min=0), counts)


class CountingTarget(MarkovTarget):
    """Knows how often it was asked."""

    passes, most_fed = 1, 0

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        self.passes += 1
        self.most_fed = max(self.most_fed, tokens.shape[1])
        return super().forward(tokens, mask, depths)


def run(pattern: Pattern | None, batch_size: int = 3, stop_token: int | None = None, parents: list[int] = TREE):
    prompts = torch.randint(0, VOCAB, (batch_size, 2), generator=torch.Generator().manual_seed(4))
    target, drafter = CountingTarget(TABLE, prompts, LENGTH - 1), SkippingMarkovDrafter(DRAFT_TABLE, prompts, parents)
    result = decoded(target, LENGTH, drafter=drafter, schedule=pattern, stop_token=stop_token)
    return result, target, prompts


skips = st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=3, max_size=3))


@settings(deadline=None, max_examples=60)
@given(st.lists(skips, min_size=1, max_size=12), st.sampled_from((TREE, CHAIN)))
@example([[3, 1, 0], None], CHAIN)
@example([[2, 2, 2], None], CHAIN)
def test_every_token_is_taken_unverified_or_is_the_targets_own(steps, parents):
    pattern = Pattern(steps)
    result, target, prompts = run(pattern, parents=parents)
    unverified = set(pattern.unverified)
    for row in range(3):
        tokens = result.tokens[row].tolist()
        context = [*prompts[row].tolist(), *tokens]
        for position, token in enumerate(tokens):
            if (row, position) not in unverified:
                assert token == int(TABLE[context[position], context[position + 1]].argmax()), (row, position)
        # All but the last token were fed, the pending ones too, each at its own place.
        committed = int(target.lengths[row])
        assert committed == LENGTH - 1
        assert target.committed[row, 2 : 2 + committed].tolist() == tokens[:committed]
    trace = result.trace
    assert trace.skipped_tokens == len(unverified)
    assert trace.row_tokens == [LENGTH] * 3
    assert trace.target_passes == target.passes == max(trace.row_passes), "no pass without a live row"
    assert all(position < LENGTH - 1 for _, position in unverified), "a skip must not complete a row"


def test_a_schedule_that_never_skips_changes_nothing():
    plain = run(None)[0]
    for steps in ([None], [[0, 0, 0]]):
        result = run(Pattern(steps))[0]
        assert torch.equal(result.tokens, plain.tokens)
        assert result.trace.accepted_lengths == plain.trace.accepted_lengths
        assert result.trace.target_passes == plain.trace.target_passes


def test_a_schedule_used_twice_skips_the_same():
    pattern = Pattern([[2, 0, 1], None, [0, 3, 2], None, None])
    first, second = run(pattern)[0], run(pattern)[0]
    assert torch.equal(first.tokens, second.tokens)
    assert first.trace.steps == second.trace.steps


def test_what_no_row_took_is_not_fed():
    assert [run(Pattern([[0, most, 1]]))[1].most_fed for most in (1, 2, 3)] == [len(TREE) + most for most in (1, 2, 3)]


def test_skipping_saves_passes():
    plain, skipping = run(None)[0].trace, run(Pattern([[2, 2, 2], None]))[0].trace
    assert skipping.target_passes < plain.target_passes
    assert skipping.skipped_steps > 0 and plain.skipped_steps == 0


def test_a_stop_token_inside_a_skip_ends_the_row():
    everything = run(Pattern([[3, 3, 3]]))[0].tokens
    stop = int(everything[0, 4])
    result = run(Pattern([[3, 3, 3]]), stop_token=stop)[0]
    for row in range(3):
        tokens = everything[row].tolist()
        end = tokens.index(stop) + 1 if stop in tokens else LENGTH
        assert int(result.lengths[row]) == end
        assert result.tokens[row, :end].tolist() == tokens[:end]


@settings(deadline=None, max_examples=60)
@given(st.lists(skips, min_size=1, max_size=6), st.integers(0, VOCAB - 1))
def test_books_are_right_where_stop_tokens_end_rows_inside_and_outside_skips(steps, stop):
    result, target, _ = run(Pattern(steps), stop_token=stop)
    trace = result.trace
    assert trace.row_tokens == result.lengths.tolist() == [len(origins) for origins in trace.token_origins]
    assert trace.target_passes == target.passes == max(trace.row_passes), "no pass without a live row"
    for step in trace.steps:
        for active, accepted, emitted, drafted in zip(
            *(step[name] for name in ("active", "accepted", "emitted", "drafted")), strict=True
        ):
            assert 0 <= accepted <= emitted <= accepted + 1 and accepted <= drafted
            assert active == (emitted > 0), "a row that has ended takes no part"
            assert active or drafted == 0, "a row that has ended is asked about nothing"


def test_rows_that_a_skip_ends_are_booked_with_and_without_rows_that_go_on():
    """Only row 0 skips, three tokens a step; a token in the middle of its second skip is made its stop token."""
    everything = run(Pattern([[3, 0, 0]]))[0]
    stop = int(everything.tokens[0, 1 + everything.trace.steps[0]["emitted"][0] + 3 + 1])
    for batch_size in (3, 1):
        result, target, _ = run(Pattern([[3, 0, 0][:batch_size]]), batch_size, stop)
        trace, length = result.trace, int(result.lengths[0])
        assert result.tokens[0, length - 1] == stop and trace.token_origins[0][-1] == TokenOrigin.UNVERIFIED
        assert trace.row_tokens == result.lengths.tolist()
        last = next(step for step in trace.steps if step["skipped"][0] and not step["active"][0])
        assert last["emitted"][0] == last["accepted"][0] == last["drafted"][0] == 0
        assert trace.target_passes == target.passes == max(trace.row_passes)


class TwoFacedDrafter(SkippingMarkovDrafter):
    """Behind a skip it draws from another distribution with other numbers, for all rows; it keeps its proposals."""

    tables: tuple[Tensor, Tensor]

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        self.proposed: list[Draft] = []
        self.judged: list[tuple[Draft, Tensor]] = []  # a draft as it was judged, and which rows had skipped
        self.skipped = torch.zeros(state.tokens.shape[0], dtype=torch.bool)

    def propose(self, state: DecodeState) -> Draft:
        behind = bool(self.skipped.any())
        self.table, self.tag = self.tables[behind], Tag.COUPLE if behind else Tag.DRAFT
        self.proposed.append(super().propose(state))
        return self.proposed[-1]

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        super().observe_skipped(draft, selection, state)
        self.skipped = selection.counts > 0

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        self.judged.append((draft, self.skipped))
        self.skipped = torch.zeros_like(self.skipped)


SMALL, DRAWS = 5, 40_000
SMALL_TABLE = random_table(SMALL, seed=3, scale=1.2)
DRAFTED_FROM = (random_table(SMALL, seed=4, scale=1.0), random_table(SMALL, seed=5, scale=1.0))


def skip_in_every_second_row(
    children: str, draws: int = DRAWS, skips: Callable[[Draft], Tensor] | None = None
) -> tuple[DecodeResult, TwoFacedDrafter]:
    """Four tokens a row; every second row takes its second one unverified, or those of which `skips` is 1."""
    prompts = torch.tensor([1, 3]).expand(draws, 2)
    drafter = TwoFacedDrafter(DRAFTED_FROM[0], prompts, [-1, 0, 0, 1], children)  # type: ignore[arg-type]
    drafter.tables = DRAFTED_FROM

    class EverySecondRowOnce(Schedule):
        def start(self, state: DecodeState) -> None:
            self.due = True

        def select(self, draft: Draft, state: DecodeState) -> Selection | None:
            if not self.due:
                return None
            self.due = False
            path = torch.tensor([0, 1, 3]).expand(draws, -1)
            return Selection(path, torch.arange(draws) % 2 if skips is None else skips(draft))

    target = MarkovTarget(SMALL_TABLE, prompts, 3)
    return decoded(target, 4, SamplingConfig(0.9), drafter=drafter, schedule=EverySecondRowOnce()), drafter


@pytest.mark.parametrize("children", ["sampled", "without replacement"])
def test_what_is_verified_beside_and_behind_a_skip_has_the_targets_distribution(children):
    """The unverified token has the drafter's distribution, all others the target's."""
    tokens = skip_in_every_second_row(children)[0].tokens
    sampling = SamplingConfig(0.9)
    for first, tables in ((0, [SMALL_TABLE] * 4), (1, [SMALL_TABLE, DRAFTED_FROM[0], SMALL_TABLE, SMALL_TABLE])):
        steps = [logits_to_probabilities(table, sampling).double() for table in tables]
        expected, context = torch.ones(1, dtype=torch.float64), [(1, 3)]
        for step in steps:
            rows = torch.stack([step[a, b] for a, b in context])
            expected = (expected[:, None] * rows).flatten()
            context = [(b, token) for _, b in context for token in range(SMALL)]
        assert chi_square_p_value(tokens[first::2], expected, SMALL) > 1e-3, "skips" if first else "stays"


@pytest.mark.parametrize("looks", [False, True])
def test_a_schedule_that_looks_at_drawn_tokens_biases_those_it_leaves(looks):
    """A token that is skipped where it is this one, or anywhere: of the rest, only the latter is the target's."""
    result, _ = skip_in_every_second_row(
        "sampled", skips=lambda draft: (draft.tree.tokens[:, 1] == 0).long() if looks else torch.arange(DRAWS) % 2
    )
    left = torch.tensor([row[1] != TokenOrigin.UNVERIFIED for row in result.trace.token_origins])
    first, second = result.tokens[left][:, :2].T
    observed = (first * SMALL + second).bincount(minlength=SMALL**2).double().reshape(SMALL, SMALL)
    expected = observed.sum(1, keepdim=True) * logits_to_probabilities(SMALL_TABLE[3], SamplingConfig(0.9)).double()
    expected *= observed.sum(1, keepdim=True) / expected.sum(1, keepdim=True)
    figure = float(((observed - expected) ** 2 / expected).sum())
    chance = float(stats.chi2.sf(figure, SMALL * (SMALL - 1)))
    assert chance < 1e-9 if looks else chance > 1e-3


def test_a_row_that_does_not_skip_is_judged_on_its_first_draft():
    _, drafter = skip_in_every_second_row("sampled", 50)
    draft, skipped = drafter.judged[0]
    before, behind = drafter.proposed[:2]
    assert skipped.tolist() == [False, True] * 25
    assert draft.probabilities is not None and before.probabilities is not None and behind.probabilities is not None
    assert not torch.equal(before.tree.tokens[::2], behind.tree.tokens[::2]), "or nothing could be told"
    for rows, mine in ((~skipped, before), (skipped, behind)):
        there = draft.tree.valid[rows]
        assert there[:, 1].all(), "something is judged"
        assert torch.equal(draft.tree.tokens[rows][there], mine.tree.tokens[rows][there])
        assert torch.equal(draft.probabilities[rows][there], mine.probabilities[rows][there])


def test_a_drafter_that_cannot_skip_is_refused():
    prompts = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="schedule"):
        drafter = MarkovDrafter(DRAFT_TABLE, prompts, TREE)
        decoded(MarkovTarget(TABLE, prompts, 3), 4, drafter=drafter, schedule=Pattern([None]))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 4))
def test_the_joint_forward_shows_each_token_its_own_past(counts, length):
    batch_size = len(counts)
    count = torch.tensor(counts).clamp(max=length)
    chain = PendingChain(torch.arange(batch_size * length).view(batch_size, length) + 1, count)
    tree = TokenTree.from_parents(torch.full((batch_size, 4), 99), torch.tensor([[-1, 0, 0, 1]]).expand(batch_size, -1))
    _, mask, depths = chain.join(tree)
    parents = [-1, 0, 0, 1]
    for row in range(batch_size):
        pending = int(count[row])
        for query in range(length + 4):
            if query < length:
                seen = set(range(query + 1)) if query < pending else {query}
                depth = query if query < pending else 0
            else:
                seen, node = set(range(pending)), query - length
                depth = pending + (0, 1, 1, 2)[node]
                seen |= {length + each for each in way_to(parents, node)}
            assert set(mask[row, query].nonzero()[:, 0].tolist()) == seen
            assert int(depths[row, query]) == depth
    path = torch.tensor([[0, 1, 3]]).expand(batch_size, -1)
    nodes = chain.nodes(Verdict(path, torch.full((batch_size,), 2), torch.zeros(batch_size, dtype=torch.long)))
    for row in range(batch_size):
        pending = int(count[row])
        wanted = [*range(pending), length, length + 1, length + 3]
        assert nodes[row, : pending + 3].tolist() == wanted
