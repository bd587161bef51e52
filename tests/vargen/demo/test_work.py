"""A call that is followed: seen while it works, stopped between two steps, still while nobody asks."""

import threading
import time
from typing import Any

import pytest
from refusals import refused

from vargen.base.errors import UserError
from vargen.demo.work import Check, failure, follow


def counting(steps: list[Any], most: int = 10**6) -> Any:
    """A call that counts its steps, a millisecond each."""

    def call(check: Check) -> str:
        try:
            for number in range(most):
                steps.append(number)
                time.sleep(0.001)
                check()
        finally:
            steps.append("ended")
        return "result"

    return call


@pytest.mark.parametrize("pauses", [False, True])
def test_who_follows_sees_news_the_end_and_the_result(pauses):
    steps: list[Any] = []
    seen, results = [], []

    def following() -> Any:
        results.append((yield from follow(counting(steps, 30), lambda: len(steps), 0.005, pauses)))

    seen = list(following())
    assert seen == sorted(seen) and 1 < len(seen) < 30 and results == ["result"]
    assert steps == [*range(30), "ended"]


@pytest.mark.parametrize("pauses", [False, True])
def test_who_stops_following_stops_the_call(pauses):
    steps: list[Any] = []
    following = follow(counting(steps), lambda: None, 0.001, pauses)
    next(following)
    following.close()  # what Gradio does where a visitor has gone or stops
    assert steps[-1] == "ended" and threading.active_count() < 50


def test_a_call_that_pauses_stands_still_until_it_is_asked():
    """So the seconds of two that take turns are each its own."""
    steps: list[Any] = []
    following = follow(counting(steps), lambda: None, 0.0, pauses=True)
    for count in range(1, 5):
        next(following)
        time.sleep(0.02)
        assert len(steps) == count
    following.close()


@pytest.mark.parametrize("pauses", [False, True])
def test_an_error_reaches_who_follows(pauses):
    def call(check: Check) -> None:
        check()
        raise UserError("mend it")

    refused("mend it", list, follow(call, lambda: None, 0.0, pauses))
    assert failure(UserError("mend it")) == "mend it" and failure(ValueError("no")) == "ValueError: no"
