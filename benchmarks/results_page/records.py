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
PICKS_RUN = "bench_picks"
TRANSFORMER_RUN = f"training_{MODEL}-transformer"
DRAFTER_RUN = f"training_{MODEL}-drafter"
VIDEO_RUN = "training_video-llm"
TRAINED = {TRANSFORMER_RUN: "picture model", DRAFTER_RUN: "drafter", VIDEO_RUN: "pair"}
"""What a record of training is of."""
TITLES = {
    "bench_batch_1": "One picture at a time",
    "bench_batch_8": "Eight pictures at a time",
    "bench_picks": "README's methods, one picture at a time",
    "bench_weighted": "Beside passes of LlamaGen-XL's size",
    "bench_weighted_int8": "Beside passes of LlamaGen-XL's size, in int8",
    "bench_video": "Answers about videos, greedy",
    "bench_video_all_methods": "Answers about videos, every method",
    "bench_video_sampled": "Answers about videos, sampled",
}
"""Of the benches' sections, by record."""
Record = dict[str, Any]
Columns = Mapping[str, str | Callable[[Record], str]]
"""By header: a format over a record's fields, or what makes a cell of it."""


def load(name: str) -> Any:
    """A record by file name without `.json`; None if nobody recorded it."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def load_all(pattern: str) -> dict[str, Any]:
    """The records whose file names fit, by name without `.json`, in their order."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{pattern}.json"))}


def load_evaluations() -> dict[str, list[Record]]:
    """The scores of every recorded evaluation, by file name, the largest first."""
    return dict(sorted(load_all("evaluation_*").items(), key=lambda item: -item[1][0]["count"]))


def bench_title(name: str) -> str:
    """The heading of a bench's section."""
    return f"### {TITLES.get(name, name.removeprefix('bench_').replace('_', ' '))}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def table_of(records: Iterable[Record], columns: Columns) -> str:
    """A line for each record."""
    cells = [[of.format_map(row) if isinstance(of, str) else of(row) for of in columns.values()] for row in records]
    return table([*columns], cells)


def is_of_earlier_model(record: Record, run: str) -> bool:
    """Whether a record was taken before the model that is shipped was trained, so of the one before it.

    Args:
        record: any.
        run: the record of that training.
    """
    shipped = load(run)
    return shipped is not None and record["provenance"]["date"] < shipped["provenance"]["date"]


def of_method(settings: Record) -> tuple[str, ...]:
    """The trainings of what a method with these settings draws with, for `source_line`."""
    return (TRANSFORMER_RUN, DRAFTER_RUN) if "drafter" in settings else (TRANSFORMER_RUN,)


def source_line(record: Record, *runs: str) -> str:
    """Hardware, commit and date of a record, for the reader to judge it by.

    Args:
        record: any.
        runs: the records of the trainings of what it is of; where something else was shipped since, the line says so.
    """
    origin = record["provenance"]
    hardware, libraries = origin["hardware"], origin["libraries"]
    where = hardware["device"] if hardware["device"] != "cpu" else hardware["processor"]
    older = next((TRAINED[run] for run in runs if is_of_earlier_model(record, run)), None)
    earlier = f"**Of the {older} that was shipped before this one.** " if older else ""
    return (
        f"{earlier}<sub>{where}, {hardware['cores']} cores, torch {libraries['torch']}; commit {origin['commit']}, "
        f"{origin['date'][:10]}.</sub>"
    )
