"""What every part of the page is made with: records by name, tables of them, and lines that say where they come from.

Belongs here: reading records, markdown. Does not belong here: what any record means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL = "scenes-128"
TRANSFORMER_RUN = f"training_{MODEL}-transformer"
DRAFTER_RUN = f"training_{MODEL}-drafter"
VIDEO_RUN = "training_video-draft-model"
TRAINED = {TRANSFORMER_RUN: "picture model", DRAFTER_RUN: "draft head", VIDEO_RUN: "pair of Video-LLMs"}
"""What each record of a training run is about."""
Record = dict[str, Any]
Cell = str | Callable[[Record], str]
Columns = Mapping[str, Cell]
"""The columns by header: a format over a record's fields, or a function that makes the cell."""


def load(name: str) -> Any:
    """A record by file name without `.json`; None if it was not recorded."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def load_all(pattern: str) -> dict[str, Any]:
    """The records whose file names fit, by name without `.json`, in alphabetical order."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{pattern}.json"))}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def table_of(records: Iterable[Record], columns: Columns) -> str:
    """A Markdown table with one line for each record."""
    cells = [[of.format_map(row) if isinstance(of, str) else of(row) for of in columns.values()] for row in records]
    return table([*columns], cells)


def percent_points(figure: Record) -> str:
    """A difference of shares with its interval, in percentage points."""
    low, high = (100 * bound for bound in figure["interval"])
    return f"{100 * figure['value']:+.1f} ({low:+.1f} to {high:+.1f})"


def yes(name: str) -> Cell:
    """A cell for a field that is true or false."""
    return lambda row: "yes" if row[name] else "no"


def is_of_earlier_model(record: Record, run: str) -> bool:
    """Whether a record is older than the training of the shipped model, so about the model shipped before.

    Args:
        record: any record.
        run: the name of that training's record.
    """
    shipped = load(run)
    return shipped is not None and record["provenance"]["date"] < shipped["provenance"]["date"]


def runs_of(settings: Record) -> tuple[str, ...]:
    """The training runs behind a method with these settings, for `source_line`."""
    return (TRANSFORMER_RUN, DRAFTER_RUN) if "drafter" in settings else (TRANSFORMER_RUN,)


def source_line(record: Record, *runs: str) -> str:
    """Hardware, commit and date of a record.

    Args:
        record: any record.
        runs: the records of the training runs behind it. If other weights ship today, the line says so.
    """
    origin = record["provenance"]
    hardware, libraries = origin["hardware"], origin["libraries"]
    where = hardware["device"] if hardware["device"] != "cpu" else hardware["processor"]
    older = next((TRAINED[run] for run in runs if is_of_earlier_model(record, run)), None)
    earlier = f"**Measured on an earlier {older}.** " if older else ""
    return (
        f"{earlier}<sub>{where}, {hardware['cores']} cores, torch {libraries['torch']}; commit {origin['commit']}, "
        f"{origin['date'][:10]}.</sub>"
    )
