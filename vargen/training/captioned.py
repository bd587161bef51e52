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
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from metrics.images import IMAGE_SUFFIXES, list_pictures, to_rgb, warn_of_left_out
from vargen.base.errors import UserError
from vargen.base.picture_files import open_picture
from vargen.base.prompts import PROMPT_COLUMNS, lower_keys, prompt_of, read_records
from vargen.base.reading import expanded, read_bytes
from vargen.runs.files import inside

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
    def content(self) -> bytes:
        """Of the picture's file."""
        return self.file if isinstance(self.file, bytes) else read_bytes(self.file, _ARGUMENT)

    @property
    def described(self) -> str:
        """The caption, and a digest of the file: another picture under the old caption is another one."""
        return f"{self.caption} ({hashlib.sha256(self.content).hexdigest()[:16]})"

    def square(self) -> Image.Image:
        """The middle of the picture, as large as its shorter side. Raises UserError where it cannot be read."""
        picture = to_rgb(open_picture(self.content, self.place))
        side = min(picture.size)
        return ImageOps.fit(picture, (side, side))


def captioned_pictures(source: str) -> Iterator[CaptionedPicture]:
    """The pictures of a source in its order; in the end a warning tells of those of a folder that have no caption.
    Raises UserError for a caption without a picture, or with two."""
    path = expanded(source)
    table, folder, read = path / "metadata.jsonl", path if path.is_dir() else path.parent, set[Path | bytes]()
    rows = read_records(str(table) if table.is_file() else source, _ARGUMENT, (*PROMPT_COLUMNS, "image"))
    for place, row in rows:
        caption, file = prompt_of(row, place), _file(lower_keys(row), folder, place)
        yield CaptionedPicture(caption, file, place.rstrip(":"))
        read.add(file.resolve() if isinstance(file, Path) else b"")
    if path.is_dir() and b"" not in read:
        left_out = [each.relative_to(path).as_posix() for each in list_pictures(path) if each.resolve() not in read]
        warn_of_left_out(f"{_ARGUMENT}: {path}", left_out, "give each a caption to learn it")


def _file(row: Mapping[str, Any], folder: Path, place: str) -> Path | bytes:
    image, name = row.get("image"), row.get("file_name")
    content = image.get("bytes") if isinstance(image, Mapping) else image
    if isinstance(content, bytes):
        return content
    image = image.get("path") if isinstance(image, Mapping) else image
    found = []
    if isinstance(name, str) and name.lower().endswith(".txt"):
        beside = sorted(folder.glob(f"{glob.escape(Path(name).stem)}.*"))
        found = [each for each in beside if each.stem == Path(name).stem and each.suffix.lower() in IMAGE_SUFFIXES]
    elif name := image or name:
        try:
            if isinstance(name, str) and os.path.isabs(name):  # as datasets writes them
                name = os.path.relpath(name, folder)
            found = [path for path in [inside(folder, name, linked=True)] if path.is_file()]
        except UserError as error:
            raise UserError(f"{place} {error}") from None
    if len(found) > 1:
        raise UserError(f"{place} {found[0].name} and {found[1].name} both have the name of this caption; keep one")
    if not found:
        raise UserError(f"{place} there is no picture of this caption; put it beside the caption, or name it file_name")
    return found[0]
