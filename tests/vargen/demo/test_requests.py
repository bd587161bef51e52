"""Requests in Gradio's queue, sent as a browser sends them: one at a time, and ended by a stop or by leaving."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from vargen.base.errors import UserError
from vargen.demo.controls import start_and_stop
from vargen.demo.requests import connect
from vargen.demo.work import Check, follow

httpx = pytest.importorskip("httpx", reason='the page needs the extra "demo"')


class Computation:
    """One that ends only when it is stopped, but for "short".

    Attributes:
        begun, ended: names of requests, in order.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    def __call__(self, name: str) -> Iterator[tuple[str, str | None]]:
        if name == "wrong":
            raise UserError("<b>: write another name")
        yield from follow(lambda check: self.work(name, check), lambda: (f"{name} works", None), 0.01)
        yield f"{name} is done", "its account"

    def work(self, name: str, check: Check) -> None:
        assert len(self.begun) == len(self.ended), "one at a time"
        self.begun.append(name)
        try:
            while name != "short":
                time.sleep(0.01)
                check()
        finally:
            self.ended.append(name)


class Browser:
    """Visitors of a page that has one computation."""

    def __init__(self, page: Any) -> None:
        (self.number,) = (number for number, fn in page.fns.items() if fn.concurrency_id == "model")
        self.page = page
        self.client = httpx.Client(base_url=f"{page.local_url}gradio_api/", timeout=600)

    @property
    def waiting(self) -> list[Any]:
        """Requests that have not begun."""
        return self.page._queue.event_queue_per_concurrency_id["model"].queue

    def press(self, name: str, visitor: str) -> dict[str, Any]:
        """Ask for a computation. Returns what names the request."""
        asked = {"fn_index": self.number, "session_hash": visitor}
        told = self.client.post("queue/join", json={"data": [name], **asked}).raise_for_status().json()
        return {**asked, **told}

    def stop(self, request: dict[str, Any]) -> None:
        self.client.post("cancel", json=request).raise_for_status()

    def messages(self, visitor: str) -> Iterator[dict[str, Any]]:
        """What the page is told, until the end."""
        with self.client.stream("GET", "queue/data", params={"session_hash": visitor}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))


def until(true: Callable[[], Any]) -> None:
    """The test's own limit ends a wait in vain."""
    while not true():
        time.sleep(0.02)


@pytest.fixture(scope="module")
def computation() -> Computation:
    return Computation()


@pytest.fixture(scope="module")
def page(computation: Computation) -> Iterator[Any]:
    gr = pytest.importorskip("gradio", reason='the page needs the extra "demo"')  # two seconds, where it is needed
    with gr.Blocks(analytics_enabled=False) as blocks:
        name, shown, account = gr.Textbox(), gr.HTML(elem_id="shown"), gr.HTML()
        connect(gr, start_and_stop(gr, "Go"), computation, [name], shown, [account], lambda text: [text])
    blocks.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
    yield blocks
    blocks.close(verbose=False)


@pytest.fixture
def browser(page: Any, computation: Computation) -> Browser:
    computation.begun.clear()
    computation.ended.clear()
    return Browser(page)


def test_a_stop_ends_what_runs_and_what_waits(browser, computation):
    running = browser.press("first", "a")
    until(lambda: computation.begun)
    waiting = browser.press("second", "b")
    until(lambda: browser.waiting)
    browser.stop(waiting)
    assert not browser.waiting and not computation.ended
    browser.stop(running)
    assert computation.ended == ["first"], "it has ended when the page is told so"
    browser.press("short", "c")
    until(lambda: computation.ended == ["first", "short"])


def test_who_leaves_ends_the_request(browser, computation):
    browser.press("first", "leaver")
    with closing(browser.messages("leaver")) as messages:
        until(lambda: next(messages)["msg"] == "process_generating")
    until(lambda: computation.ended)


def test_what_is_wrong_is_said_in_place(browser):
    browser.press("wrong", "d")
    last = [message for message in browser.messages("d") if message["msg"] == "process_completed"][-1]
    assert last["success"] and "&lt;b&gt;: write another name" in json.dumps(last["output"])


def test_the_page_goes_back_to_its_start_however_a_request_ends(page, browser):
    """By its end, by a stop, and where too many wait: Gradio fails such a request."""
    after = [fn for fn in page.fns.values() if fn.trigger_after == browser.number]
    assert {(fn.trigger_only_on_success, fn.trigger_only_on_failure) for fn in after} == {(True, False), (False, True)}
    assert [list(fn.cancels) for fn in page.fns.values() if fn.cancels] == [[browser.number]]
