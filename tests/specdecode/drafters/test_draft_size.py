"""Choosing draft sizes: against brute force, on simulated machines and acceptance."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import value_error

from specdecode.drafters.draft_size import NO_DRAFT, AdaptiveDraftSize, DraftSize, FixedDraftSize, StepCosts

FLAT = StepCosts((1, 2, 4, 8, 16, 32, 64), (1.0,) * 7, 0.02, 0.01)  # a GPU: 64 nodes cost what one costs
LINEAR = StepCosts((1, 2, 4, 8, 16, 32, 64), (1.0, 1.1, 1.3, 1.7, 2.5, 4.0, 7.0), 0.1, 0.05)  # two cores
DEAR = StepCosts((1, 64), (1.0, 64.0), 1.0, 0.0)
CHAINS = [DraftSize(length + 1, length) for length in range(1, 9)]
ANY = [NO_DRAFT, *CHAINS]


def simulate(sizer: AdaptiveDraftSize, rate: float, steps: int = 600, rows: int = 4, seed: int = 0) -> list[DraftSize]:
    """Each drafted token is accepted with a fixed probability, if those before it are."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for _ in range(steps):
        size = sizer.choose()
        chosen.append(size)
        passes = torch.rand(rows, max(size.depth, 1), generator=generator) < rate
        accepted = passes.cumprod(1).sum(1) * (size.depth > 0)
        sizer.observe(size, accepted, torch.ones(rows, dtype=torch.bool))
    return chosen


def brute_force(costs: StepCosts, rate: float) -> DraftSize:
    return max(ANY, key=lambda size: (1 + sum(rate**level for level in range(1, size.depth + 1))) / costs.step(size))


@pytest.mark.parametrize(
    ("costs", "rate"), itertools.product([FLAT, LINEAR, DEAR], [0.05, 0.3, 0.6, 0.9]), ids=lambda value: str(value)[:20]
)
def test_it_settles_on_the_size_that_brute_force_finds(costs, rate):
    sizer = AdaptiveDraftSize(ANY, costs, clock=None)
    late = simulate(sizer, rate)[-200:]
    best = brute_force(costs, rate)

    def achieved(size: DraftSize) -> float:
        return (1 + sum(rate**level for level in range(1, size.depth + 1))) / costs.step(size)

    mean = sum(map(achieved, late)) / len(late)
    assert mean > 0.93 * achieved(best), (best, late[-1])


def test_nothing_is_drafted_where_drafting_cannot_pay_and_it_recovers_when_it_can():
    sizer = AdaptiveDraftSize(ANY, LINEAR, clock=None)
    chosen = simulate(sizer, 0.0, steps=400)
    assert sum(size == NO_DRAFT for size in chosen[100:]) > 0.8 * 300
    assert any(size != NO_DRAFT for size in chosen[200:]), "it must look again now and then"
    chosen = simulate(sizer, 0.95, steps=800)
    assert chosen[-1].depth >= 3


def test_something_is_always_drafted_unless_nothing_is_among_the_choices():
    assert NO_DRAFT not in simulate(AdaptiveDraftSize(CHAINS, DEAR, clock=None), 0.0, steps=100)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.1, 10)), min_size=2, max_size=6, unique_by=lambda p: p[0]),
    st.integers(1, 200),
)
def test_costs_are_linear_between_measured_points(points, nodes):
    points.sort()
    costs = StepCosts(tuple(n for n, _ in points), tuple(s for _, s in points))
    for n, seconds in points:
        assert costs.target(n) == pytest.approx(seconds, rel=1e-6)
    for (left, low), (right, high) in itertools.pairwise(points):
        if left <= nodes <= right:
            line = low + (high - low) * (nodes - left) / (right - left)
            assert costs.target(nodes) == pytest.approx(line, rel=1e-6)
    assert costs.target(1000) >= min(points[-2][1], points[-1][1]) - 1e-9, "large trees must not become free"
    if nodes < points[0][0]:
        assert costs.target(nodes) == points[0][1]


def test_finished_rows_teach_nothing():
    active = torch.tensor([True, False])
    with_finished, alone = (AdaptiveDraftSize(ANY, LINEAR, clock=None) for _ in range(2))
    for _ in range(40):
        with_finished.observe(CHAINS[3], torch.tensor([3, 0]), active)
        alone.observe(CHAINS[3], torch.tensor([3]), active[:1])
    assert with_finished.expected_accepted(CHAINS[3]) == alone.expected_accepted(CHAINS[3])
    assert with_finished.choose() == alone.choose()


@pytest.mark.parametrize(("dearer", "drafts"), [(1.0, True), (3.0, False)])
def test_drafts_that_take_longer_than_reckoned_are_given_up(dearer, drafts):
    """Everything is accepted, so a chain of four is worth five steps, but not if its step takes three times as long."""
    now = [0.0]
    sizer = AdaptiveDraftSize(ANY, LINEAR, clock=lambda: now[0])
    chosen = []
    for _ in range(300):
        size = sizer.choose()
        chosen.append(size)
        now[0] += LINEAR.step(size) * (dearer if size.depth else 1.0)
        sizer.observe(size, torch.full((1,), min(size.depth, 1)), torch.ones(1, dtype=torch.bool))
    assert (sum(size.depth > 0 for size in chosen[100:]) > 150) == drafts


def test_a_new_batch_keeps_what_was_learned_and_drops_what_was_not():
    sizer = AdaptiveDraftSize(ANY, DEAR, clock=None)
    simulate(sizer, 0.0, rows=4)
    assert sizer.choose() == NO_DRAFT
    sizer._pending = [(CHAINS[0], torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool))]
    sizer.start()
    assert sizer.choose() == NO_DRAFT
    simulate(sizer, 0.0, rows=2)  # rows of another number would not stack with those left over


def test_a_step_costs_its_pass_its_levels_and_what_comes_with_drafting():
    costs = StepCosts((1, 10), (1.0, 10.0), drafting_step_seconds=0.5, overhead_seconds=0.25)
    assert costs.step(NO_DRAFT) == 1.0
    assert costs.step(DraftSize(6, 3)) == pytest.approx(6 + 3 * 0.5 + 0.25)


def test_before_anything_is_known_wider_levels_are_expected_to_survive_more_often():
    sizer = AdaptiveDraftSize(CHAINS, FLAT, prior_rate=0.4, clock=None)
    assert sizer.expected_accepted(NO_DRAFT) == 0
    assert sizer.expected_accepted(DraftSize(3, 2)) == pytest.approx(0.4 + 0.4**2)
    wide = 1 - 0.6 ** (4**0.5)  # four nodes a level
    assert sizer.expected_accepted(DraftSize(9, 2)) == pytest.approx(wide + wide**2)


def test_it_learns_every_so_many_steps():
    sizer = AdaptiveDraftSize(CHAINS, LINEAR, interval=5, clock=None)
    before = sizer.expected_accepted(CHAINS[2])
    for step in range(1, 11):
        sizer.observe(CHAINS[2], torch.tensor([3]), torch.tensor([True]))
        after = sizer.expected_accepted(CHAINS[2])
        assert (after > before) == (step % 5 == 0), step
        before = after


def test_measured_lengths_are_believed_at_once_and_scaled_by_what_happens():
    sizes, lengths = (NO_DRAFT, CHAINS[3], CHAINS[7]), (0.0, 1.2, 3.0)
    sizer = AdaptiveDraftSize(sizes, LINEAR, expected_lengths=lengths, clock=None)
    assert [sizer.expected_accepted(size) for size in sizes] == list(lengths)
    assert sizer.choose() == max(sizes, key=lambda size: (1 + lengths[sizes.index(size)]) / LINEAR.step(size))
    for _ in range(200):  # this model accepts half of what was measured
        sizer.observe(CHAINS[3], torch.tensor([0, 1, 1]), torch.tensor([False, True, False]))
        sizer.observe(CHAINS[3], torch.tensor([1, 0, 0]), torch.tensor([False, True, True]))
    assert sizer.expected_accepted(CHAINS[7]) == pytest.approx(3.0 * 0.5 / 1.2, rel=0.05)


def test_drafts_that_are_known_not_to_pay_are_tried_later():
    sizer = AdaptiveDraftSize((NO_DRAFT, *CHAINS), DEAR, expected_lengths=[0.0] * 9, clock=None)
    assert gaps(sizer, 600, accepts=False)[:3] == [63, 127, 255]


def gaps(sizer: AdaptiveDraftSize, steps: int, accepts: bool) -> list[int]:
    """Steps without a draft before each time that one is tried again."""
    found, without = [], 0
    for _ in range(steps):
        size = sizer.choose()
        if size == NO_DRAFT:
            without += 1
        elif without:
            found.append(without)
            without = 0
        accepted = torch.tensor([size.depth if accepts else 0])
        sizer.observe(size, accepted, torch.ones(1, dtype=torch.bool))
    return found


def test_it_tries_again_ever_more_rarely_up_to_a_bound_and_starts_over_once_drafts_have_paid():
    sizer = AdaptiveDraftSize((NO_DRAFT, *CHAINS), DEAR, clock=None)
    assert sizer.choose() == NO_DRAFT
    sizer = AdaptiveDraftSize((NO_DRAFT, *CHAINS), LINEAR, clock=None)
    waits = gaps(sizer, 3200, accepts=False)
    assert waits == [15, 31, 63, 127, 255, 511, 1023, 1023]
    gaps(sizer, 1400, accepts=True)
    assert sizer.choose() != NO_DRAFT, "drafts pay by now"
    assert gaps(sizer, 300, accepts=False)[:3] == [15, 31, 63]


def test_sizes_that_were_compared_make_no_later_trial_rarer():
    """Nothing is accepted, which the first comparisons of two drafts show."""
    now, costs, depths = [0.0], StepCosts((1, 9), (1.0, 2.0)), []
    sizer = AdaptiveDraftSize(ANY, costs, clock=lambda: now[0])
    for _ in range(25):
        size = sizer.choose()
        now[0] += costs.step(size)
        sizer.observe(size, torch.tensor([0]), torch.ones(1, dtype=torch.bool))
        depths.append(size.depth)
    assert depths == [2] * 3 + [1] * 3 + [0] * 15 + [1] * 3 + [0]


def test_a_gain_that_is_too_small_is_left():
    sizes, costs = (NO_DRAFT, DraftSize(2, 1)), StepCosts((1, 2), (1.0, 1.5))  # 1.6 / 1.5 times as fast
    made = [AdaptiveDraftSize(sizes, costs, expected_lengths=[0, 0.6], least_gain=gain) for gain in (1.05, 1.1)]
    assert [each.choose() for each in made] == [sizes[1], NO_DRAFT]


@pytest.mark.parametrize("real", [FLAT, LINEAR, DEAR])
@pytest.mark.parametrize("planted", [FLAT, DEAR])
def test_costs_of_a_busy_hour_are_corrected_by_the_steps_that_decode(planted, real):
    """Wide passes look cheap, or dear. One step in seven is interrupted, and callers take their time between steps."""
    now, kept, number = [0.0], {}, itertools.count()
    sizer = AdaptiveDraftSize(ANY, planted, clock=lambda: now[0], keep=kept.update)
    observe, choose = sizer.observe, sizer.choose

    def timed(size: DraftSize, *step: Any) -> None:
        now[0] += real.step(size) * (100 if next(number) % 7 == 0 else 1)
        observe(size, *step)

    def chosen() -> DraftSize:
        now[0] += 1e3
        return choose()

    sizer.observe, sizer.choose = timed, chosen  # type: ignore[method-assign]
    late, best = simulate(sizer, 0.7, steps=1500)[-300:], brute_force(real, 0.7)
    seconds = [real.step(size) * len(late) for size in (best, *late)]
    worth = [1 + sum(0.7**level for level in range(1, size.depth + 1)) for size in (best, *late)]
    assert sum(worth[1:]) / sum(seconds[1:]) > 0.93 * worth[0] / seconds[0]
    near = [size for size in kept if abs(size.depth - best.depth) <= 1]
    ratios = [planted.step(size) * kept[size] / real.step(size) for size in near]
    assert best in near and len(near) > 1 and max(ratios) < 1.2 * min(ratios)
    again = AdaptiveDraftSize(ANY, planted, clock=lambda: now[0], factors=kept)
    assert again.seconds(best) == sizer.seconds(best), "the next run begins with what this one learned"


def test_fixed_sizes_stay():
    sizer = FixedDraftSize(DraftSize(5, 2))
    assert sizer.choose() == sizer.largest == DraftSize(5, 2)


def test_the_largest_has_room_for_every_candidate():
    sizer = AdaptiveDraftSize([DraftSize(30, 2), DraftSize(8, 6)], FLAT)
    assert sizer.largest == DraftSize(30, 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DraftSize(3, 3), "total_tokens"),
        (lambda: DraftSize(1, -1), "total_tokens"),
        (lambda: AdaptiveDraftSize([], FLAT), "candidates"),
        (lambda: AdaptiveDraftSize(CHAINS, FLAT, prior_rate=1.0), "prior_rate"),
        (lambda: AdaptiveDraftSize(CHAINS, FLAT, expected_lengths=[1.0]), "expected_lengths"),
        (lambda: StepCosts((2, 1), (1.0, 1.0)), "nodes"),
        (lambda: StepCosts((1,), ()), "nodes"),
    ],
)
def test_what_cannot_be_used_is_named(make, message):
    value_error(message, make)
