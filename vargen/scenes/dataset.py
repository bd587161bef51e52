"""Scenes on disk: pictures, captions, truth, and a sheet to look at.

Only laying out and writing files belongs here. What a scene is, how it looks and what is said about it are the business
of `scene.py`, `renderer.py` and `captions.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from tqdm import tqdm

from vargen.files import UserError, read_jsonl, save_image_atomic, write_atomic
from vargen.scenes.captions import compose_caption
from vargen.scenes.renderer import SceneRenderer
from vargen.scenes.scene import SPLITS, object_boxes, sample_scene

METADATA_NAME = "metadata.jsonl"
MAX_SHEET_IMAGES = 64
"""A contact sheet of a folder shows at most this many pictures, the first ones."""

_BATCH_SIZE = 32
_IMAGE_NAME = re.compile(r"images/\d{6,}\.png")
_PADDING = 8
_MIN_CELL_WIDTH = 160
_FONT_SIZE = 12


def write_scenes(
    output: str | PathLike[str],
    count: int,
    split: str = "all",
    seed: int = 0,
    image_size: int = 128,
    detail: float = 1.0,
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
        detail: strength of the stochastic detail, as for `SceneRenderer`.
        progress: show a progress bar.

    Returns:
        The folder.

    Raises:
        UserError: for a value out of range, or an output path that is a file.
    """
    if count < 1:
        raise UserError(f"count: {count} scenes cannot be written; give 1 or more")
    if seed < 0:
        raise UserError(f"seed: {seed} must not be negative")
    if split not in SPLITS:
        raise UserError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    try:
        renderer = SceneRenderer(image_size, detail)
    except ValueError as error:
        raise UserError(str(error)) from error
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output: {folder} is a file; name a folder")
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"output: {error.filename} is in the way; name another folder") from error
    earlier = _earlier_images(folder)
    (folder / METADATA_NAME).unlink(missing_ok=True)

    records: list[dict[str, Any]] = []
    shown: list[Image.Image] = []
    with tqdm(total=count, unit="image", disable=not progress) as bar:
        for record, image in _rendered(renderer, count, split, seed):
            save_image_atomic(image, folder / record["file_name"])
            records.append(record)
            if len(shown) < MAX_SHEET_IMAGES:
                shown.append(image)
            bar.update()
    texts = [record["text"] for record in records]
    for name in earlier - {record["file_name"] for record in records}:
        (folder / name).unlink(missing_ok=True)
    save_image_atomic(contact_sheet(shown, texts[: len(shown)]), folder / "contact_sheet.png")
    write_atomic(folder / "captions.txt", "".join(text + "\n" for text in texts))
    write_atomic(folder / METADATA_NAME, "".join(json.dumps(record) + "\n" for record in records))
    return folder


def contact_sheet(images: Sequence[Image.Image], captions: Sequence[str], columns: int | None = None) -> Image.Image:
    """A white sheet of pictures, each with its caption below it.

    Args:
        images: the pictures; they are drawn at their own size, each centred in its cell.
        captions: one a picture, wrapped to the width of the cells; line breaks are kept, empty ones take no room.
        columns: pictures a row; by default the sheet is about as wide as it is high, at most 8.

    Raises:
        ValueError: without images, or for another number of captions than of images.
    """
    if not images:
        raise ValueError("images: a contact sheet needs at least one")
    if len(images) != len(captions):
        raise ValueError(f"captions: {len(captions)} given for {len(images)} images; give one each")
    if columns is not None and columns < 1:
        raise ValueError(f"columns: {columns} must be at least 1")
    columns = min(len(images), columns or min(8, round(len(images) ** 0.5 + 0.49)))
    font = ImageFont.load_default(_FONT_SIZE)
    width = max(_MIN_CELL_WIDTH if any(captions) else 1, *(image.width for image in images))
    labels = [_wrap(caption, font, width) for caption in captions]
    line_height = _FONT_SIZE + 3

    rows = [range(start, min(start + columns, len(images))) for start in range(0, len(images), columns)]
    picture_heights = [max(images[index].height for index in row) for row in rows]
    label_heights = [max(len(labels[index]) for index in row) * line_height for row in rows]
    height = sum(picture_heights) + sum(label_heights) + _PADDING * (len(rows) + 1)
    sheet = Image.new("RGB", (columns * (width + _PADDING) + _PADDING, height + _PADDING // 2 * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    top = _PADDING
    for row, picture_height, label_height in zip(rows, picture_heights, label_heights, strict=True):
        for column, index in enumerate(row):
            left = _PADDING + column * (width + _PADDING)
            image = images[index].convert("RGB")
            sheet.paste(image, (left + (width - image.width) // 2, top))
            for number, line in enumerate(labels[index]):
                place = (left, top + picture_height + _PADDING // 2 + number * line_height)
                draw.text(place, line, fill="black", font=font)
        top += picture_height + label_height + _PADDING + _PADDING // 2
    return sheet


def to_pil(images: Tensor) -> list[Image.Image]:
    """PIL pictures of `[B, 3, H, W]` floats in [0, 1]; values outside are clipped."""
    pixels = (images.detach().float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().contiguous()
    return [Image.fromarray(item.numpy()) for item in pixels]


def _rendered(
    renderer: SceneRenderer, count: int, split: str, seed: int
) -> Iterator[tuple[dict[str, Any], Image.Image]]:
    """Records and pictures, rendered a batch at a time."""
    for start in range(0, count, _BATCH_SIZE):
        indices = range(start, min(start + _BATCH_SIZE, count))
        scenes = [sample_scene(seed + index, split) for index in indices]
        images = to_pil(renderer(scenes).images)
        for index, scene, image in zip(indices, scenes, images, strict=True):
            caption = compose_caption(scene, seed + index)
            yield (
                {
                    "file_name": f"images/{index:06d}.png",
                    "text": caption.text,
                    "claims": caption.claims.to_dict(),
                    "split": split,
                    "scene": scene.to_dict(),
                    "boxes": [[round(edge, 2) for edge in box] for box in object_boxes(scene, image.width).tolist()],
                },
                image,
            )


def _earlier_images(folder: Path) -> set[str]:
    """Pictures that an earlier run wrote into the folder, by its own record."""
    names = {record.get("file_name") for record in read_jsonl(folder / METADATA_NAME)}
    return {name for name in names if isinstance(name, str) and _IMAGE_NAME.fullmatch(name)}


def _wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Lines no wider than `width` pixels, broken between words; a wider word has a line of its own."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}" if line else word
            if line and font.getlength(longer) > width:
                lines.append(line)
                line = word
            else:
                line = longer
        lines.append(line)
    return lines
