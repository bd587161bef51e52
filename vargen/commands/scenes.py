"""`vargen scenes`: rendered scenes with captions, truth and a contact sheet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vargen.commands.options import build_parser, fill, parse


@dataclass(frozen=True)
class ScenesConfig:
    """What to render.

    Args:
        output: folder to write images/, captions.txt, metadata.jsonl and contact_sheet.png to.
        count: how many scenes.
        split: "train", "heldout" (combinations that training never shows) or "all".
        seed: seed of the first scene; scene i has the seed `seed + i`.
        image_size: side of the pictures in pixels, a multiple of 8.
        detail: strength of grass, sand, wood grain and clouds; 0 is smooth.
    """

    output: str = "scenes"
    count: int = 16
    split: str = "all"
    seed: int = 0
    image_size: int = 128
    detail: float = 1.0


def run(arguments: Sequence[str]) -> int:
    """Write scenes and say where they are."""
    parser = build_parser("scenes", "Render scenes of the captioned world into a folder.", ScenesConfig)
    parser.add_argument("--json", action="store_true", help="print a JSON summary and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    values = parse(parser, arguments)
    config = fill(ScenesConfig, values)

    from vargen.scenes.dataset import write_scenes

    folder = write_scenes(**asdict(config), progress=not values.quiet)
    if values.json:
        print(json.dumps({"output": str(folder), "count": config.count, "split": config.split}))
    else:
        print(f"{config.count} scenes ({config.split}) in {folder}; look at {folder / 'contact_sheet.png'}")
    return 0
