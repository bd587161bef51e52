"""Tables of figures in Markdown and LaTeX, from the rows of scores files and comparisons.

Belongs here: layout. A figure that was not computed is a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    # key, heading, factor, decimals
    ("frechet_distance", "FID", 1.0, 3),
    ("spatial_distance", "sFID", 1.0, 3),
    ("inception_score", "Inception Score", 1.0, 2),
    ("clip_score", "CLIP score", 1.0, 2),
    ("hps", "HPS", 1.0, 2),
    ("precision", "precision, %", 100.0, 1),
    ("recall", "recall, %", 100.0, 1),
    ("density", "density", 1.0, 3),
    ("coverage", "coverage, %", 100.0, 1),
    ("diversity", "diversity", 1.0, 3),
    ("judge_accuracy", "judge, % of claims", 100.0, 1),
    ("judge_prompts", "judge, % of prompts", 100.0, 1),
    ("rest_accuracy", "judge, % of claims about what is drawn", 100.0, 1),
    ("kept", "known pixels kept, % of pictures", 100.0, 1),
    ("known_error", "error of known pixels", 1.0, 2),
    ("drawn_error", "change of drawn pixels", 1.0, 2),
    ("log_likelihood", "log-likelihood", 1.0, 1),
)


def quality_heading(key: str, heading: str, extractor: str) -> str:
    """The heading of a column: a Frechet distance is called FID only where its features are Inception's."""
    if key == "frechet_distance" and not extractor.startswith("inception"):
        return f"Frechet distance ({extractor} features)"
    return heading


def format_never_verified(row: Mapping[str, Any]) -> str:
    """The share of tokens that no verification step saw: "28 %"."""
    return f"{100 * row['skipped_tokens'] / row['tokens']:.0f} %"


def format_figure(value: Mapping[str, Any] | None, factor: float, decimals: int) -> str:
    """ "12.3 ± 0.4"; of shares and their differences, in percent by `factor` 100, "99.1 (97.2-99.7)"; a dash for None.

    The interval of a share is not symmetric: a symmetric one around 99 % would end above 100 %.
    """
    if value is None:
        return "-"
    text = f"{factor * value['value']:.{decimals}f}"
    if value["interval"] is None:
        return text
    low, high = (factor * end for end in value["interval"])
    if factor == 100:
        return f"{text} ({low:.{decimals}f}{'-' if low >= 0 else ' to '}{high:.{decimals}f})"
    return f"{text} ± {(high - low) / 2:.{decimals}f}"


def _quality_table(rows: Sequence[Mapping[str, Any]], extractor: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table, one row a method, without figures that none of them has."""
    columns = [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    headings = ["method", "pictures", *(quality_heading(key, heading, extractor) for key, heading, *_ in columns)]
    headings += ["fewer passes", "accepted", "never verified"] if rows[0].get("decoding") else []
    body = []
    for row in rows:
        cells = [format_figure(row.get(key), factor, decimals) for key, _, factor, decimals in columns]
        if decoding := row.get("decoding"):
            cells += [format_ratio(decoding.get("pass_reduction")), f"{decoding['mean_accepted_length']:.2f}"]
            cells.append(format_never_verified(decoding))
        body.append([row["method"], f"{row['count']:,}", *cells])
    return headings, body


def markdown_quality(rows: Sequence[Mapping[str, Any]], extractor: str) -> str:
    """A Markdown table, one row a method."""
    headings, body = _quality_table(rows, extractor)
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body])


GROUP_COLUMNS = (
    ("shown", "as asked, %", 100.0, 1),
    ("questions", "questions, %", 100.0, 1),
    ("clip_score", "CLIP score", 1.0, 2),
    ("hps", "HPS", 1.0, 2),
    ("judge_prompts", "judge, % of prompts", 100.0, 1),
)


def markdown_groups(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables of a benchmark's groups, one a kind of group, a row a group and method; then its own figures."""
    parts = []
    for kind, groups in rows[0]["groups"].items():
        columns = [column for column in GROUP_COLUMNS if column[0] in next(iter(groups.values()))]
        body = [
            [
                name,
                row["method"],
                f"{group['count']:,}",
                *(format_figure(group[key], factor, decimals) for key, _, factor, decimals in columns),
            ]
            for name in groups
            for row in rows
            for group in (row["groups"][kind][name],)
        ]
        parts.append(markdown_table([kind, "method", "pictures", *(column[1] for column in columns)], body))
    for name, figures in BENCHMARK_FIGURES.items():
        if name in rows[0]:
            told = [
                [row["method"], *(format_figure(figure, 100.0, 1) for figure in figures(row[name]).values())]
                for row in rows
            ]
            parts.append(markdown_table(["method", *figures(rows[0][name])], told))
    return "\n\n".join(parts)


BENCHMARK_FIGURES: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "geneval": lambda told: {
        "mean over tasks, %": told["overall"],
        "pictures, %": told["pictures"],
        "prompts, %": told["prompts"],
    },
    "dpg": lambda told: {
        "score, %": told["score"],
        **{f"{name}, %": each for name, each in told["categories"].items()},
    },
}


def latex_quality(rows: Sequence[Mapping[str, Any]], extractor: str) -> str:
    """A LaTeX tabular (booktabs), one row a method."""
    headings, body = _quality_table(rows, extractor)
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\toprule", _latex_line(headings), r"\midrule"]
    return "\n".join([*lines, *(_latex_line(cells) for cells in body), r"\bottomrule", r"\end{tabular}"])


def _latex_line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("%", r"\%").replace("_", r"\_") for cell in cells]
    numbers = [each.replace("±", r"$\pm$").replace("x", r"$\times$") for each in escaped]
    return " & ".join(b if b[:1].isdigit() else a for a, b in zip(escaped, numbers, strict=True)) + r" \\"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of a comparison on pictures as a Markdown table for people."""
    several = any("speedups" in row for row in rows)
    judged = any(row["judge_accuracy"] is not None for row in rows)
    scored = any(row.get("clip_score") is not None for row in rows)
    compared = [row["extractor"] for row in rows if row.get("frechet_distance") is not None][:1]
    header = ["method", "exact", "fewer", "speed-up, worst / median / best" if several else "speed-up"]
    header += (["judge"] if judged else []) + (["CLIP score"] if scored else [])
    header += [quality_heading("frechet_distance", "FID", name) for name in compared]
    header += ["never verified", "passes", "rows fed", "tokens/pass", "accepted", "s/image", "p90", "GB/s", "GFLOP/s"]
    cells = [
        [
            row["method"],
            "yes" if row["exact"] else "no",
            format_ratio(row["pass_reduction"]),
            _speedups(row),
            *([f"{100 * row['judge_accuracy']:.1f} %"] if judged else []),
            *([f"{row['clip_score']:.2f}"] if scored else []),
            *([f"{row['frechet_distance']:.2f}"] if compared else []),
            format_never_verified(row),
            f"{row['target_passes']:,}",
            f"{row['rows_fed']:,}",
            f"{row['tokens_per_pass']:.2f}",
            f"{row['mean_accepted_length']:.2f}",
            f"{row['seconds_per_image']['p50']:.3f}",
            f"{row['seconds_per_image']['p90']:.3f}",
            *(_achieved(row, name) for name in ("gb_per_second", "gflop_per_second")),
        ]
        for row in rows
    ]
    return markdown_table(header, cells)


def _speedups(row: Mapping[str, Any]) -> str:
    each = row.get("speedups")
    return " / ".join(map(format_ratio, (each[0], row["speedup"], each[-1]) if each else (row["speedup"],)))


def _achieved(row: Mapping[str, Any], name: str) -> str:
    return f"{row['achieved'][name]:,.0f}" if row.get("achieved") else "-"


def nothing_gains(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """One line where plain decoding is as fast as every method; None where one gains, or nothing is compared."""
    others = [row["speedup"] for row in rows if row["method"] != "ar" and row["speedup"] is not None]
    if not others or max(others) > 1:
        return None
    return 'no method gains here: plain decoding, "ar", is the fastest'


def format_ratio(value: float | None) -> str:
    """A ratio for people; "-" for None."""
    return "-" if value is None else f"{value:.2f}x"


def format_video_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of a comparison on videos as a Markdown table for people."""
    # Without a judge, agreement with plain decoding stands for quality.
    judged = any(row["caption_accuracy"] is not None for row in rows)
    quality = {"accuracy": "caption_accuracy", "retention": "retention"} if judged else {"agreement": "agreement"}
    header = ["method", "exact", "passes", "tokens/pass", "accepted", "decode", "end to end", "relaxed"]
    cells = [
        [
            row["method"],
            "yes" if row["exact"] else "no",
            f"{row['target_passes']:,}",
            f"{row['tokens_per_pass']:.2f}",
            f"{row['mean_accepted_length']:.2f}",
            format_ratio(row["decode_speedup"]),
            format_ratio(row["end_to_end_speedup"]),
            f"{100 * row['relaxed_share']:.1f} %",
            *("-" if row[name] is None else f"{100 * row[name]:.1f} %" for name in quality.values()),
        ]
        for row in rows
    ]
    return markdown_table([*header, *quality], cells)
