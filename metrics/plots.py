"""Plots of recorded figures. Needs matplotlib, which the `eval` and `demo` extras bring; nothing else here does."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from metrics.tables import COLUMNS, quality_heading


def plot_tradeoff(rows: Sequence[Mapping[str, Any]], title: str = "") -> bytes:
    """The judge's accuracy against the speed-up, one labelled point a method, as PNG.

    Args:
        rows: one mapping a method, with "method", "speedup", "judge_accuracy" and optionally "exact" (filled markers)
            and "judge_accuracy_interval" (low, high). Rows that lack one of the two figures are left out.
        title: of the plot.

    Raises:
        ValueError: no row has both figures.
        ModuleNotFoundError: matplotlib is not installed.
    """
    speed, quality = "speedup", "judge_accuracy"
    points = [row for row in rows if row.get(speed) is not None and row.get(quality) is not None]
    if not points:
        raise ValueError(f"rows: none has both {speed!r} and {quality!r}")
    figure = _figure(7.0, 4.6)
    axes = figure.add_subplot()
    speeds = [row[speed] for row in points]
    middle = (min(speeds) + max(speeds)) / 2
    for number, row in enumerate(sorted(points, key=lambda row: row[speed])):
        exact = bool(row.get("exact"))
        colour = "#1f5fa8" if exact else "#c2571a"
        if interval := row.get(f"{quality}_interval"):
            axes.vlines(row[speed], *interval, color=colour, alpha=0.3, linewidth=1.5)
        axes.plot(row[speed], row[quality], "o", markersize=7, color=colour, markerfacecolor=colour if exact else "w")
        outer = row[speed] > middle  # its name goes inwards, or it would leave the frame
        axes.annotate(
            str(row["method"]),
            (row[speed], row[quality]),
            xytext=(-6 if outer else 6, -12 if number % 2 else 5),  # neighbours above and below
            ha="right" if outer else "left",
            textcoords="offset points",
            fontsize=8,
        )
    axes.axvline(1.0, color="0.7", linewidth=0.8, linestyle=":")
    axes.set_xlabel("speed-up over plain decoding (wall clock)")
    axes.set_ylabel("judge accuracy")
    axes.plot([], [], "o", color="#1f5fa8", label="exact")
    axes.plot([], [], "o", color="#c2571a", markerfacecolor="w", label="relaxed")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    axes.margins(x=0.14, y=0.12)
    axes.grid(alpha=0.25)
    if title:
        axes.set_title(textwrap.fill(title, 80), fontsize=10)
    return _png(figure)


def plot_studies(
    studies: Mapping[str, Sequence[tuple[str, float, Mapping[str, Any]]]], *, speed_label: str, quality_label: str
) -> bytes:
    """Quality against speed as a setting is turned, one panel a study, all on the same axes, as PNG.

    Args:
        studies: by name, in the order the setting is turned: its label, the speed, and the quality as
            `metrics.proportion.Proportion.to_dict` gives it.
        speed_label, quality_label: what the axes are called.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import colormaps

    across = 3
    down = math.ceil(len(studies) / across)
    figure = _figure(10.0, 3.2 * down)
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes, (name, rows) in zip(panels, studies.items(), strict=False):
        for number, (label, speed, quality) in enumerate(rows):
            colour = colormaps["viridis"](number / max(len(rows), 2))
            axes.vlines(speed, *quality["interval"], color=colour, alpha=0.35)
            axes.plot(speed, quality["accuracy"], "o", markersize=6, color=colour, label=label)
        axes.legend(frameon=False, fontsize=7, loc="lower right", handletextpad=0.2, labelspacing=0.3)
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8, labelbottom=True)
        axes.margins(x=0.1)
        axes.grid(alpha=0.25)
    for axes in panels[len(studies) :]:
        axes.remove()
    figure.supxlabel(speed_label, fontsize=9)
    figure.supylabel(quality_label, fontsize=9)
    return _png(figure, 110)


def plot_quality(rows: Sequence[Mapping[str, Any]], extractor: str) -> bytes:
    """Every quality figure side by side, one panel a figure and one bar a method with its interval, as PNG.

    Args:
        rows: as `scores.json` of an evaluation holds them.
        extractor: features of the Frechet distance, by the name in the protocol.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    panels = [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    across = min(len(panels), 4)  # more are too narrow to read
    down = math.ceil(len(panels) / across)
    figure = _figure(2.8 * across, (1.4 + 0.34 * len(rows)) * down)
    names = [row["method"] for row in rows][::-1]
    for number, (key, heading, factor, _) in enumerate(panels):
        axes = figure.add_subplot(down, across, number + 1)
        for place, row in enumerate(rows[::-1]):
            cell = row.get(key)
            if cell is None:
                continue
            value = factor * cell["value"]
            axes.plot(value, place, "o", color="#1f5fa8")
            if cell["interval"] is not None:
                axes.hlines(place, *(factor * each for each in cell["interval"]), color="#1f5fa8", alpha=0.4)
        axes.set_yticks(range(len(names)), names if number % across == 0 else [""] * len(names), fontsize=8)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_title(textwrap.fill(quality_heading(key, heading, extractor), 24), fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(axis="x", alpha=0.25)
    return _png(figure)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # inches
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Any, dpi: int = 130) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
