"""A user's pictures with their captions: a folder, or a data set that datasets reads.

Belongs here: where a caption and its picture stand, and opening one. Does not belong here: prompts without pictures
(`vargen.base.prompts`), and what is made of pictures.

| source | pictures |
|---|---|
| a folder with `metadata.jsonl` | a line each, with `file_name`, and `text`, `caption` or `prompt` |
| a folder with a `.txt` beside each picture | that have the text's name |
| what datasets reads | its column `image` |
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from metrics.images import IMAGE_SUFFIXES
from vargen.base.errors import UserError
from vargen.base.picture_files import open_picture
from vargen.base.prompts import PROMPT_COLUMNS, lower_keys, prompt_of, read_records
from vargen.base.reading import expanded, read_bytes

_ARGUMENT = "pictures"


@dataclass(frozen=True)
class CaptionedPicture:
    """A picture that is not yet read.

    Args:
        caption: what it shows.
        file: of the picture, or its content in a data set.
        place: for errors.
    """

    caption: str
    file: Path | bytes
    place: str

    @property
    def described(self) -> str:
        """The caption, with the size of the file: another picture under the old caption is another one."""
        return f"{self.caption} ({len(self.file) if isinstance(self.file, bytes) else self.file.stat().st_size} bytes)"

    def square(self) -> Image.Image:
        """The middle of the picture, as large as its shorter side. Raises UserError where it cannot be read."""
        content = self.file if isinstance(self.file, bytes) else read_bytes(self.file, _ARGUMENT)
        picture = open_picture(content, self.place).convert("RGB")
        side = min(picture.size)
        return ImageOps.fit(picture, (side, side))


def captioned_pictures(source: str) -> Iterator[CaptionedPicture]:
    """The pictures of a source in its order. Raises UserError for one that cannot be read, or lacks a picture."""
    folder = expanded(source)
    table = folder / "metadata.jsonl"
    rows = read_records(str(table) if table.is_file() else source, _ARGUMENT, (*PROMPT_COLUMNS, "image"))
    for place, row in rows:
        yield CaptionedPicture(prompt_of(row, place), _file(lower_keys(row), folder, place), place.rstrip(":"))


def _file(row: Mapping[str, Any], folder: Path, place: str) -> Path | bytes:
    image, name = row.get("image"), str(row.get("file_name") or "")
    if isinstance(image, Mapping) and (content := image.get("bytes")) is not None:
        return content
    if isinstance(image, Mapping) and image.get("path"):
        path = Path(image["path"])
    elif name.endswith(".txt"):
        beside = folder.glob(f"{glob.escape(Path(name).stem)}.*")
        path = next((each for each in sorted(beside) if each.suffix.lower() in IMAGE_SUFFIXES), folder / name)
    else:
        path = folder / name
    if not path.is_file() or path.suffix == ".txt":
        raise UserError(f"{place} there is no picture of this caption; put it beside the caption, or name it file_name")
    return path
