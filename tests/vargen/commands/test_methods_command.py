"""`vargen methods` answers at once: neither the list nor any method's file imports what takes seconds.

How long it takes is recorded by `benchmarks/token_hashes.py`; a clock would say how busy this machine is.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ("torch", "transformers", "diffusers", "numpy", "PIL", "scipy", "torchvision", "av", "optuna")
LISTING = """
import sys
from vargen.cli import main
code = main(["methods", "--task", {task!r}, "--json"])
print(code, *(name for name in {slow!r} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("task", ["image", "video"])
def test_listing_imports_nothing_slow(task: str) -> None:
    listing = LISTING.format(task=task, slow=SLOW)
    process = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert process.stderr.split() == ["0"] and process.stdout.startswith("[")
