"""What scripts that measure a pair of Video-LLMs are told on the command line, and figures as a terminal shows them.

Belongs here: options that several scripts share. Does not belong here: measuring (`paper_tables.py`).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenes.shipped import VIDEO_FRAMES, VIDEO_SIDE
from vargen.base.resources import find_video_model


def add_pair_options(parser: ArgumentParser) -> None:
    """Which pair a script looks at, which videos of the scene world, and what it shows and writes."""
    parser.add_argument("--model", help="folder of the target, or the name of a shipped one")
    parser.add_argument("--draft_model", help="likewise, the smaller one")
    parser.add_argument("--num_frames", type=int, default=VIDEO_FRAMES)
    parser.add_argument("--image_size", type=int, default=VIDEO_SIDE)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--dry_run", action="store_true", help="write no record")


def pair_folders(options: Namespace) -> list[Path]:
    """Of the target and the draft model that these options name."""
    return [find_video_model(options.model), find_video_model(options.draft_model or "video-llm-draft")]


def shown_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the terminal: rounded, intervals left out."""
    told = {name: value["value"] if isinstance(value, Mapping) else value for name, value in row.items()}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}
