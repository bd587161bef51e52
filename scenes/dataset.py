"""Scenes on disk: pictures or videos, captions, truth, and a sheet to look at.

Belongs here: laying out and writing files. Does not belong here: scenes and pictures (`scenes.rendering`), and captions
(`scenes.captions`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from scenes.captions.picture_captions import compose_caption
from scenes.captions.story_captions import compose_written_caption, compose_written_questions
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import SPLITS, Scene, object_boxes, sample_scene
from scenes.rendering.story import check_story_length, sample_story
from scenes.shipped import VIDEO_FRAMES, VIDEO_SIDE
from vargen.base.errors import UserError
from vargen.base.path_roles import check_replaceable
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.runs.files import own_folder, read_jsonl, save_image_atomic, write_atomic

METADATA_NAME = "metadata.jsonl"
MAX_SHEET_IMAGES = 64
"""A contact sheet of a folder shows at most this many pictures, the first ones."""
MAX_SHEET_VIDEOS = 12
"""A contact sheet of videos shows at most this many."""
MAX_STRIP_FRAMES = 8
"""Frames of a video that a contact sheet shows, evenly spread."""

_BATCH_SIZE = 32
_FILE_NAME = re.compile(r"images/\d{6,}\.png|videos/\d{6,}\.mp4")
_STRIP_GAP = 2


def write_scenes(
    output: str | PathLike[str],
    count: int,
    split: str = "all",
    seed: int = 0,
    image_size: int = 128,
    progress: bool = False,
) -> Path:
    """Render scenes `seed`, `seed + 1`, ... into a folder.

    The folder then holds `images/000000.png`, ...; `captions.txt`, one caption a line; `metadata.jsonl`, one record a
    picture with `file_name`, `text`, `claims` (what the caption says), `split`, `scene` (the whole truth) and `boxes`
    (pixels; left, top, right, bottom); and `contact_sheet.png`. The record file is removed first and written last, so
    it only ever describes pictures that are there. Pictures of an earlier, longer run in the same folder are removed.

    Args:
        output: the folder; it is made where it does not exist.
        count: how many scenes, at least 1.
        split: "train", "heldout" or "all".
        seed: the first scene's seed, not negative.
        image_size: side of the pictures in pixels, a multiple of 8.
        progress: show a progress bar.

    Returns:
        The folder.

    Raises:
        UserError: for a value out of range, or an output path that is a file.
    """
    renderer = _renderer(split, image_size)
    samples = _pictures(renderer, count, split, seed)
    return _write(Path(output), "images", samples, count, MAX_SHEET_IMAGES, progress)


def write_videos(
    output: str | PathLike[str],
    count: int,
    split: str = "all",
    seed: int = 0,
    image_size: int = VIDEO_SIDE,
    num_frames: int = VIDEO_FRAMES,
    fps: float = 2.0,
    progress: bool = False,
) -> Path:
    """Render videos `seed`, `seed + 1`, ... into a folder.

    As `write_scenes`, with `videos/000000.mp4`, ... instead of pictures, and in each record `claims` as a list of
    lists of words; `questions`, each with its `answer`; `video` (the whole truth, what happens and every frame's
    scene); and `boxes` of every frame. The sheet shows frames of each video side by side.

    Args:
        output, count, split, seed, image_size, progress: as for `write_scenes`.
        num_frames: of a video, 8 or more. A seed gives another video with another number of frames.
        fps: of a video.

    Returns:
        The folder.

    Raises:
        UserError: for a value out of range, an output path that is a file, or where PyAV is not installed.
    """
    from scenes.rendering.video_file import check_writing  # pictures shall not need what videos need

    renderer = _renderer(split, image_size)
    check_story_length(num_frames)
    check_writing(fps)
    samples = _videos(renderer, count, split, seed, num_frames, fps)
    return _write(Path(output), "videos", samples, count, MAX_SHEET_VIDEOS, progress, columns=1)


@dataclass(frozen=True)
class _Sample:
    """A record, what the contact sheet shows of it, and what writes its file."""

    record: dict[str, Any]
    shown: Image.Image
    save: Callable[[Path], None]


def _renderer(split: str, image_size: int) -> SceneRenderer:
    """Raises UserError for an unknown split or a size that cannot be rendered."""
    if split not in SPLITS:
        raise UserError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    try:
        return SceneRenderer(image_size)
    except ValueError as error:
        raise UserError(str(error)) from error


def _write(
    folder: Path,
    subfolder: str,
    samples: Iterator[_Sample],
    count: int,
    max_shown: int,
    progress: bool,
    columns: int | None = None,
) -> Path:
    """Write samples as they come, then the sheet, the captions, and last the record of everything."""
    with own_folder(folder, (subfolder,)):
        for name in ("config.json", "result.jsonl"):
            if (folder / name).exists():
                raise UserError(f"output: {folder} holds pictures of another command ({name}); choose another folder")
        for name in (METADATA_NAME, "captions.txt", "contact_sheet.png"):
            check_replaceable(folder / name)
        earlier = _earlier_files(folder)
        (folder / subfolder).mkdir(exist_ok=True)
        (folder / METADATA_NAME).unlink(missing_ok=True)

        records: list[dict[str, Any]] = []
        shown: list[Image.Image] = []
        with tqdm(total=count, unit=subfolder.removesuffix("s"), disable=not progress) as bar:
            for sample in samples:
                sample.save(folder / sample.record["file_name"])
                records.append(sample.record)
                if len(shown) < max_shown:
                    shown.append(sample.shown)
                bar.update()
        texts = [record["text"] for record in records]
        for name in earlier - {record["file_name"] for record in records}:
            (folder / name).unlink(missing_ok=True)
        save_image_atomic(contact_sheet(shown, texts[: len(shown)], columns), folder / "contact_sheet.png")
        write_atomic(folder / "captions.txt", "".join(text + "\n" for text in texts))
        write_atomic(folder / METADATA_NAME, "".join(json.dumps(record) + "\n" for record in records))
    return folder


def _pictures(renderer: SceneRenderer, count: int, split: str, seed: int) -> Iterator[_Sample]:
    """Records and pictures, rendered a batch at a time."""
    for start in range(0, count, _BATCH_SIZE):
        indices = range(start, min(start + _BATCH_SIZE, count))
        scenes = [sample_scene(seed + index, split) for index in indices]
        images = to_pil(renderer(scenes).images)
        for index, scene, image in zip(indices, scenes, images, strict=True):
            caption = compose_caption(scene, seed + index)
            record = {
                "file_name": f"images/{index:06d}.png",
                "text": caption.text,
                "claims": asdict(caption.claims),
                "split": split,
                "scene": asdict(scene),
                "boxes": _boxes(scene, image.width),
            }
            yield _Sample(record, image, partial(save_image_atomic, image))


def _videos(
    renderer: SceneRenderer, count: int, split: str, seed: int, num_frames: int, fps: float
) -> Iterator[_Sample]:
    """Records and videos, rendered one at a time."""
    from scenes.rendering.video_file import write_video

    for index in range(count):
        video = sample_story(seed + index, num_frames, split)
        caption = compose_written_caption(video, seed + index)
        frames = renderer(list(video.frames)).images  # [F, 3, H, W]
        record = {
            "file_name": f"videos/{index:06d}.mp4",
            "text": caption.text,
            "claims": sorted(caption.claims),
            "questions": [{"question": each, "answer": answer} for each, answer in compose_written_questions(video)],
            "split": split,
            "fps": fps,
            "video": asdict(video),
            "boxes": [_boxes(scene, frames.shape[-1]) for scene in video.frames],
        }
        yield _Sample(record, _strip(to_pil(frames)), partial(write_video, frames, fps=fps))


def _boxes(scene: Scene, image_size: int) -> list[list[float]]:
    return [[round(edge, 2) for edge in box] for box in object_boxes(scene, image_size).tolist()]


def _strip(frames: Sequence[Image.Image]) -> Image.Image:
    """Frames side by side; of many, some."""
    count = min(len(frames), MAX_STRIP_FRAMES)
    chosen = [frames[number * (len(frames) - 1) // max(count - 1, 1)] for number in range(count)]
    width, height = chosen[0].size
    strip = Image.new("RGB", (count * (width + _STRIP_GAP) - _STRIP_GAP, height), "white")
    for number, frame in enumerate(chosen):
        strip.paste(frame, (number * (width + _STRIP_GAP), 0))
    return strip


def _earlier_files(folder: Path) -> set[str]:
    """Pictures and videos that an earlier run wrote into the folder, by its own record."""
    names = {record.get("file_name") for record in read_jsonl(folder / METADATA_NAME)}
    return {name for name in names if isinstance(name, str) and _FILE_NAME.fullmatch(name)}
