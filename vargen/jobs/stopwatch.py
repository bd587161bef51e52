"""The same comparison in several fresh processes, one after the other, and its rows as one table.

Does not belong here: the comparison of one process (`vargen.jobs.benchmark`), and figures of all
(`metrics.speculation.over_processes`).

One process is not evidence: where its memory lies, and who else uses the machine's cache, can decide a ratio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metrics.speculation import over_processes
from vargen.base.errors import UserError
from vargen.base.reading import parse_json, read_json
from vargen.runs.files import write_atomic


def in_processes(
    command: Sequence[str], arguments: Sequence[str], count: int, output: str | None
) -> list[dict[str, Any]]:
    """Rows of `vargen bench`, or a script like it, in `count` fresh processes, with the speed-up of each.

    Args:
        command: what Python runs, `-m vargen bench` or a script.
        arguments: of the command; those of each process are these with `--processes 1`.
        count: how many processes.
        output: folder for results.json and processes/NUMBER, the rows of each. A stopped run goes on there, and so
            does one that asks for more processes. None keeps nothing.

    Raises:
        UserError: a process failed, or the folder holds processes of other arguments.
    """
    folder = None if output is None else Path(output) / "processes"
    runs, arguments = [], _without_count(arguments)
    for number in range(count):
        own = None if folder is None else folder / str(number)
        runs.append(_kept(own, arguments) or _measured(own, command, arguments, f"process {number + 1} of {count}"))
    rows = over_processes(runs)
    if output is not None:
        write_atomic(Path(output) / "results.json", json.dumps(rows, indent=1) + "\n")
    return rows


def _without_count(arguments: Sequence[str]) -> list[str]:
    """The arguments but for `--processes` and its number, which change nothing in a process."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--processes")
    return parser.parse_known_args(arguments)[1]


def _kept(folder: Path | None, arguments: Sequence[str]) -> list[dict[str, Any]] | None:
    """The rows of an earlier run with the same arguments."""
    if folder is None or not (folder / "results.json").is_file():
        return None
    told, remedy = folder / "arguments.json", "delete its folder"
    if not told.is_file() or read_json(told, remedy, "output") != list(arguments):
        raise UserError(f"output: {folder} holds results of other arguments; name another folder or delete it")
    rows: list[dict[str, Any]] = read_json(folder / "results.json", remedy, "output")
    return rows


def _measured(folder: Path | None, command: Sequence[str], arguments: Sequence[str], told: str) -> list[dict[str, Any]]:
    """The rows of a fresh process."""
    print(f"vargen: {told}", file=sys.stderr)
    command = [sys.executable, *command, *arguments, "--processes", "1", "--json"]
    if folder is not None:
        command += ["--output", str(folder)]
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "arguments.json", json.dumps(list(arguments)) + "\n")
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise UserError(f"processes: {told} ended with {ended.returncode}; its message stands above")
    rows: list[dict[str, Any]] = parse_json(ended.stdout)
    return rows
