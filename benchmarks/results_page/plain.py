"""Tables of records as they were recorded: a column for each field. Most records need no more.

Belongs here: which records are shown so, their titles, and which of their fields. Does not belong here: tables whose
cells are computed (`pictures.py`, `speed.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from results_page.records import DRAFTER_RUN, TRANSFORMER_RUN, VIDEO_RUN, Record, source_line, table

_LLM = "Videos of the project's own world and its own pair of Video-LLMs. "
TABLES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())
"""Title, whose figures, explanation and fields by record, in the order of the page."""
_PASSES_HERE = "Projection beside this machine's passes of LlamaGen-XL"
ONLY_IN_RECORDS = ("curves", "Launches that were counted", _PASSES_HERE, "settings", "scores", "views")
"""Studies of many rows, which plots and other studies read."""


def plain_section(name: str, record: Any) -> str:
    """A record of `TABLES`, with one table for each of its studies if it has several."""
    told = TABLES[name]
    fields, of = told.get("fields", ()), told.get("of")
    runs = {"random": (), "pair": (VIDEO_RUN,)}.get(of, (TRANSFORMER_RUN, DRAFTER_RUN))
    first = record[0] if isinstance(record, list) else record
    parts = [f"## {told['title']}", ((_LLM if of == "pair" else "") + told.get("text", "")).strip()]
    if isinstance(first.get("studies"), dict):
        for study, own in record["studies"].items():
            if study in ONLY_IN_RECORDS:
                continue
            count = [f"{own['videos']} videos."] if "videos" in own else []
            parts += [f"### {study}", *count, plain_tables(own["rows"], fields), source_line(own, *runs)]
        return "\n\n".join(parts)
    if isinstance(record, list):
        rows = record
    elif "heads" in record:
        rows = [{"name": head, **figures} for head, figures in record["heads"].items()]
    else:
        rows = record.get("rows", [record])
    return "\n\n".join([*parts, plain_tables(rows, fields), source_line(first, *runs)])


def training_section(records: Sequence[Record]) -> str:
    """The training runs behind shipped weights, with their last figures on held-out data."""
    rows = [
        {
            **{name: record[name] for name in ("name", "steps", "samples")},
            "minutes": round(record["seconds"] / 60),
            "held_out": ", ".join(f"{key} {_text(value)}" for key, value in last[1:4]),
            "commit": record["provenance"]["commit"],
        }
        for record in records
        if record["evaluations"] and (last := [*record["evaluations"][-1].items()])
    ]
    return "\n\n".join(["## Training", plain_tables(rows), source_line(records[-1])])


def plain_tables(rows: Sequence[Record], fields: Sequence[str] = ()) -> str:
    """Rows with a column for each field; rows with other fields get a table of their own.

    Fields of a nested record become columns, lists and source records are left out, and fields with the same value in
    every row stand in a line below the table.

    Args:
        rows: what was recorded.
        fields: the fields that are shown, those of nested records as "outer inner"; none: all.
    """
    kinds: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        cells = {name: cell for name, cell in _flat(row).items() if not fields or _shown(name, fields)}
        kinds.setdefault(tuple(cells), []).append(cells)
    parts = []
    for names, alike in kinds.items():
        same = [name for name in names if len(alike) > 1 and len({cells[name] for cells in alike}) == 1]
        columns = [name for name in names if name not in same]
        header = [name.replace("_", " ") for name in columns]
        parts.append(table(header, [[cells[name] for name in columns] for cells in alike]))
        if same:
            words = ", ".join(f"{name.replace('_', ' ')} {alike[0][name]}" for name in same)
            parts.append(f"In every row: {words}.")
    return "\n\n".join(parts)


def _shown(name: str, fields: Sequence[str]) -> bool:
    return name in fields or name.split(" ")[0] in fields


def _flat(row: Record) -> dict[str, str]:
    cells: dict[str, str] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            figure = value.get("value", value.get("accuracy"))
            if "interval" in value and figure is not None:
                ends = value["interval"]
                cells[name] = _text(figure) + (f" ({_text(ends[0])} to {_text(ends[1])})" if ends else "")
            elif name not in ("provenance", "settings"):
                cells |= {f"{name} {inner}": text for inner, text in _flat(value).items()}
        elif "bytes" in name and isinstance(value, int):
            cells[name.replace("bytes", "MiB")] = f"{value / 2**20:,.0f}"
        elif not isinstance(value, list):
            cells[name] = _text(value)
    return cells


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
