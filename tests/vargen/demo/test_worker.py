"""The process that computes: what it draws and what stops it; it neither takes the page with it nor outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vargen.base.errors import UserError
from vargen.demo import pictures, worker
from vargen.demo.models import Models
from vargen.demo.work import Tickets
from vargen.demo.worker import LocalWorker, WorkerProcess
from vargen.models.options import ModelOptions

PARENT = """
import sys, time, pathlib
from vargen.demo.worker import WorkerProcess
from vargen.models.options import ModelOptions
WorkerProcess(pathlib.Path(sys.argv[1]), ModelOptions(sys.argv[2]))
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def process(
    _saved_tiny_pipelines: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    process = WorkerProcess(tmp_path_factory.mktemp("sockets"), ModelOptions(str(_saved_tiny_pipelines["text"])))
    yield process
    process.close()


def draw(by: worker.Worker, tickets: Tickets, ticket: str, seed: int = 3) -> Iterator[Any]:
    asked = ("text", "scd", "window: 3", "a red cube", seed, 2.0, 1)
    return by.stream(tickets, ticket, pictures.draw, *asked)


def test_it_draws_what_this_process_draws(process: WorkerProcess, _saved_tiny_pipelines: dict[str, Path]) -> None:
    models = Models(ModelOptions(str(_saved_tiny_pipelines["text"])))
    kept = []
    for by in (process, LocalWorker(models)):
        tickets = Tickets()
        ticket = tickets.issue()
        *_, (page, drawn) = draw(by, tickets, ticket)
        assert "times fewer passes" in page and tickets.end(ticket)
        kept.append(drawn)
    for name in ("plain", "chosen", "traces"):
        mine, its = ([image.tobytes() for image in getattr(drawn, name)] for drawn in kept)
        assert mine == its


def test_a_stop_reaches_it(process: WorkerProcess) -> None:
    tickets = Tickets()
    waiting, running = tickets.issue(), tickets.issue()
    tickets.stop(waiting)
    *_, (page, kept) = draw(process, tickets, waiting)
    assert kept is None and "Stopped before it began" in page
    pages = draw(process, tickets, running)
    next(pages)
    tickets.stop(running)  # finds it, or what is left of it
    pages.close()


def test_what_is_wrong_there_is_said_here(process: WorkerProcess) -> None:
    tickets = Tickets()
    with pytest.raises(UserError, match="TypeError"):
        list(process.stream(tickets, "", pictures.draw, "too few arguments"))


def test_when_it_is_killed_that_is_said_and_another_one_starts(process: WorkerProcess) -> None:
    tickets = Tickets()
    before = process._process.pid
    pages = draw(process, tickets, tickets.issue())
    next(pages)
    os.kill(before, signal.SIGKILL)
    with pytest.raises(UserError, match="has ended"):
        list(pages)
    list(process.stream(tickets, "", worker._stop, "nobody"))
    assert process._process.pid != before


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_page(end: signal.Signals, _saved_tiny_pipelines: dict[str, Path], tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PARENT, str(tmp_path), str(_saved_tiny_pipelines["text"])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
        parent.send_signal(end)
        assert parent.stdout.read() == b""  # whose end comes when both have let go of it
