"""Drafters of parallel decoding without a process of their own: behind a pipe, and reckoned.

Belongs here: what several tests of `specdecode.runs.parallel` need of the drafter's side.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specdecode.runs.parallel.rounds import Round, Rounds
from specdecode.runs.parallel.two_processes import PipeLink, RemoteDrafter, serve_drafts


@contextmanager
def served(build: Callable[[], Any]) -> Iterator[RemoteDrafter]:
    """A worker's loop in a thread at the other end of a pipe."""
    ours, theirs = multiprocessing.Pipe()
    worker = threading.Thread(target=serve_drafts, args=(PipeLink(theirs), build))
    worker.start()
    try:
        with RemoteDrafter(PipeLink(ours, timeout=600)) as channel:
            yield channel
    finally:
        ours.close()
        worker.join(600)
        assert not worker.is_alive(), "the worker must end with its link"


def reckoned_rounds(matches: Sequence[bool], draft_length: int) -> list[Round]:
    """The rounds of a row, where `matches` says of each token whether the drafter, given those before, guesses it."""
    rounds = Rounds(len(matches), draft_length)
    # Right tokens are zeros, wrong guesses ones. Behind a wrong guess nothing is read.
    while not rounds.finished:
        order = rounds.order
        first = order.kept + (order.token is not None)
        window = [0 if matches[position] else 1 for position in range(first, first + order.count)]
        rounds.settle([0] * max(len(rounds.fed), 1), window)
    return rounds.settled
