"""A measurement in a process of its own, and the memory that a process holds; Linux.

Belongs here: what every measurement of memory needs. Does not belong here: what is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def in_own_process(file: str, *arguments: object) -> dict[str, Any]:
    """What `python FILE ARGUMENTS` prints last, as JSON."""
    command = [sys.executable, str(Path(file).resolve()), *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def held_bytes() -> int:
    """What this process holds now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that this process held since it began, or since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Begin `peak_bytes` anew: building a model takes more than it holds afterwards."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
