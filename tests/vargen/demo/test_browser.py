"""The page as a visitor meets it: headless Chromium types, draws, drags, asks, uploads and stops.

The tiny model would be too quick to stop, so its steps are slowed down. Needs the extra "demo", playwright and a
Chromium; skips with a reason where one is missing.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vargen.checkpoints.options import ModelOptions
from vargen.demo import app, race
from vargen.demo.models import Models

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SLOW = 0.1
"""Seconds a step, where something is to be stopped."""

for name in ("playwright", "gradio"):  # the one that is seldom there, and fast, first
    pytest.importorskip(name, reason=f"needs {name}")
has_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
pytestmark = [pytest.mark.browser, has_chromium]


@pytest.fixture(scope="module")
def models(qwen_pair: Path, _saved_tiny_pipelines: dict[str, Path]) -> Models:
    options = ModelOptions(str(_saved_tiny_pipelines["text"]))
    return Models(options, str(qwen_pair / "target"), str(qwen_pair / "draft"))


@pytest.fixture(scope="module")
def served(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    served = app.serve(models, tmp_path_factory.mktemp("downloads"))
    yield served
    served.close(verbose=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, served: Any) -> Iterator[Any]:
    page = open_page(browser, served)
    yield page
    page.context.close()


def open_page(browser: Any, served: Any) -> Any:
    page = browser.new_context(accept_downloads=True).new_page()
    page.set_default_timeout(60_000)
    elsewhere: list[str] = []
    page.on("request", lambda request: elsewhere.append(request.url))
    page.goto(served.local_url)
    page.wait_for_selector("#draw")
    own = (served.local_url, "data:", "blob:")
    assert not [url for url in elsewhere if not url.startswith(own)], "nothing is fetched"
    return page


def write_prompt(page: Any, prompt: str, seed: int = 0) -> None:
    page.fill("#prompt textarea", prompt)
    page.fill("#seed input", str(seed))
    page.locator("#seed input").press("Tab")


def picture_of(page: Any, lane: int) -> str:
    """Where the browser shows a picture, as data."""
    return page.locator("#stage .lane").nth(lane).locator("img").get_attribute("src")


def drawn_alone(models: Models, prompt: str, seed: int) -> str:
    from vargen.demo.markup import _img

    pipeline = models.pipeline(models.default)
    description = models.description(models.default)
    drawn = {"method": "ar", "generator": torch.Generator().manual_seed(seed)}
    output = pipeline(prompt, **drawn, guidance_scale=description.guidance_scale)
    return _img(output.images[0], "").split('src="')[1].rstrip('">')


def slow_down(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps take a while; the list grows with each."""
    steps: list[int] = []
    follow = race.follow

    def slowly(call: Any, *arguments: Any, **options: Any) -> Any:
        def slow(check: Any) -> Any:
            def step() -> None:
                steps.append(1)
                time.sleep(SLOW)
                check()

            return call(step)

        return follow(slow, *arguments, **options)

    monkeypatch.setattr(race, "follow", slowly)
    return steps


def test_a_prompt_is_drawn_and_the_same_picture_needs_no_slider(page, models):
    write_prompt(page, "a red cube", 7)
    page.click("#draw")
    page.wait_for_selector("#stage .verdict")
    assert picture_of(page, 0) == drawn_alone(models, "a red cube", 7)
    assert "passes (" in page.inner_text("#stage .verdict")  # how many fewer is the machine's
    page.wait_for_selector("#trace img")
    assert not page.locator("#slider").is_visible()


def test_a_stop_works_at_once(page, monkeypatch):
    steps = slow_down(monkeypatch)
    write_prompt(page, "a red cube")
    page.click("#draw")
    page.wait_for_function("document.querySelectorAll('#stage .bar i').length == 2")
    page.click("#stop-draw")
    page.wait_for_selector("#stage >> text=Stopped")
    assert len(steps) < 16
    page.wait_for_selector("#draw:not([disabled])")


def test_a_question_is_answered_and_a_broken_file_is_refused(page, tmp_path):
    page.get_by_role("tab", name="Videos").click()
    page.wait_for_selector("#clip img")
    page.click("#ask")
    page.wait_for_selector("#account >> text=plain decoding takes")
    assert page.locator("#answer .answer span").count() > 2
    broken = tmp_path / "holiday.mp4"
    broken.write_bytes(b"\x00\x00\x00\x18ftypmp42 and nothing more")
    with page.expect_file_chooser() as chooser:
        page.click("#upload")
    chooser.value.set_files(str(broken))
    page.wait_for_selector("#clip .error")
    assert "holiday.mp4" in page.inner_text("#clip .error") and "/" not in page.inner_text("#clip .error")
    page.click("#another")
    page.wait_for_selector("#clip img")


def test_methods_are_compared_and_downloaded(page):
    page.get_by_role("tab", name="Compare").click()
    page.fill("#comparison-prompts textarea", "a red cube")
    page.click("#compare")
    page.wait_for_selector("#table table")
    with page.expect_download() as download:
        page.click("#download")
    rows = json.loads(Path(download.value.path()).read_text())
    assert [row["method"] for row in rows] == ["ar", "jacobi"]
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # the table scrolls, not the page


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(browser, served, width):
    page = browser.new_context(viewport={"width": width, "height": 844}).new_page()
    page.goto(served.local_url)
    for tab in ("Pictures", "Videos", "Compare"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()
