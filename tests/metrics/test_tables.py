"""Cells of tables for people: intervals of differences, ratios of several processes, and whether anything gains."""

from typing import Any

from metrics.speculation import CallRecord, summarise
from metrics.tables import format_figure, format_table, nothing_gains


def row(method: str, **other: Any) -> dict[str, Any]:
    summary = summarise([CallRecord(2.0, 1, 10, 5, 5, 4, [0, 2], skipped_tokens=1)])
    return {"method": method, "exact": True, **summary, "judge_accuracy": None, **other}


def test_an_interval_that_goes_below_zero_is_not_read_as_a_range_of_minuses():
    share = {"value": -0.01, "interval": [-0.032, 0.012]}
    assert format_figure(share, 100, 1) == "-1.0 (-3.2 to 1.2)"
    assert format_figure({"value": 0.9, "interval": [0.85, 0.95]}, 100, 1) == "90.0 (85.0-95.0)"
    assert format_figure({"value": 3.0, "interval": [2.0, 5.0]}, 1, 2) == "3.00 ± 1.50"
    assert format_figure(None, 1, 2) == "-"


def test_several_processes_are_told_from_the_worst_to_the_best():
    several = row("jacobi", speedup=1.5, speedups=[1.25, 1.5, 2.0], judge_accuracy=0.875)
    header, _, cells = format_table([several]).splitlines()
    assert "speed-up, worst / median / best" in header and "| 1.25x / 1.50x / 2.00x " in cells
    assert "| 87.5 % | 10 % " in cells, "quality stands beside the speed, before all others"


def test_nothing_gains_where_no_other_method_is_faster():
    plain = {"method": "ar", "speedup": 1.0}
    assert nothing_gains([plain, {"method": "sjd", "speedup": 1.01}]) is None
    assert nothing_gains([plain]) is None and nothing_gains([plain, {"method": "sjd", "speedup": None}]) is None
    assert '"ar", is the fastest' in str(nothing_gains([plain, {"method": "sjd", "speedup": 0.9}]))
