"""The table of `vargen tune`'s fronts says what was measured, and where the method's defaults lie."""

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
    assert "### `m`, batch 8" in text and "plain decoding: 90.0% of claims" in text
    return [line for line in text.splitlines() if line.startswith("| ") and "faster" not in line]


def test_settings_on_either_front_are_shown_and_others_are_not() -> None:
    """A setting that needs fewer passes and more seconds lies on one of the fronts, and is shown."""
    usual, frugal = point(8, 1.5, 0.9), {**point(32, 0.5, 0.8), "pass_reduction": 4.0}
    worse = {**point(16, 0.4, 0.7), "pass_reduction": 3.5}
    lines = table_of([usual], [usual, frugal, worse])
    assert [line.split(" | ")[-1] for line in lines] == ["**defaults** |", "window 32, survival 0.25 |"]


def test_the_fastest_stands_first() -> None:
    usual, beaten, fast = point(8, 1.0, 0.8), point(4, 0.9, 0.7), point(16, 1.5, 0.8, 0.3)
    assert table_of([fast], [usual, beaten, fast]) == [
        "| 1.50x | 3.00x | 30% | 80.0% | window 16, survival 0.25 |",
        "| 1.00x | 2.00x | 0% | 80.0% | **defaults** |",
    ]


def test_of_an_exact_method_every_window_is_shown() -> None:
    usual, slow = point(8, 1.0, 0.9), point(4, 0.5, 0.9)
    assert [line.split(" | ")[-1] for line in table_of([usual], [usual, slow])] == ["**defaults** |", "window 4 |"]
