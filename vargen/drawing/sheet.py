"""Pictures on a sheet, each with its caption, and helpers that drawings share: pixels of tensors, lines of text.

Belongs here: layout. Does not belong here: the meaning of a picture, and files.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_PADDING = 8
_MIN_CELL_WIDTH = 160
_FONT_SIZE = 12


def contact_sheet(images: Sequence[Image.Image], captions: Sequence[str], columns: int | None = None) -> Image.Image:
    """A white sheet of pictures, each with its caption below it.

    Args:
        images: the pictures at their own size, each centred in its cell. Transparent parts stay white.
        captions: one for each picture, wrapped to the width of the cells. Line breaks are kept.
        columns: pictures in a row; None for a sheet about as wide as it is high, with 8 at most.

    Raises:
        ValueError: no images, or another number of captions.
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
    labels = [wrap_text(caption, font, width) for caption in captions]
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
            image = images[index]
            opaque = image.getchannel("A") if image.mode == "RGBA" else None
            sheet.paste(image.convert("RGB"), (left + (width - image.width) // 2, top), opaque)
            for number, line in enumerate(labels[index]):
                place = (left, top + picture_height + _PADDING // 2 + number * line_height)
                draw.text(place, line, fill="black", font=font)
        top += picture_height + label_height + _PADDING + _PADDING // 2
    return sheet


def to_pil(images: Tensor) -> list[Image.Image]:
    """PIL pictures of `[B, 3, H, W]` floats in [0, 1]; values outside are clipped."""
    pixels = (images.detach().float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().contiguous()
    return [Image.fromarray(item.numpy()) for item in pixels]


def wrap_text(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Lines no wider than `width` pixels, broken between words; a wider word has a line of its own."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}" if line else word
            if line and font.getlength(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines
