"""Lengths of copies: by matching tokens, by what was accepted, and by what columns cost."""

from collections.abc import Iterator

import language_models
import pytest
import torch
from language_models import ragged_prompts

import specdecode
from specdecode.drafters.lookup_draft_length import LENGTHS, LookupDraftLength


def settled(row_cost: float = 0.08, longest: int = 16) -> LookupDraftLength:
    return LookupDraftLength(longest, row_cost, clock=None)


def test_more_matching_tokens_make_longer_copies():
    sizer = settled()
    lengths = [sizer.choose([matched]) for matched in range(1, 10)]
    assert lengths == sorted(lengths) and lengths[0] <= 2 and lengths[-1] == 16 and len(set(lengths)) > 3
    assert sizer.choose([]) == sizer.choose([0]) == sizer.choose([0, 0]) == 0


def test_dearer_columns_make_shorter_copies():
    lengths = [settled(cost).choose([3]) for cost in (0.001, 0.05, 0.2, 0.9)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == 16 and lengths[-1] == 0


def test_the_length_is_the_best_of_all():
    """Against the sum, level by level."""
    for cost in (0.03, 0.08, 0.3):
        sizer = settled(cost)
        for matched in ([1], [4], [8], [1, 8], [0, 0, 0, 5], [2, 3, 7, 1]):
            rates = [sizer.rate(count) for count in matched if count]

            def worth(length: int, rates: list[float] = rates, rows: int = len(matched), cost: float = cost) -> float:
                levels = range(1, length + 1)
                return (rows + sum(rate**level for rate in rates for level in levels)) / (1 + cost * length)

            best = max(worth(length) for length in LENGTHS)
            assert worth(sizer.choose(matched)) == pytest.approx(best)


def test_rates_follow_what_is_accepted():
    sizer, one = settled(), torch.ones(1, dtype=torch.int64)
    for _ in range(30):
        sizer.observe(3 * one, 8 * one, 0 * one)
        sizer.observe(12 * one, 8 * one, 8 * one)  # counts as the most that make a difference
        sizer.observe(0 * one, 0 * one, 0 * one)
    assert sizer.rate(3) < 0.2 < 0.7 < sizer.rate(4) and sizer.rate(8) > 0.98
    assert sizer.choose([3]) <= 1 and sizer.choose([8]) == 16


def seconds(*steps: float) -> Iterator[float]:
    now = 0.0
    yield now
    for step in steps:
        now += step
        yield now


@pytest.mark.parametrize("cost", [0.01, 0.05, 0.25])
def test_costs_follow_the_clock(cost):
    columns = [0, 4, 8, 0, 16, 2, 8, 1] * 12
    steps = [0.02 * (1 + cost * count) for count in columns]
    steps[17] = 9.0  # the process was suspended
    clock = seconds(*steps)
    sizer = LookupDraftLength(clock=lambda: next(clock))
    for count in columns:
        sizer.begin(count)
    assert sizer.row_cost() == pytest.approx(cost, rel=0.35, abs=0.015)
    sizer.start()  # nothing is timed from one batch to the next
    before = sizer.row_cost()
    sizer.begin(3)
    assert sizer.row_cost() == before
    assert LookupDraftLength().row_cost() == 0.05 and LookupDraftLength(3).choose([8]) == 3


def test_tokens_do_not_depend_on_lengths():
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(2)
    options = {"attention_mask": prompts[1], "max_new_tokens": 40}
    wanted = specdecode.generate(model, prompts[0], method="ar", **options)  # type: ignore[arg-type]
    passes = set()
    for cost in (0.0051, 0.08, 0.9):
        made = []

        class Sizer(LookupDraftLength):
            def __init__(self, longest: int, cost: float = cost, made: list[object] = made) -> None:
                super().__init__(longest, cost, clock=None)
                made.append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(specdecode.generate.__globals__, "LookupDraftLength", Sizer)
            for temperature in (0.0, 0.8):
                seeds = [torch.Generator().manual_seed(seed) for seed in (1, 2, 3)]
                drawn = {**options, "temperature": temperature, "generator": seeds}
                result = specdecode.generate(model, prompts[0], **drawn)  # type: ignore[arg-type]
                if temperature == 0:
                    assert torch.equal(result.sequences, wanted.sequences)
                    passes.add(result.trace.target_passes)
                    assert result.trace.target_passes <= 40
        assert len(made) == 2
    assert len(passes) > 1
