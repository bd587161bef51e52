"""A button that starts a computation, and the one that stops it: the same on every tab.

Belongs here: a request from the click to the end. Does not belong here: its computation, and a tab's components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vargen.base.errors import UserError
from vargen.demo import markup
from vargen.demo.work import failure

QUIET: dict[str, Any] = {"show_progress": "hidden"}
"""Options of an event that waits for its turn. A computation shows its own progress."""

AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}
"""Options of an event that does not wait."""

ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, **QUIET}
"""Options of an event that computes. Two computations at once would slow each other down and falsify seconds."""

WAITS = markup.notice("Waiting for the model …")

MAX_SEED = 2**53 - 1
"""The largest whole number that a browser passes on exactly."""


def read_seed(seed: float | None, count: int = 1) -> int:
    """The first of `count` consecutive seeds. Raises UserError for anything but a whole number in range."""
    most = MAX_SEED - (count - 1)
    if seed is None or not 0 <= seed <= most or seed != int(seed):
        raise UserError(f"seed: write a whole number from 0 to {most:,}")
    return int(seed)


def connect(
    gr: Any,
    buttons: tuple[Any, Any],
    function: Callable[..., Iterator[tuple[str, Any]]],
    asked: Sequence[Any],
    shown: Any,
    results: Sequence[Any],
    open_results: Callable[[Any], Sequence[Any]],
    waiting: Callable[..., str] = lambda *_: WAITS,
) -> None:
    """Compute when the one button is pressed, one request at a time, and stop when the other is.

    Args:
        gr: the module `gradio`.
        buttons: as `controls.start_and_stop` gives them.
        function: yields HTML for `shown`, and its result or None, often enough: Gradio closes it between two values.
        asked: components whose values are the function's arguments.
        shown: the component that shows progress, results and errors.
        results: components of the result. The first is hidden until there is a result.
        open_results: gives the new values of these components from a result.
        waiting: gives the HTML that is shown until the model is free, from the same arguments.
    """
    start, stop = buttons
    unchanged = [gr.skip()] * len(results)

    def running(runs: bool) -> tuple[Any, Any]:
        return gr.update(interactive=not runs), gr.update(interactive=runs)

    def begin(*values: Any) -> tuple[Any, ...]:
        return waiting(*values), gr.update(visible=False), *running(True)

    def compute(*values: Any) -> Iterator[tuple[Any, ...]]:
        try:
            for page, result in function(*values):
                yield page, *(unchanged if result is None else open_results(result))
        except Exception as error:
            yield markup.notice(failure(error), "error"), *unchanged

    def stopped(page: str) -> tuple[Any, ...]:
        return page.replace(WAITS, "") + markup.notice("Stopped."), *running(False)

    start.click(None, js=markup.scroll_to(shown.elem_id))
    begun = start.click(begin, [*asked], [shown, results[0], start, stop], **AT_ONCE)
    computing = begun.then(compute, [*asked], [shown, *results], **ONE_AT_A_TIME)
    computing.success(lambda: running(False), None, [start, stop], **AT_ONCE)
    computing.failure(stopped, shown, [shown, start, stop], **AT_ONCE)  # by the button, or Gradio says that many wait
    stop.click(None, cancels=computing)
