"""A button that has something computed, and the one that stops it: the same on every tab.

Belongs here: what happens between the click and the end, and what every tab asks for. Does not belong here: what is
computed, and what a tab shows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vargen.base.errors import UserError
from vargen.demo import markup
from vargen.demo.tickets import Tickets
from vargen.demo.worker import Function, Worker

QUIET: dict[str, Any] = {"show_progress": "hidden"}
"""Options of every event: what is computed says itself how far it is."""

WAITS = markup.notice("Waiting for the model …")
_FULL = markup.notice("Too many are waiting; try again in a moment.", "error")

MAX_SEED = 2**53 - 1
"""The largest whole number that a browser hands on as it was written."""


def read_seed(seed: float | None, count: int = 1) -> int:
    """The first of `count` seeds, one after the other. Raises UserError for what is none."""
    if seed is None or not 0 <= seed <= MAX_SEED - (count - 1) or seed != int(seed):
        raise UserError(f"seed: write a whole number from 0 to {MAX_SEED - (count - 1):,}")
    return int(seed)


@dataclass(frozen=True)
class Requests:
    """How what is asked for on a page is computed, one request at a time.

    Args:
        gr: the module `gradio`.
        worker: who computes.
        tickets: of the page.
        options: of events that compute.
    """

    gr: Any
    worker: Worker
    tickets: Tickets
    options: dict[str, Any]

    def connect(
        self,
        start: Any,
        stop: Any,
        function: Function,
        asked: Sequence[Any],
        shown: Any,
        results: Sequence[Any],
        open_results: Callable[[Any], Sequence[Any]],
        waiting: Callable[..., str] = lambda *_: WAITS,
    ) -> None:
        """Compute when one button is pressed, and stop when the other is.

        Args:
            start, stop: the buttons.
            function: see `vargen.demo.worker`; it yields what is shown, and its result or None.
            asked: components, whose values are its arguments.
            shown: the component in whose place everything is said.
            results: components of the result; the first is hidden until there is one.
            open_results: what those components become, of a result.
            waiting: what is shown before the model is free, of the same arguments.
        """
        gr, tickets = self.gr, self.tickets
        ticket = gr.State("")
        unchanged = [gr.skip()] * len(results)

        def running(runs: bool) -> tuple[Any, Any]:
            return gr.update(interactive=not runs), gr.update(interactive=runs)

        def begin(*values: Any) -> tuple[Any, ...]:
            return tickets.issue(), waiting(*values), gr.update(visible=False), *running(True)

        def go_on(ticket: str, *values: Any) -> Iterator[tuple[Any, ...]]:
            try:
                for page, result in self.worker.stream(tickets, ticket, function, *values):
                    yield page, *(unchanged if result is None else open_results(result))
            except UserError as error:
                yield markup.notice(str(error), "error"), *unchanged

        def end(ticket: str) -> tuple[Any, ...]:
            return gr.skip() if tickets.end(ticket) else _FULL, *running(False)

        at_once: dict[str, Any] = {"queue": False, **QUIET}
        start.click(begin, [*asked], [ticket, shown, results[0], start, stop], **at_once).then(
            go_on, [ticket, *asked], [shown, *results], **QUIET, **self.options
        ).then(end, ticket, [shown, start, stop], **at_once)
        start.click(None, js=markup.scroll_to(shown.elem_id))
        stop.click(tickets.stop, ticket, **at_once)
