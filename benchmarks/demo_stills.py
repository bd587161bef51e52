"""The pictures of the page in README and docs/demo.md: Chromium draws and asks, and is photographed.

    python benchmarks/demo_stills.py

Needs the extra "demo", playwright and a Chromium. The page shows seconds, so keep other work off the machine meanwhile.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from vargen.demo.app import serve
from vargen.demo.models import Models
from vargen.runs.files import save_image_atomic, write_atomic

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
SIZE = {"width": 1180, "height": 720}
CLIP_WIDTH = 900
MOST_FRAMES = 18
FRAME, END = 250, 3000
"""Milliseconds of a frame, and of the last ones."""


def photograph(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def draw(page: Page) -> None:
    """A clip: rows appear, what was saved, the closer look."""
    frames = [photograph(page)]
    page.click("#draw")
    while not page.locator("#stage .verdict").count():
        frames.append(photograph(page))
        page.wait_for_timeout(150)
    step = max(1, -(-len(frames) // MOST_FRAMES))
    page.wait_for_selector("#trace img")
    ends = [photograph(page)]
    page.locator("#slider").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.locator("#trace").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    ends.append(photograph(page))
    frames = frames[::step]
    small = [frame.resize((CLIP_WIDTH, round(frame.height * CLIP_WIDTH / frame.width))) for frame in [*frames, *ends]]
    buffer = io.BytesIO()
    durations = [FRAME] * len(frames) + [END] * len(ends)
    small[0].save(buffer, "WEBP", save_all=True, append_images=small[1:], duration=durations, loop=0, quality=80)
    write_atomic(FOLDER / "demo.webp", buffer.getvalue())


def keep(page: Page, name: str) -> None:
    page.wait_for_timeout(700)
    save_image_atomic(photograph(page), FOLDER / name)


def ask(page: Page) -> None:
    page.get_by_role("tab", name="Videos").click()
    page.wait_for_selector("#clip img")
    page.click("#ask")
    page.wait_for_selector("#account >> text=plain decoding takes", timeout=120_000)
    keep(page, "demo_videos.png")


def main() -> None:
    chromium: Any = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        models = Models()
        models.pipeline(models.default)
        served = serve(models, Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE).new_page()
        page.goto(served.local_url)
        page.wait_for_selector("#draw")
        page.wait_for_timeout(1000)
        for part in (draw, ask):
            part(page)
            print(f"{part.__name__}: done", flush=True)
        browser.close()
        served.close(verbose=False)


if __name__ == "__main__":
    main()
