"""A button that starts a computation, and the one that stops it: the same on every tab.

Belongs here: what happens between the click and the end, and what every tab asks for. Does not belong here: what is
computed, and what a tab shows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vargen.base.errors import UserError
from vargen.demo import markup
from vargen.demo.work import Tickets, Work, failure
from vargen.demo.worker import Function, Worker

AnyWork = TypeVar("AnyWork", bound=Work)

QUIET: dict[str, Any] = {"show_progress": "hidden"}
"""Options of an event that waits for its turn. A computation shows its own progress."""

AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}
"""Options of an event that does not wait."""

ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, **QUIET}
"""Options of an event that computes. Two computations at once would slow each other down and falsify seconds."""

WAITS = markup.notice("Waiting for the model …")
_FULL = markup.notice("Too many are waiting; try again in a moment.", "error")

MAX_SEED = 2**53 - 1
"""The largest whole number that a browser passes on exactly."""


def begin(tickets: Tickets, ticket: str, prepare: Callable[[], AnyWork]) -> AnyWork | str:
    """The work of a request, begun; or the notice that is shown instead.

    Args:
        tickets, ticket: of the request.
        prepare: gives the work, or raises what is wrong with the request.
    """
    tickets.admit(ticket)
    try:
        work = prepare()
    except Exception as error:
        return markup.notice(failure(error), "error")
    return work if tickets.begin(ticket, work.stop) else markup.notice("Stopped before it began.")


def read_seed(seed: float | None, count: int = 1) -> int:
    """The first of `count` consecutive seeds. Raises UserError for anything but a whole number in range."""
    most = MAX_SEED - (count - 1)
    if seed is None or not 0 <= seed <= most or seed != int(seed):
        raise UserError(f"seed: write a whole number from 0 to {most:,}")
    return int(seed)


@dataclass(frozen=True)
class Requests:
    """How a page computes what its visitors ask for, one request at a time.

    Args:
        gr: the module `gradio`.
        worker: computes.
        tickets: of the page.
    """

    gr: Any
    worker: Worker
    tickets: Tickets = field(default_factory=Tickets)

    def connect(
        self,
        buttons: tuple[Any, Any],
        function: Function,
        asked: Sequence[Any],
        shown: Any,
        results: Sequence[Any],
        open_results: Callable[[Any], Sequence[Any]],
        waiting: Callable[..., str] = lambda *_: WAITS,
    ) -> None:
        """Compute when the one button is pressed, and stop when the other is.

        Args:
            buttons: as `controls.start_and_stop` gives them.
            function: see `vargen.demo.worker`; it yields what is shown, and its result or None.
            asked: components whose values are the function's arguments.
            shown: the component that shows progress, results and errors.
            results: components of the result. The first is hidden until there is a result.
            open_results: gives the new values of these components from a result.
            waiting: gives what is shown until the model is free, from the same arguments.
        """
        gr, tickets, (start, stop) = self.gr, self.tickets, buttons
        ticket = gr.State("")
        unchanged = [gr.skip()] * len(results)

        def running(runs: bool) -> tuple[Any, Any]:
            return gr.update(interactive=not runs), gr.update(interactive=runs)

        def issue(*values: Any) -> tuple[Any, ...]:
            return tickets.issue(), waiting(*values), gr.update(visible=False), *running(True)

        def go_on(ticket: str, *values: Any) -> Iterator[tuple[Any, ...]]:
            try:
                for page, result in self.worker.stream(tickets, ticket, function, *values):
                    yield page, *(unchanged if result is None else open_results(result))
            except UserError as error:
                yield markup.notice(str(error), "error"), *unchanged

        def end(ticket: str) -> tuple[Any, ...]:
            return gr.skip() if tickets.end(ticket) else _FULL, *running(False)

        start.click(issue, [*asked], [ticket, shown, results[0], start, stop], **AT_ONCE).then(
            go_on, [ticket, *asked], [shown, *results], **ONE_AT_A_TIME
        ).then(end, ticket, [shown, start, stop], **AT_ONCE)
        start.click(None, js=markup.scroll_to(shown.elem_id))
        stop.click(tickets.stop, ticket, **AT_ONCE)
