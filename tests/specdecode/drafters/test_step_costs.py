"""Timing any target: what comes out has the shape that the choice of sizes wants, and the target stays as it was."""

import torch
from synthetic import MarkovTarget, random_table

from specdecode.drafters import draft_size


def test_passes_and_drafting_steps_are_timed_and_nothing_is_kept():
    target = MarkovTarget(random_table(6, 0), torch.tensor([[1, 2], [3, 4]]), 8)
    target.prefill()
    calls: list[int] = []
    costs = draft_size.measure_step_costs(target, (1, 2, 4, 8, 12), lambda: calls.append(1))
    assert costs.nodes == (1, 2, 4, 8, 12)
    assert all(seconds > 0 for seconds in costs.target_seconds) and costs.drafting_step_seconds > 0
    assert list(costs.target_seconds) == sorted(costs.target_seconds)
    assert calls and target.lengths.tolist() == [0, 0]
    assert draft_size.measure_step_costs(target, (1,)).drafting_step_seconds == 0


def test_the_least_of_many_times_counts(monkeypatch):
    """A clock that is disturbed in every round but one."""
    target = MarkovTarget(random_table(6, 0), torch.tensor([[1, 2]]), 8)
    target.prefill()
    now, ticks = 0.0, iter([9.0, 9.0, 7.0, 2.0, *[5.0] * 20])

    def clock() -> float:
        nonlocal now
        clock.calls += 1  # type: ignore[attr-defined]
        now += next(ticks) if clock.calls % 2 == 0 else 0.0  # type: ignore[attr-defined]
        return now

    clock.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(draft_size.time, "perf_counter", clock)
    monkeypatch.setattr(draft_size, "_MOST_SECONDS", 1000.0)
    assert draft_size.measure_step_costs(target, (1,)).target_seconds == (2.0,)


def test_slow_passes_are_timed_once_behind_a_warm_up(monkeypatch):
    target = MarkovTarget(random_table(6, 0), torch.tensor([[1, 2]]), 8)
    target.prefill()
    calls: list[int] = []
    monkeypatch.setattr(draft_size, "_MOST_SECONDS", 0.0)
    assert draft_size.measure_step_costs(target, (1, 4), lambda: calls.append(1)).nodes == (1, 4)
    assert len(calls) == 2
