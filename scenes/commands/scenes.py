"""`vargen scenes`: rendered scenes, still or moving, with captions, truth and a contact sheet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from scenes.shipped import VIDEO_FRAMES
from vargen.base.bounds import MAX_FRAMES, MAX_PICTURES, MAX_PIXELS, MAX_SEED, check_choice, check_numbers
from vargen.base.places import writes_in
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.methods.base import TASKS

_FILES = ("images", "videos", "captions.txt", "metadata.jsonl", "contact_sheet.png")


@dataclass(frozen=True)
class ScenesConfig:
    """What to render.

    Args:
        task: "image" for pictures, "video" for mp4 files of scenes in which something happens, with questions and
            answers.
        output: folder for images/ or videos/, captions.txt, metadata.jsonl and contact_sheet.png.
        num_scenes: number of scenes.
        split: "train", "heldout" (combinations that training never shows) or "all".
        seed: seed of the first scene; scene i has `seed + i`.
        image_size: side of the pictures in pixels, a multiple of 8; null for 128, or 96 for videos.
        num_frames: number of frames of a video, 8 or more.
        fps: number of frames of a video in each second.
    """

    task: str = "image"
    output: str = field(default="scenes", metadata=writes_in(*_FILES))
    num_scenes: int = 16
    split: str = "all"
    seed: int = 0
    image_size: int | None = None
    num_frames: int = VIDEO_FRAMES
    fps: float = 2.0

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        sizes = {"num_scenes": (1, MAX_PICTURES), "image_size": (8, MAX_PIXELS), "num_frames": (4, MAX_FRAMES)}
        check_numbers(self, sizes)
        check_numbers(self, {"seed": (0, MAX_SEED - self.num_scenes)})


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
