"""Commands shared by several processes, as torchrun would start them, which tests can wait for or kill."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

WORKER = Path(__file__).with_name("process_worker.py")


class ProcessJob:
    """Processes of one command, forked from a server that has imported everything.

    Args:
        arguments: of `vargen`.
        count: how many; one is no process group.
        tiny: a family that draws token by token, to be as small as its tests' models.
    """

    def __init__(self, arguments: Sequence[str], count: int, tiny: str | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["vargen.cli", "vargen.jobs.evaluated_pictures", "vargen.commands.evaluate", "vargen.pipelines.loading"]
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cache = os.environ.get("VARGEN_CACHE")
        self.processes = [
            context.Process(
                target=runpy.run_path,
                args=(str(WORKER),),
                kwargs={"init_globals": {"JOB": (list(arguments), rank, count, port, cache, tiny)}},
            )
            for rank in range(count)
        ]
        for process in self.processes:
            process.start()

    def wait(self, seconds: float = 120) -> list[int | None]:
        """Until all are through. Their exit codes, by rank."""
        for process in self.processes:
            process.join(seconds)
        return [process.exitcode for process in self.processes]

    def kill(self) -> bool:
        """One process first, as a fault would, then the rest, as a launcher does. Whether any was still at work."""
        for process in self.processes:
            process.kill()
        return any(code == -signal.SIGKILL for code in self.wait())
