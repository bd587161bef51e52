"""Work in batches, each kept whole or not at all, and the folder of one method in an evaluation:

    FOLDER/config.json          what decides the pictures
    FOLDER/batches/000000.npz   the tokens of a batch, and their cost
    FOLDER/images/000000.png    its pictures, decoded from these tokens
    FOLDER/measured/KEY/000000.npz   features of the pictures (KEY stands for how they were measured)

Batches are cut by number alone, so any number of processes makes the same batches, each its share. A batch that a kill
interrupted is made again, and a finished one never. Pictures are decoded one by one from stored tokens, so a lost or
half-written PNG comes back bit by bit the same. Where tokens alone make no pixels, its batch is made again.

Belongs here: files. Does not belong here: which pictures are made (`vargen.jobs.evaluation`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from metrics.errors import DataError
from metrics.images import open_npz
from vargen.base.errors import UserError
from vargen.base.reading import parse_json, reading, reason_of
from vargen.runs import files
from vargen.runs.identity import check_identity_file
from vargen.runs.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

Arrays = dict[str, np.ndarray]
_NUMBER = "vargen"
"""The name of a text in a picture: its number."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """The batches of one process: batch b belongs to the process of rank `b % processes`."""

    rank: int = 0
    processes: int = 1

    def of(self, batches: Sequence[int]) -> list[int]:
        """The batches of this process."""
        return [batch for batch in batches if batch % self.processes == self.rank]


class BatchStore:
    """Arrays by number of batch, one `.npz` file each, whole or absent.

    Args:
        folder: of the files.
        count: number of all items.
        batch_size: items in a batch; the last one may have fewer.
        before_writing: is called before every write.
    """

    def __init__(
        self, folder: Path, count: int, batch_size: int, before_writing: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self._before_writing = before_writing
        self.batches = [range(first, min(first + batch_size, count)) for first in range(0, count, batch_size)]

    def path(self, batch: int) -> Path:
        return self.folder / f"{batch:06d}.npz"

    def missing(self) -> list[int]:
        """Numbers of the missing batches."""
        return [batch for batch in range(len(self.batches)) if not self.path(batch).is_file()]

    def write(self, batch: int, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any] | None = None) -> None:
        """Keep a batch; `record` holds plain values."""
        self._before_writing()
        self.folder.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(self.folder)
        content = io.BytesIO()
        note = np.frombuffer(json.dumps(record or {}).encode(), dtype=np.uint8)
        np.savez(content, **{"record": note, **arrays})  # type: ignore[arg-type]  # numpy names one keyword
        files.write_atomic(self.path(batch), content.getvalue())

    def read(self, batch: int) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and record of a batch. Raises UserError where the file is damaged or holds another number of items."""
        path = self.path(batch)
        remedy = "delete it and run the same command again"
        try:
            with open_npz(path) as content:
                arrays = {name: content[name] for name in content.files}
        except DataError as error:
            raise UserError(f"{path} cannot be read ({reason_of(error.__cause__ or error)}); {remedy}") from error
        with reading(path, remedy):
            record = parse_json(arrays.pop("record").tobytes())
        if any(array.shape[:1] != (len(self.batches[batch]),) for array in arrays.values()):
            raise UserError(f"{path} holds another number of pictures; delete it and run the same command again")
        return arrays, record

    def work(self, share: Share, make: Callable[[range], tuple[Arrays, dict[str, Any]]], shown: Progress) -> None:
        """Make this process's missing batches, each from the numbers of its items. `shown` counts all of its share."""
        for batch in self._missing(share, shown):
            self.write(batch, *make(self.batches[batch]))
            shown.update()

    def collect(
        self,
        share: Share,
        make: Callable[[Sequence[int]], Iterator[tuple[int, Item]]],
        bind: Callable[[Sequence[Item]], tuple[Arrays, dict[str, Any]]],
        shown: Progress,
    ) -> None:
        """Do what `work` does for items that are made in any order. A batch is kept when its last item is there.

        Args:
            share: this process's.
            make: yields all items of these numbers, each with its number.
            bind: gives arrays and record of a batch from its items in order.
            shown: counts every batch of the share.
        """
        wanted = {index: batch for batch in self._missing(share, shown) for index in self.batches[batch]}
        if not wanted:
            return
        found: dict[int, dict[int, Item]] = {}
        for index, item in make(list(wanted)):
            batch = wanted[index]
            of_batch = found.setdefault(batch, {})
            of_batch[index] = item
            if len(of_batch) == len(self.batches[batch]):
                self.write(batch, *bind([of_batch[each] for each in self.batches[batch]]))
                del found[batch]
                shown.update()

    def _missing(self, share: Share, shown: Progress) -> list[int]:
        """This process's missing batches. The finished ones are counted."""
        missing = share.of(self.missing())
        shown.skip(len(share.of(range(len(self.batches)))) - len(missing))
        return missing


class PictureBatches:
    """The folder of one method's pictures.

    Args:
        path: the folder.
        settings: everything that decides the pictures.
        count: number of pictures.
        batch_size: pictures that are made at once.
    """

    INSIDE = ("", "/batches", "/images", "/measured", "/measured/*")
    """Patterns of the folders in it, for `vargen.runs.files.own_folder`."""

    def __init__(self, path: Path, settings: Mapping[str, Any], count: int, batch_size: int) -> None:
        self.path = path
        self.settings = {"count": count, "batch_size": batch_size, **settings}
        self.count = count
        self.tokens = BatchStore(path / "batches", count, batch_size, self._begin)

    def check_identity(self) -> None:
        """Raises UserError for a folder of other pictures. It names the difference."""
        check_identity_file(self.path / "config.json", self.settings, holds="pictures")

    def _begin(self) -> None:
        """Write config.json, unless it is there."""
        if not (self.path / "config.json").exists():  # not before a batch is made: a failed start leaves nothing
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_json_atomic(self.path / "config.json", self.settings)

    def image_path(self, index: int) -> Path:
        return self.path / "images" / f"{index:06d}.png"

    def save_pictures(self, batch: int, decode: Callable[[np.ndarray], Image]) -> None:
        """Write the pictures of a batch that are missing or not whole.

        Args:
            decode: gives a picture from its tokens int32 `[N]`.
        """
        broken = self._broken(batch)
        if broken:
            first, tokens = self.tokens.batches[batch][0], self.tokens.read(batch)[0]["tokens"]
            for index in broken:
                self.keep_picture(index, decode(tokens[index - first]))

    def forget_without_pictures(self, batches: Sequence[int]) -> None:
        """Remove the tokens of batches with a missing or damaged picture, so that both are made again."""
        for batch in batches:
            if self._broken(batch):
                self.tokens.path(batch).unlink(missing_ok=True)

    def _broken(self, batch: int) -> list[int]:
        """Numbers of the batch's pictures that are missing, not whole, or other pictures."""
        return [index for index in self.tokens.batches[batch] if not self._is_own(index)]

    def keep_picture(self, index: int, picture: Image) -> None:
        """Write a picture that says which one it is; before its tokens, where these alone do not make the pixels."""
        from PIL.PngImagePlugin import PngInfo

        chunk = PngInfo()
        chunk.add_text(_NUMBER, f"{index} {files.pixels_of(picture)}")
        files.save_image_atomic(picture, self.image_path(index), pnginfo=chunk)

    def _is_own(self, index: int) -> bool:
        """Whether a picture is whole, and the one that was written there."""
        pixels, told = files.read_png(self.image_path(index))
        return pixels is not None and told.get(_NUMBER) == f"{index} {pixels}"

    def call_records(self) -> list[dict[str, Any]]:
        """The cost of each batch, in order."""
        return [self.tokens.read(batch)[1] for batch in range(len(self.tokens.batches))]
