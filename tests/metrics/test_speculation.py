"""Figures of speculative decoding, against numbers worked out by hand."""

import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raised

from metrics import speculation


def call(seconds: float, accepted: list[list[int]], skipped: int = 0) -> speculation.CallRecord:
    """A call whose rows each took one prefill and a verified step for every entry."""
    steps = max(len(row) for row in accepted)
    lengths = [len(row) for row in accepted]
    tokens = sum(1 + sum(length + 1 for length in row) for row in accepted) + skipped
    trace: dict[str, Any] = {"batch_size": len(accepted), "tokens": tokens, "drafted": 10, "accepted_lengths": accepted}
    trace |= {"target_passes": 1 + steps, "row_passes": [1 + each for each in lengths], "rows_fed": lengths}
    trace |= {"padding_fed": steps * len(accepted) - sum(lengths), "phase_seconds": {"decode": seconds / 2}}
    trace |= {"skipped_steps": int(skipped > 0), "skipped_tokens": skipped}
    return speculation.CallRecord.from_trace(trace, seconds)


def test_figures_by_hand():
    plain = [call(2.0, [[0] * 7]), call(4.0, [[0] * 7])]
    fast = [call(1.0, [[2, 0, 2]]), call(2.0, [[1, 2]], skipped=2)]
    summary = speculation.summarise(fast, plain)
    assert summary["images"] == 2 and summary["tokens"] == 8 + 8
    assert summary["target_passes"] == 4 + 3 and summary["pass_reduction"] == pytest.approx(16 / 7)
    assert summary["accepted_histogram"] == [1, 1, 3]
    assert summary["mean_accepted_length"] == pytest.approx(7 / 5)
    assert summary["mean_accepted_length_with_bonus"] == pytest.approx(12 / 5)
    assert summary["peak_memory_gib"] is None
    assert summary["tokens_per_pass"] == pytest.approx(16 / 7)
    assert (summary["drafted"], summary["skipped_steps"], summary["skipped_tokens"]) == (20, 1, 2)
    assert summary["rows_fed"] == 3 + 2
    assert summary["seconds_per_image"] == {"p50": 1.5, "p90": pytest.approx(1.9)}
    assert summary["speedup"] == pytest.approx(3.0 / 1.5)
    assert summary["phase_seconds"] == {"decode": 1.5}


def test_a_batch_counts_its_passes_once_and_its_rows_each():
    summary = speculation.summarise([call(3.0, [[1, 1], [3]])])
    assert summary["target_passes"] == 3
    assert summary["tokens_per_pass"] == pytest.approx((5 + 5) / (3 + 2))
    assert speculation.seconds_per_image([call(3.0, [[1, 1], [3]])]) == [1.5, 1.5]
    assert summary["speedup"] is None and summary["pass_reduction"] is None


def test_memory_is_that_of_the_hungriest_call():
    calls = [replace(call(1.0, [[1]]), peak_memory=gib and gib * 2**30) for gib in (2, 5, None, 3)]
    assert speculation.summarise(calls)["peak_memory_gib"] == 5


def test_only_the_same_pictures_are_compared():
    raised(ValueError, "same pictures", speculation.summarise, [call(1.0, [[1]])], [call(1.0, [[0]]), call(1.0, [[0]])])
    raised(ValueError, "at least one", speculation.summarise, [])


def test_records_survive_json():
    record = call(1.0, [[2, 0]])
    assert speculation.CallRecord(**record.to_dict()) == record


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_percentiles_are_those_of_the_standard_library(values):
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    assert speculation.percentile(values, 90) == pytest.approx(tenths[-1], abs=1e-6)
    assert speculation.percentile(values, 50) == statistics.median(values)
    assert speculation.percentile(values, 0) == min(values) and speculation.percentile(values, 100) == max(values)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_survival_by_place_is_what_the_accepted_lengths_say(histogram):
    lengths = [length for length, count in enumerate(histogram) for _ in range(count)]
    survival = speculation.survival_by_place(histogram)
    assert survival == [sum(n >= k for n in lengths) / max(len(lengths), 1) for k in range(1, len(histogram))]
    assert sum(survival) == pytest.approx(sum(lengths) / max(len(lengths), 1))


def test_passes_of_pictures_that_wait_for_nobody_are_their_mean():
    pictures = [call(1.0, [[0] * steps]) for steps in (3, 9)]
    together = speculation.CallRecord.of_pictures(pictures)
    assert (together.target_passes, together.row_passes, together.images) == (7, 14, 2)
    assert speculation.CallRecord.of_pictures(pictures, waiting=True).target_passes == 10, "the slowest one's"


def test_what_a_pass_reads_and_a_row_multiplies():
    # In two seconds three passes, three rows, one of padding.
    summary = speculation.summarise([call(4.0, [[1, 1], [3]])])
    assert speculation.achieved(summary, 2 * 10**9, 10**9, 2) == {"gb_per_second": 3.0, "gflop_per_second": 8.0}
    assert speculation.achieved({**summary, "phase_seconds": {}}, 1, 1, 1) is None


def test_several_processes_are_told_from_the_worst_to_the_best():
    def row(name: str, seconds: float, speedup: float) -> dict[str, object]:
        measured = {"seconds_per_image": {"p50": seconds, "p90": seconds}, "phase_seconds": {"decode": seconds - 0.5}}
        return {"method": name, "speedup": speedup, **measured}

    def rows(plain: float, fast: float) -> list[dict[str, object]]:
        return [row("ar", plain, 1.0), row("fast", fast, plain / fast)]

    plain, fast = speculation.over_processes([rows(4.0, 1.0), rows(1.0, 2.0), rows(3.0, 1.5)])
    assert fast["speedups"] == [0.5, 2.0, 4.0] and fast["speedup"] == 2.0
    assert fast["seconds_per_image"]["p50"] == 1.5 and plain["speedups"] == [1.0, 1.0, 1.0]
    assert fast["decode_speedups"] == [0.5 / 1.5, 2.5, 7.0] and plain["decode_speedups"] == [1.0, 1.0, 1.0]
