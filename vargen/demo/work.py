"""A call in a thread of its own, which lasts as long as somebody follows it.

Belongs here: the thread, and how it is stopped. Does not belong here: any computation, and any page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from vargen.base.errors import UserError

Seen = TypeVar("Seen")
Result = TypeVar("Result")
Check = Callable[[], None]

BETWEEN_LOOKS = 0.1
"""Seconds between two looks at a call, and so the time that a stop takes beside the running step."""


class Stopped(Exception):
    """Nobody follows this call any longer."""


def failure(error: Exception) -> str:
    """The line that is shown instead of a result. It names the kind of an error that the visitor cannot mend."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def follow(
    call: Callable[[Check], Result], look: Callable[[], Seen], seconds: float = BETWEEN_LOOKS, pauses: bool = False
) -> Generator[Seen, None, Result]:
    """Do a call in a thread, and look at it now and then. Yields each look, and returns the call's result.

    Closing the generator stops the call at its next check, and waits for that.

    Args:
        call: given a function that it calls between two steps.
        look: gives the value to yield.
        seconds: between two looks, at least.
        pauses: whether the call stands still at a check while the generator is not asked for its next value. Threads of
            numerical libraries spin for a moment when it does, so `seconds` should hold several steps.

    Raises:
        Exception: whatever the call raises.
    """
    asked, paused = threading.Semaphore(0), threading.Semaphore(0)
    stopped = ended = False
    results: list[Result] = []
    errors: list[Exception] = []
    pause_at = time.perf_counter() + seconds

    def check() -> None:
        nonlocal pause_at
        if pauses and time.perf_counter() >= pause_at:
            paused.release()
            asked.acquire()
            pause_at = time.perf_counter() + seconds
        if stopped:
            raise Stopped

    def work() -> None:
        nonlocal ended
        try:
            results.append(call(check))
        except Stopped:
            pass
        except Exception as error:  # raised where the call is followed
            errors.append(error)
        finally:
            ended = True
            paused.release()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            paused.acquire(timeout=None if pauses else seconds)
            if ended:
                break
            yield look()
            asked.release()
    finally:
        stopped = True
        asked.release()
        thread.join()
    if errors:
        raise errors[0]
    return results[0]
