"""Methods side by side in one process: the order of their calls, the identity of such a run, and its rows of results.

All methods do a piece of work before the next piece begins, in an order that rotates. A machine that warms up or slows
down then does so for all of them. Each call is recorded as one line of JSON when it ends, and the same command
continues a killed run after the last line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from metrics.speculation import CallRecord
from vargen.methods.base import MethodConfig
from vargen.runs.identity import machine
from vargen.runs.progress import Progress
from vargen.runs.records import Records

Kept = Sequence[Mapping[str, Any]]
"""The records of one method's calls, in order."""
Made = TypeVar("Made")
Method = TypeVar("Method")


def compare(
    methods: Mapping[str, Method],
    count: int,
    call: Callable[[Method, int], Made],
    keep: Callable[[str, int, Made], Mapping[str, Any]],
    *,
    warm_up: int,
    records: Records,
    shown: Progress | None,
    shapes: Sequence[Any] = (),
) -> None:
    """Do every piece of work with every method, but for those among the records, and record it.

    Args:
        methods: by label.
        count: number of pieces.
        call: does a piece, by number, with a method.
        keep: gives the record of a result, ready for JSON, from label, number and result.
        warm_up: calls of each method before the first that counts, with the first piece of every shape.
        records: of this run.
        shown: counts calls; None: nothing does.
        shapes: of each piece, anything that tells pieces apart whose first call costs more, such as the batch size;
            empty: all are alike.
    """
    first: dict[Any, int] = {}
    for number, shape in enumerate(shapes or [None] * count):
        first.setdefault(shape, number)
    shown = Progress(disable=True) if shown is None else shown
    labels = list(methods)
    for label in labels:
        if any((label, number) not in records for number in range(count)):
            for number in [*first.values()] * warm_up:
                call(methods[label], number)
    for number in range(count):
        turn = number % len(labels)
        for label in [*labels[turn:], *labels[:turn]]:
            if (label, number) in records:
                shown.skip()
                continue
            kept = keep(label, number, call(methods[label], number))
            records.add({"method": label, "batch": number, **kept})
            shown.update()


def describe_run(methods: Mapping[str, MethodConfig], weights: str, **options: Any) -> dict[str, Any]:
    """Everything that decides the calls of a run, this machine included, for `Records`."""
    return {
        "methods": {label: method.to_dict() for label, method in methods.items()},
        "weights": weights,
        **machine(),
        **options,
    }


def calls_of(kept: Kept) -> list[CallRecord]:
    """The cost of each call."""
    return [CallRecord(**each["call"]) for each in kept]


def rows_of(
    methods: Mapping[str, MethodConfig],
    records: Records,
    count: int,
    figures: Callable[[Kept, Kept | None], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One JSON-ready row for each method, with its settings and the origin of the figures.

    Args:
        methods: by label.
        records: of every piece of work with every method.
        count: number of pieces.
        figures: of a method's records and those of plain decoding, or None where plain decoding is not compared.
    """
    from metrics.provenance import provenance

    kept = {label: [records.calls[label, number] for number in range(count)] for label in methods}
    plain = next((kept[label] for label, method in methods.items() if method.name == "ar"), None)
    origin = provenance()
    rows = []
    for label, method in methods.items():
        row = {"method": label, "exact": method.exact, **figures(kept[label], plain)}
        settings = {"settings": method.to_dict(), "follows_the_clock": method.follows_the_clock}
        rows.append({**row, **settings, "provenance": origin})
    return rows
