"""Lines of Python by package, without tests.

    python benchmarks/lines.py
    python benchmarks/lines.py --since e7a9b54      # and how many of them later features brought

Counts what git tracks, blank lines and docstrings included. With `--since`, lines are told apart: those of files that
came after a commit, those by which a place of an older file has grown, and the rest. A line that took another's place
is one of the rest, and so is a file that moved.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("specdecode", "metrics", "vargen", "scenes", "benchmarks")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def lines_of(package: str) -> int:
    """Lines in the Python files of a package."""
    names = _git("ls-files", "-z", "--", f"{package}/*.py").split("\0")
    return sum(len((ROOT / name).read_text().splitlines()) for name in names if name)


def lines_since(commit: str, package: str) -> tuple[int, int]:
    """Lines of files of a package that came after a commit, and lines by which places of older ones have grown."""
    in_new = in_old = 0
    is_new = False
    changes = _git("diff", "--find-renames=40%", "--unified=0", commit, "--", f"{package}/*.py")
    for line in changes.splitlines():
        if line.startswith("diff --git"):
            is_new = False
        elif line.startswith("new file mode"):
            is_new = True
        elif hunk := _HUNK.match(line):
            before, after = (1 if count is None else int(count) for count in hunk.groups())
            if is_new:
                in_new += after
            else:
                in_old += max(after - before, 0)
    return in_new, in_old


def main() -> None:
    """Print a line a package, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="tell apart what came after this commit")
    since = parser.parse_args().since
    rows = []
    for package in PACKAGES:
        count = lines_of(package)
        later = lines_since(since, package) if since else ()
        rows.append((count, *later, *([count - sum(later)] if since else [])))
    if since:
        print(f"{'':12}{'all':>8}{'new files':>11}{'grown':>8}{'the rest':>10}")
    widths = (8, 11, 8, 10)
    for name, row in zip((*PACKAGES, "all"), (*rows, tuple(map(sum, zip(*rows, strict=True)))), strict=True):
        print(f"{name:12}" + "".join(f"{count:{width},}" for count, width in zip(row, widths, strict=False)))


if __name__ == "__main__":
    main()
