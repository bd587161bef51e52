"""Lines of Python by package, without tests.

    python benchmarks/lines.py

Counts what git tracks, blank lines and docstrings included.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("specdecode", "metrics", "vargen", "scenes", "benchmarks")


def lines_of(package: str) -> int:
    """Lines in the Python files of a package."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--", f"{package}/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return sum(len((ROOT / name).read_text().splitlines()) for name in tracked.stdout.split("\0") if name)


def main() -> None:
    """Print a line a package, and the sum."""
    counts = {package: lines_of(package) for package in PACKAGES}
    for name, count in {**counts, "all": sum(counts.values())}.items():
        print(f"{name:12}{count:8,}")


if __name__ == "__main__":
    main()
