"""The table of `vargen tune`'s fronts says what was measured, and where the method as it comes lies."""

from __future__ import annotations

from typing import Any

from results_page.speed import fronts_section

from metrics.provenance import provenance


def point(window: int, speed: float, quality: float, unverified: float = 0.0) -> dict[str, Any]:
    settings = {"method": "m", "window": window, "survival": 0.25 if window > 8 else 0.0}
    told = {"speedup": speed, "pass_reduction": 2 * speed, "never_verified": unverified}
    return {"speed": speed, "quality": quality, **told, "settings": settings}


def table_of(front: list[dict[str, Any]], measured: list[dict[str, Any]]) -> list[str]:
    record = {"front": front, "measured": measured, "batch_size": 8, "prompts": 64, "trials": len(measured)}
    text = fronts_section([{**record, "plain_quality": 0.9, "provenance": provenance()}])
    assert "### `m`, batch 8" in text and "plain decoding: 90.0 % of claims" in text
    return [line for line in text.splitlines() if line.startswith("| ") and "speed-up" not in line]


def test_seconds_and_passes_have_a_front_each() -> None:
    """A setting that needs fewer passes and more seconds lies on one of them."""
    usual, frugal = point(8, 1.5, 0.9), point(32, 0.5, 0.8)
    worse = {**point(16, 0.4, 0.7), "pass_reduction": 3.5}
    frugal["pass_reduction"] = 4.0
    by_seconds, by_passes = table_of([usual], [usual, frugal, worse])[:1], table_of([usual], [usual, frugal, worse])[1:]
    assert [line.split(" | ")[-1] for line in by_seconds] == ["**as it comes** |"]
    assert [line.split(" | ")[-1] for line in by_passes] == ["window 32, survival 0.25 |", "**as it comes** |"]


def test_a_front_and_the_usual_settings_are_shown_the_fastest_first() -> None:
    usual, beaten, fast = point(8, 1.0, 0.8), point(4, 0.9, 0.7), point(16, 1.5, 0.8, 0.3)
    assert table_of([fast], [usual, beaten, fast])[:2] == [
        "| 1.50x | 3.00x | 30 % | 80.0 | window 16, survival 0.25 |",
        "| 1.00x | 2.00x | 0 % | 80.0 | **as it comes** |",
    ]


def test_of_an_exact_method_every_window_is_shown() -> None:
    usual, slow = point(8, 1.0, 0.9), point(4, 0.5, 0.9)
    assert [line.split(" | ")[-1] for line in table_of([usual], [usual, slow])] == ["**as it comes** |", "window 4 |"]
