"""What a comparison of methods has measured so far, on disk, so that a run that was killed goes on.

Belongs here: keeping calls. Does not belong here: making them, and figures out of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metrics.speculation import CallRecord
from vargen.runs.files import append_jsonl, read_jsonl
from vargen.errors import UserError


class RecordFile:
    """The calls of a run, one JSON line each, so that a killed run loses at most the call it was making.

    Args:
        path: the file; None keeps the records in memory.
        settings: everything that decides what a call does; the first line of the file.

    Raises:
        UserError: the file belongs to a run with other settings.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path = path
        self.calls: dict[tuple[str, int], dict[str, Any]] = {}
        lines = [] if path is None else read_jsonl(path)
        if lines and lines[0].get("settings") != settings:
            raise UserError(f"json: {path} holds calls of a run with other settings; delete it or name another file")
        for line in lines[1:]:
            self.calls[line["method"], line["batch"]] = line
        if path is not None and not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(path, {"settings": settings})

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self.calls

    def call_records(self, label: str) -> list[CallRecord]:
        """What the calls of one method cost, in the order of the batches."""
        calls = sorted((batch, call["call"]) for (method, batch), call in self.calls.items() if method == label)
        return [CallRecord(**call) for _, call in calls]

    def add(self, call: dict[str, Any]) -> None:
        """Keep a call."""
        self.calls[call["method"], call["batch"]] = call
        if self.path is not None:
            append_jsonl(self.path, call)
