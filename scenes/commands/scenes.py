"""`vargen scenes`: rendered scenes, still or moving, with captions, truth and a contact sheet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scenes.shipped import VIDEO_FRAMES
from vargen.base.bounds import MAX_FRAMES, MAX_PICTURES, MAX_PIXELS, MAX_SEED, check_number
from vargen.base.options import OUTPUT, Settings, option
from vargen.base.path_roles import writes_in
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.methods.base import TASKS

_FILES = ("images", "videos", "captions.txt", "metadata.jsonl", "contact_sheet.png")


@dataclass(frozen=True)
class ScenesConfig(Settings):
    """What to render."""

    task: str = option("image", choices=TASKS)
    """What is rendered: "image" for pictures, "video" for mp4 files of scenes in which something happens, with
    questions and answers."""
    output: str = option("scenes", path=writes_in(*_FILES), group=OUTPUT)
    """Folder for images/ or videos/, captions.txt, metadata.jsonl and contact_sheet.png."""
    num_scenes: int = option(16, least=1, most=MAX_PICTURES)
    """Number of scenes."""
    split: str = option("all", choices=("train", "heldout", "all"))
    """Which scenes, "train", "heldout" (combinations that training never shows) or "all"."""
    seed: int = option(0, least=0, most=MAX_SEED)
    """Seed of the first scene; scene i has `seed + i`."""
    image_size: int | None = option(None, least=8, most=MAX_PIXELS)
    """Side of the pictures in pixels, a multiple of 8; null for 128, or 96 for videos."""
    num_frames: int = option(VIDEO_FRAMES, least=4, most=MAX_FRAMES)
    """Number of frames of a video, 8 or more."""
    fps: float = option(2.0, least=0.001, most=1000.0)
    """Number of frames of a video in each second."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("seed", self.seed, 0, MAX_SEED - self.num_scenes)


def run(arguments: Sequence[str]) -> int:
    """Write scenes and say where they are."""
    parser = build_parser("scenes", "Render scenes of the captioned world into a folder.", ScenesConfig)
    add_switches(parser, json="print a JSON summary and nothing else")
    values = parse(parser, arguments)
    config = fill(ScenesConfig, values)

    from scenes.dataset import write_scenes, write_videos

    settings = asdict(config)
    videos = settings.pop("task") == "video"
    settings["count"] = settings.pop("num_scenes")
    if settings["image_size"] is None:
        del settings["image_size"]
    if videos:
        folder = write_videos(**settings, progress=not values.quiet)
    else:
        for name in ("num_frames", "fps"):
            del settings[name]
        folder = write_scenes(**settings, progress=not values.quiet)
    if values.json:
        print(json.dumps({"output": str(folder), "count": config.num_scenes, "split": config.split}))
    else:
        things = "videos" if videos else "scenes"
        print(f"{config.num_scenes} {things} ({config.split}) in {folder}; look at {folder / 'contact_sheet.png'}")
    return 0
