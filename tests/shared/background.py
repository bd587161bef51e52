"""Commands in processes of their own, which tests watch, stop or kill."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
"""PYTHONPATH of a process that imports this tree."""


@contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, of which nothing is left at the end."""
    variables = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", **environment}
    with log.open("wb") as told:
        started = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=told, stderr=told, start_new_session=True)
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def wait_for(what: Callable[[], Any], running: subprocess.Popen[bytes], log: Path, every: float = 0.01) -> Any:
    """The first thing that is true, looked for `every` seconds; fails when the process ends before."""
    for _ in range(12_000):
        if found := what():
            return found
        assert running.poll() is None, log.read_text()[-3000:]
        time.sleep(every)
    raise AssertionError(log.read_text()[-3000:])
