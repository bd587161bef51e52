"""What methods cost: benches, and what `vargen tune` measured.

Belongs here: tables of seconds and passes with computed cells. Does not belong here: what is drawn (`pictures.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from metrics.tables import format_never_verified
from results_page.records import (
    DRAFTER_RUN,
    TRANSFORMER_RUN,
    Columns,
    Record,
    runs_of,
    source_line,
    table_of,
    yes,
)

BENCHES = {
    "bench_batch_1": "One picture at a time",
    "bench_batch_8": "Eight pictures at a time",
    "bench_rows_batch_1": "Rows side by side, one picture at a time",
    "bench_rows_batch_8": "Rows side by side, eight pictures at a time",
    "bench_guided_batch_8": "Guidance of the first tokens alone, eight pictures at a time",
    "bench_rows_256_batch_1": "Rows side by side on 32 by 32 tokens (scenes-256), one picture at a time",
    "bench_weighted": "Beside passes of LlamaGen-XL's size",
    "bench_weighted_24gb": "Beside passes of LlamaGen-XL's size, on an AMD EPYC with AVX-512 whose memory is slower",
    "bench_weighted_256": "Beside passes of LlamaGen-XL's size, 32 by 32 tokens (scenes-256)",
    "bench_weighted_int8": "Beside passes of LlamaGen-XL's size, in int8",
}
"""Headings of the benches on pictures, by record."""


def _judged(row: Record) -> str:
    """What the judge said of a bench's pictures in percent, with its interval."""
    if row["judge_accuracy"] is None:
        return "-"
    low, high = row["judge_accuracy_interval"]
    return f"{100 * row['judge_accuracy']:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def _faster(row: Record) -> str:
    """The speed-up; of fresh processes the median, the worst and the best."""
    return _with_spread(row["speedup"], row.get("speedups", []))


def _decoding_faster(row: Record) -> str:
    """The same of decoding alone, where it was measured."""
    each = row.get("decode_speedups", [])
    return _with_spread(statistics.median(each), each) if each else "-"


def _with_spread(ratio: float, each: list[float]) -> str:
    return f"{ratio:.2f}x" + (f" ({min(each):.2f}-{max(each):.2f})" if len(each) > 1 else "")


def _achieved(row: Record) -> str:
    """Billions of bytes read and of operations done a second, while decoding."""
    achieved = row.get("achieved")
    return f"{achieved['gb_per_second']:.0f} / {achieved['gflop_per_second']:.0f}" if achieved else "-"


def benches_section(records: dict[str, list[Record]]) -> str:
    """Methods side by side, as `vargen bench` measured them."""
    columns: Columns = {
        "method": "{method}",
        "exact": yes("exact"),
        "fewer passes": "{pass_reduction:.2f}x",
        "tokens a pass": "{tokens_per_pass:.2f}",
        "accepted": "{mean_accepted_length:.2f}",
        "never verified": format_never_verified,
        "s a picture, p50 (p90)": "{seconds_per_image[p50]:.2f} ({seconds_per_image[p90]:.2f})",
        "rows fed a picture": lambda row: f"{row['rows_fed'] / row['images']:.0f}" if "rows_fed" in row else "-",
        "faster": _faster,
        "decoding faster": _decoding_faster,
        "GB/s / GFLOP/s": _achieved,
        "claims right, %": _judged,
    }
    parts = [
        "## Decoding methods",
        "Faster: wall clock of whole calls against plain decoding on the same code path; "
        "of fresh processes the median, and the worst and the best of them. Decoding leaves out the prompt and the "
        "pixels. GB/s and GFLOP/s are what decoding reached.",
    ]
    for name, rows in records.items():
        first = rows[0]
        shown = {name: of for name, of in columns.items() if isinstance(of, str) or any(of(row) != "-" for row in rows)}
        heavy = f" Every pass also goes through {first['weighted_by']}." if "weighted_by" in first else ""
        parts += [
            f"### {BENCHES[name]}",
            table_of(rows, shown),
            f"{first['images']} held-out prompts, {first['dtype']}, batch {first['batch_size']}, the same seeds, in "
            f"turns.{heavy} {source_line(first, TRANSFORMER_RUN, DRAFTER_RUN)}",
        ]
    return "\n\n".join(parts)


def fronts_section(records: Iterable[Record]) -> str:
    """What `vargen tune` measured: per method and batch the defaults and every setting on a front.

    Args:
        records: what `vargen tune` wrote to pareto.json.
    """
    parts = [
        "## What settings cost",
        "`vargen tune` on held-out prompts: settings that no other one beats in both seconds and claims right, or in "
        "both passes and claims right, beside the method's defaults. All measured settings of an exact method are "
        "shown. Three points of 64 prompts' claims are within chance.",
    ]
    for record in records:
        measured, default = record["measured"], record["measured"][0]["settings"]  # every search begins there
        alike = len({point["quality"] for point in measured}) == 1
        kept = [point["settings"] for point in record["front"]] + [default]
        kept += [point["settings"] for point in _front_of_passes(measured)]
        columns: Columns = {
            "faster": "{speedup:.2f}x",
            "fewer passes": "{pass_reduction:.2f}x",
            "never verified": "{never_verified:.0%}",
            "claims right": "{quality:.1%}",
            "settings": lambda point, default=default: _differences(point["settings"], default),
        }
        shown = [point for point in measured if alike or point["settings"] in kept]
        parts += [
            f"### `{default['method']}`, batch {record['batch_size']}",
            table_of(sorted(shown, key=lambda point: -point["speed"]), columns),
            f"{record['trials']} settings, {record['prompts']} prompts; plain decoding: {record['plain_quality']:.1%} "
            f"of claims. {source_line(record, *runs_of(default))}",
        ]
    return "\n\n".join(parts)


def _front_of_passes(measured: Iterable[Record]) -> list[Record]:
    """Settings that nothing with as few passes beats in quality, fewest passes first."""
    front: list[Record] = []
    for point in sorted(measured, key=lambda point: (-point["pass_reduction"], -point["quality"])):
        if not front or point["quality"] > front[-1]["quality"]:
            front.append(point)
    return front


def _differences(settings: Record, default: Record) -> str:
    """The settings that differ from the method's defaults."""
    changed = {name: value for name, value in settings.items() if value != default.get(name)}
    words = {name: f"{value:.2f}" if isinstance(value, float) else value for name, value in changed.items()}
    return ", ".join(f"{name} {word}" for name, word in words.items()) or "**defaults**"
