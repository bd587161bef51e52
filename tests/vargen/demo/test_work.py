"""Work in threads: stopped between two steps; turns that are nobody else's."""

from __future__ import annotations

import threading
import time

import pytest

from vargen.demo.work import Stopped, Tickets, Turns, Work


def test_who_watches_sees_news_and_the_end() -> None:
    work, seen = Work(), []

    def task() -> None:
        for number in range(3):
            seen.append(number)
            work.tell()
            time.sleep(0.01)

    looks = list(work.watch([task], lambda: len(seen)))
    assert looks[-1] == 3 and looks == sorted(looks)


def test_who_stops_watching_stops_the_work() -> None:
    work, steps = Work(), []

    def task() -> None:
        try:
            while True:
                work.check()
                steps.append(1)
                work.tell()
                time.sleep(0.001)
        except Stopped:
            steps.append("stopped")

    watching = work.watch([task], lambda: None)
    next(watching)
    watching.close()  # what Gradio does where a visitor has gone
    assert steps[-1] == "stopped" and threading.active_count() < 50


def race(turns: Turns, work: Work, costs: list[float], steps: int) -> list[int]:
    """Threads of different step costs; the order in which they stepped."""
    order: list[int] = []
    inside: list[int] = []

    def task(number: int) -> None:
        try:
            turns.take(number)
            for _ in range(steps):
                inside.append(number)
                time.sleep(costs[number])
                assert inside == [number]  # alone
                inside.remove(number)
                order.append(number)
                turns.offer(number)
        finally:
            turns.leave(number)

    for _ in work.watch([lambda number=number: task(number) for number in range(len(costs))], lambda: None):
        pass
    return order


def test_turns_go_to_whoever_has_worked_least() -> None:
    work = Work()
    turns = Turns(2, work, slice_seconds=0.0)
    order = race(turns, work, [0.002, 0.006], steps=12)
    assert len(order) == 24 and sorted(order) == [0] * 12 + [1] * 12
    first_end = max(place for place, number in enumerate(order) if number == 0)
    assert order[:first_end].count(1) < 12  # the cheap one came to its end first, as it would alone
    assert turns.seconds[1] > turns.seconds[0] > 12 * 0.002 * 0.9


def test_seconds_of_the_uncounted_and_of_others_are_not_counted() -> None:
    work = Work()
    turns = Turns(2, work, slice_seconds=0.0)

    def showing() -> None:
        turns.take(0)
        with turns.uncounted(0):
            time.sleep(0.3)
        turns.leave(0)

    def waiting() -> None:
        turns.take(1)
        turns.leave(1)

    for _ in work.watch([showing, waiting], lambda: None):
        pass
    assert max(turns.seconds) < 0.3


def test_a_stop_wakes_who_waits_for_a_turn() -> None:
    work = Work()
    turns = Turns(2, work)
    turns.take(0)
    threading.Timer(0.05, work.stop).start()
    with pytest.raises(Stopped):
        turns.take(1)


def test_a_ticket_stops_work_that_has_not_begun() -> None:
    tickets, work = Tickets(), Work()
    name = tickets.issue()
    tickets.stop(name)
    tickets.admit(name)
    assert not tickets.begin(name, work.stop)
    assert tickets.end(name)


def test_a_ticket_stops_its_own_work_alone() -> None:
    tickets, works = Tickets(), [Work(), Work()]
    names = [tickets.issue() for _ in works]
    assert all(tickets.begin(name, work.stop) for name, work in zip(names, works, strict=True))
    tickets.stop(names[0])
    tickets.stop("of somebody else")
    assert [work.stopped for work in works] == [True, False]


def test_a_full_queue_is_told_from_an_end() -> None:
    tickets = Tickets()
    assert not tickets.end(tickets.issue())
    assert not tickets.end("forgotten")
