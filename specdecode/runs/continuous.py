"""Continuous batches: the next request takes the row of a finished one, so no request waits for the slowest row.

Belongs here: when the host looks for finished rows, which requests take them, and each request's tokens and seconds.
Does not belong here: a step of decoding (`loop.py`), and how a player replaces rows (`roles.RowReplacing`).

New requests start as a small run of their own, with players of their own: prompts are fed, first tokens drawn, drafters
started. The rows of that run, cache included, are then copied over the finished rows. So a row that joins is the same
as one that begins a batch, and since rows do not depend on each other, a request's tokens are those it gets alone.

The host looks for finished rows only when one may have finished: a row gains at most a draft's depth plus one per step.
All finished rows are refilled by one prefill. When no request is left, finished rows idle until the batch ends. In an
open queue they idle until more requests arrive, and a batch may begin with idle rows: it ends when all rows idle.

Source: Yu et al. 2022, "Orca: A distributed serving system for transformer-based generative models" (iteration-level
scheduling).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdecode.checks import LogitsError, check_counts
from specdecode.loop import DecodeRun
from specdecode.roles import DecodeState, check_can_replace_rows
from specdecode.trace import DecodeTrace


@dataclass(frozen=True)
class FinishedRow:
    """The result of one request.

    Args:
        request: its number.
        tokens: [max_new_tokens] int64; after an early end, filled up with the (first) stop token, or 0.
        length: decoded tokens, a stop token included.
        trace: what happened in its row; passes are those it took part in. Its only phase, "decode", is `seconds`.
        seconds: the time from its prefill to its end, divided by the rows of the batch. Time in which the caller holds
            a result does not count.
    """

    request: int
    tokens: Tensor
    length: int
    trace: DecodeTrace
    seconds: float


class StartRun(Protocol):
    """Makes the runs of a queue."""

    def __call__(self, requests: range, joins: bool) -> DecodeRun:
        """A run of these requests, one a row, not started yet.

        Args:
            requests: their numbers.
            joins: False for the first run, whose rows later requests take: it needs room for the longest prompt. True
                for later runs: they are started, never stepped, and need room for their own prompts alone.
        """


def decode_queue(
    start_run: StartRun,
    count: int,
    batch_size: int,
    on_step: Callable[[DecodeState, Sequence[int | None]], None] | None = None,
    arriving: Callable[[int], int] | None = None,
) -> Iterator[FinishedRow]:
    """Decode requests 0 to `count - 1`, `batch_size` at a time, and give each as it is finished.

    Args:
        start_run: makes runs of the same settings.
        count: number of requests.
        batch_size: rows of a batch; fewer where there are fewer requests.
        on_step: called as `on_step(state, requests)` after the first prefill and every pass, with the request of each
            row, None where a row idles. It must not change `state`; reading a tensor's value there waits for the
            device.
        arriving: makes the queue open: asked as `arriving(rows)` whenever so many rows idle, it gives how many further
            requests take some of them now. The first run then begins all of `count`.

    Yields:
        Every request once, in the order in which they finish.

    Raises:
        ValueError: no request or row; or a player that cannot give a row to another request, by name.
        LogitsError: logits of a request were not finite; `row` is the request. Those finished before were yielded.
    """
    check_counts(count=count, batch_size=batch_size)
    following = min(batch_size, count)
    run = start_run(range(following), joins=False)
    num_rows = run.target.batch_size
    if arriving is not None or count > num_rows:
        for player in run.players:
            check_can_replace_rows(player)
    held = 0.0  # seconds for which the caller has held results

    def now() -> float:
        return time.perf_counter() - held

    begun = now()
    run.start()
    occupied = [_Occupied(request, begun, 0) for request in range(following)]
    places: list[_Occupied | None] = [*occupied, *[None] * (num_rows - following)]
    run.end_rows(following)
    joining = 0  # requests that have arrived for rows that idle

    def report() -> None:
        if on_step is not None:
            on_step(run.state, [None if place is None else place.request for place in places])

    report()
    step, read = run.steps_taken()
    # Tokens that the row nearest to its end needs. A row that has just started may have stopped already.
    state = run.state
    soonest = 0 if run.stops is not None else state.max_new_tokens - 1 if state.row_tokens is None else _soonest(state)
    while any(places):
        with run.trace.phase("decode"):
            while soonest > 0:
                soonest -= step()
                report()
                if arriving is not None and None in places:
                    joining = joining or arriving(places.count(None))
                if run.stops is not None or joining:
                    break
            on_host = read(run.state.active) if run.stops is not None else run.state.active
            if on_host is None:
                soonest = 1
                continue
            active = on_host.tolist()
        finished = [row for row, place in enumerate(places) if place is not None and not active[row]]
        if finished:
            for given in _given(run, places, finished, now()):
                since = time.perf_counter()
                yield given
                held += time.perf_counter() - since
            for row in finished:
                places[row] = None
        idle = [row for row, place in enumerate(places) if place is None]
        if arriving is None:
            joining = min(len(idle), count - following)
        elif idle:
            joining = joining or arriving(len(idle))
        requests, joining = range(following, following + joining), 0
        if requests:
            following = requests.stop
            rows, begun, joiners = idle[: len(requests)], now(), start_run(requests, joins=True)
            joiners.start()
            run.replace_rows(torch.tensor(rows, device=run.state.lengths.device), joiners)
            for row, request in zip(rows, requests, strict=True):
                places[row] = _Occupied(request, begun, run.trace.recorded_steps)
            read.forget()
        if finished:
            run.trace.forget_steps(min((place.first_step for place in places if place), default=0))
        soonest = int(not finished and not requests) if run.stops is not None else _soonest(run.state)


def _soonest(state: DecodeState) -> int:
    """Tokens that the unfinished row nearest to its end needs; 0 where all are finished."""
    missing = torch.where(state.active, state.ends - state.lengths, state.max_new_tokens).min()
    return int(missing * state.active.any())


@dataclass
class _Occupied:
    """The request in a row, when it began, and the number of the first step after its prefill."""

    request: int
    begun: float
    first_step: int


def _given(
    run: DecodeRun, places: Sequence[_Occupied | None], finished: Sequence[int], now: float
) -> Iterator[FinishedRow]:
    """The results of finished rows. Raises LogitsError for one that has none, after yielding the others."""
    state, wrong = run.state, run.watch.first_steps()
    failed = None
    for row in finished:
        place, step = places[row], wrong[row]
        assert place is not None
        if step is not None:
            failed = failed or LogitsError(place.request, max(step - place.first_step, 0))
            continue
        trace = run.trace.since(place.first_step).of_row(row)
        seconds = (now - place.begun) / len(places)
        trace.phase_seconds = {"decode": seconds}
        yield FinishedRow(place.request, state.tokens[row].clone(), int(state.lengths[row]), trace, seconds)
    if failed is not None:
        raise failed
