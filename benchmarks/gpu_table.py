"""The records of `gpu.sh` as one table: plain decoding and each method, operation by operation and captured.

    python benchmarks/gpu_table.py benchmarks/results/gpu      # prints it, and writes table.md and table.json there

Seconds are of a picture, or of an answer's whole call, as medians. A captured step is one graph. What a part lacks, or
could not do, is a dash. GB/s are the weights that decoding read a second, of the faster way; peak memory is its too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metrics.provenance import write_result
from metrics.tables import format_ratio, markdown_table

HEADER = ("model", "batch", "method", "passes", "plain eager", "plain captured", "eager", "captured")
MORE = ("over plain captured", "GB/s", "GiB")


def seconds(row: dict[str, Any] | None) -> float | None:
    """The median seconds of a picture or an answer."""
    told = None if row is None else row.get("seconds_per_image") or row.get("seconds_per_answer")
    return None if told is None else told["p50"]


def table_rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each model, batch and method that was measured in either way."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*_*_*/results.json")):
        size, batch, steps = path.parent.name.split("_")
        rows = {row["method"]: row for row in json.loads(path.read_text())}
        found.setdefault((size, int(batch)), {})[steps] = rows
    made = []
    for (size, number), ways in found.items():
        eager, captured = (ways.get(name, {}) for name in ("eager", "captured"))
        for method in dict.fromkeys((*eager, *captured)):
            both = eager.get(method), captured.get(method)
            told = [seconds(row) for row in (eager.get("ar"), captured.get("ar"), *both)]
            best: Any = min((row for row in both if row), key=lambda row: seconds(row) or 0.0)
            cells = {"passes": best["target_passes"], **dict(zip(HEADER[4:], told, strict=True))}
            ratio = told[1] / told[3] if told[1] and told[3] else None
            achieved = best.get("achieved") or {}
            figures = (ratio, achieved.get("gb_per_second"), best.get("peak_memory_gib"))
            named = {"model": size, "batch": number, "method": method, "provenance": best["provenance"]}
            made.append({**named, **cells, **dict(zip(MORE, figures, strict=True))})
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    rows = table_rows(folder)
    if not rows:
        print("nothing was measured")
        return
    cells = [
        [
            *(str(row[name]) for name in HEADER[:4]),
            *("-" if row[name] is None else f"{row[name]:.3f}" for name in HEADER[4:]),
            format_ratio(row[MORE[0]]),
            *("-" if row[name] is None else f"{row[name]:,.1f}" for name in MORE[1:]),
        ]
        for row in rows
    ]
    hardware = rows[0]["provenance"]["hardware"]
    place = hardware["processor"] if hardware["device"] == "cpu" else hardware["device"]
    text = f"Measured on {place}, torch {rows[0]['provenance']['libraries']['torch']}; seconds.\n\n"
    text += markdown_table((*HEADER, *MORE), cells) + "\n"
    print(text)
    (folder / "table.md").write_text(text)
    write_result(folder / "table.json", {"rows": rows})


if __name__ == "__main__":
    main()
