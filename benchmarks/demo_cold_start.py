"""From `vargen demo` on the command line to the first picture in a browser, everything loaded on the way.

    python benchmarks/demo_cold_start.py

Prints seconds since the command was started. A waiting Chromium opens the page as soon as the command has said where it
is, and draws. Needs the extra "demo", playwright and a Chromium; keep other work off the machine meanwhile.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import Any

from playwright.sync_api import Page, sync_playwright

MOMENTS = {
    "the page is there": "#draw",
    "its first rows": "#stage .lane img",
    "its first picture": "#stage .lane.finished img",
    "both pictures": "#stage .verdict",
}


def measure(page: Page, said: str, began: float) -> None:
    print(f"{time.perf_counter() - began:6.2f} s  {said.strip()}", flush=True)
    page.goto(said.split()[2])
    for moment, element in MOMENTS.items():
        page.wait_for_selector(element, timeout=300_000)
        print(f"{time.perf_counter() - began:6.2f} s  {moment}", flush=True)
        if element == "#draw":
            page.click(element)


def main() -> None:
    chromium: Any = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        began = time.perf_counter()
        server = subprocess.Popen([sys.executable, "-m", "vargen.cli", "demo"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            measure(page, server.stdout.readline(), began)
        finally:
            server.terminate()
            server.wait()
            browser.close()


if __name__ == "__main__":
    main()
