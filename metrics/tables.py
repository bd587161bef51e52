"""Tables of quality figures in Markdown and LaTeX, from the rows of a scores file.

Belongs here: layout. A figure that was not computed is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    # key, heading, factor, decimals
    ("frechet_distance", "FID", 1.0, 3),
    ("clip_score", "CLIP score", 1.0, 2),
    ("precision", "precision, %", 100.0, 1),
    ("recall", "recall, %", 100.0, 1),
    ("diversity", "diversity", 1.0, 3),
    ("judge_accuracy", "judge, % of claims", 100.0, 1),
    ("judge_prompts", "judge, % of prompts", 100.0, 1),
)


def quality_cells(row: Mapping[str, Any], extractor: str) -> tuple[list[str], list[str]]:
    """Headings and cells of the figures that a row has."""
    headings, cells = [], []
    for key, heading, factor, decimals in COLUMNS:
        if key not in row:
            continue
        if key == "frechet_distance" and not extractor.startswith("inception"):
            heading = f"FID ({extractor} features)"
        headings.append(heading)
        cells.append(format_figure(row[key], factor, decimals))
    decoding = row.get("decoding")
    if decoding:
        headings += ["fewer passes", "accepted"]
        reduction = decoding.get("pass_reduction")
        cells += ["-" if reduction is None else f"{reduction:.2f}x", f"{decoding['mean_accepted_length']:.2f}"]
    return headings, cells


def format_figure(value: Mapping[str, Any] | None, factor: float, decimals: int) -> str:
    """ "12.3 ± 0.4", a dash for None."""
    if value is None:
        return "-"
    text = f"{factor * value['value']:.{decimals}f}"
    if value["interval"] is not None:
        low, high = value["interval"]
        text += f" ± {factor * (high - low) / 2:.{decimals}f}"
    return text


def markdown_quality(rows: Sequence[Mapping[str, Any]], extractor: str) -> str:
    """A Markdown table, one row a method."""
    headings = ["method", "pictures", *quality_cells(rows[0], extractor)[0]]
    body = [[row["method"], f"{row['count']:,}", *quality_cells(row, extractor)[1]] for row in rows]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body])


def latex_quality(rows: Sequence[Mapping[str, Any]], extractor: str) -> str:
    """A LaTeX tabular (booktabs), one row a method."""
    headings = ["method", "pictures", *quality_cells(rows[0], extractor)[0]]
    body = [[row["method"], f"{row['count']:,}", *quality_cells(row, extractor)[1]] for row in rows]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\toprule", _latex_line(headings), r"\midrule"]
    return "\n".join([*lines, *(_latex_line(cells) for cells in body), r"\bottomrule", r"\end{tabular}"])


def _latex_line(cells: Sequence[str]) -> str:
    replaced = [
        cell.replace("%", r"\%").replace("_", r"\_").replace("±", r"$\pm$").replace("x", r"$\times$")
        if cell[:1].isdigit()
        else cell.replace("%", r"\%").replace("_", r"\_")
        for cell in cells
    ]
    return " & ".join(replaced) + r" \\"
