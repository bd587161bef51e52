"""`vargen demo`: a page to play with, in a browser."""

from __future__ import annotations

from collections.abc import Sequence

from vargen.commands.arguments import build_parser, fill, parse
from vargen.demo.app import DemoConfig, run_until_interrupted


def run(arguments: Sequence[str]) -> int:
    """Serve the page until it is interrupted."""
    parser = build_parser(
        "demo",
        "Open a page on this machine. Plain decoding and another method draw the same prompt side by side, answers "
        "about videos appear word by word, and methods are compared. Nothing leaves the machine without --share.",
        DemoConfig,
    )
    run_until_interrupted(fill(DemoConfig, parse(parser, arguments)))
    return 0
