"""`vargen methods` answers at once: neither the list nor any method's file imports torch."""

from __future__ import annotations

import subprocess
import sys

LISTING = """
import sys, time
from vargen.cli import main
code = main(["methods", "--task", {task!r}, "--json"])
print(code, time.process_time(), "torch" in sys.modules, file=sys.stderr)
"""


def test_listing_takes_less_than_half_a_second_and_no_torch() -> None:
    for task in ("image", "video"):
        best = 1e9
        for _ in range(3):
            process = subprocess.run(
                [sys.executable, "-c", LISTING.format(task=task)], capture_output=True, text=True, check=True
            )
            code, seconds, torch_is_there = process.stderr.split()[-3:]
            assert (code, torch_is_there) == ("0", "False") and process.stdout.startswith("[")
            best = min(best, float(seconds))
        assert best < 0.5, f"{task}: {best:.2f} seconds of a processor"
