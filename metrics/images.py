"""Pictures on disk as tensors of bytes: which files there are, whether they are whole, and how they are resized.

Belongs here: listing, reading, resizing. Does not belong here: what is computed from the pictures.

A picture is uint8 `[3, H, W]`, RGB. Nothing is skipped silently: a file that cannot be read is an error that names it
and says how many there are, and pictures that are left out are told. The resizer is part of a protocol: FID changes by
whole points between them (Parmar et al., "On Aliased Resizing and Surprising Subtleties in GAN Evaluation", arXiv
2104.11222).
"""

from __future__ import annotations

import hashlib
import io
import mimetypes
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from metrics.errors import DataError

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".ppm", ".pgm", ".pbm"),
)
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
"""What Pillow reads here, whatever a file is called. Its readers of PostScript and others start programs."""


class ImageFolder:
    """The pictures of a folder in natural order ("2.png" before "10.png"), read when asked for.

    Args:
        path: the folder; pictures in folders below it count, too.

    Raises:
        DataError: no such folder, or no picture in it.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise DataError(f"{path} is not a folder of pictures; name one, or an .npz file")
        self.path, self.files = path, list_pictures(path)
        if not self.files:
            raise DataError(f"{path} holds no picture ({', '.join(IMAGE_SUFFIXES)}); name another folder")

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        """Pictures by number. Raises DataError for one that is not whole."""
        return [read_image(self.files[index]) for index in indices]

    def digest(self) -> str:
        """A hash over the names and bytes of all files: the same pictures, the same digest."""
        total = hashlib.sha256()
        for file in self.files:
            total.update(file.relative_to(self.path).as_posix().encode() + b"\0")
            total.update(hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()


def list_pictures(folder: Path, below: bool = True) -> list[Path]:
    """The pictures of a folder in natural order, without hidden files, behind links, too. A warning tells of pictures
    that are left out: of other suffixes, behind links that lead nowhere, or to a folder that is read already.

    Args:
        folder: to be read.
        below: whether those in folders below it count.
    """
    found, left_out, seen = [], list[str](), set[str]()
    for place, folders, names in os.walk(folder, followlinks=True):
        where = Path(place)
        if (real := os.path.realpath(place)) in seen:
            left_out.append(f"{where.relative_to(folder)}, a folder that is read already")
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if below and not is_hidden(Path(name)))
        for name in names:
            path = where / name
            if is_hidden(Path(name)):
                continue
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                found.append(path)
            elif path.suffix.lower() in IMAGE_SUFFIXES or (mimetypes.guess_type(name)[0] or "").startswith("image/"):
                left_out.append(path.relative_to(folder).as_posix())
    warn_of_left_out(folder, left_out, f"use {', '.join(IMAGE_SUFFIXES)}")
    return sorted(found, key=lambda path: natural_key(path.relative_to(folder).as_posix()))


def warn_of_left_out(folder: Path | str, names: Sequence[str], remedy: str) -> None:
    """Tell of what is not read of a folder, where there is any."""
    if names:
        shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        warnings.warn(f"{folder}: {len(names)} are left out: {shown}; {remedy}", stacklevel=3)


class ImageArray:
    """The pictures of an `.npz` file as the ADM suite lays it out: `arr_0`, uint8 `[N, H, W, 3]`. Raises DataError for
    no such file, or no such array in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_npz(path) as arrays:
            if "arr_0" not in arrays:
                raise DataError(f"{path} holds no array arr_0 of pictures; it has {', '.join(arrays.files)}")
            self.array = arrays["arr_0"]
        if self.array.dtype != np.uint8 or self.array.ndim != 4 or self.array.shape[-1] != 3:
            raise DataError(f"{path}: arr_0 must be uint8 [N, H, W, 3], got {self.array.dtype} {self.array.shape}")
        if not self.array.size:
            raise DataError(f"{path}: arr_0 has the shape {self.array.shape}, which holds no pixel; make it again")

    def __len__(self) -> int:
        return len(self.array)

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        """Pictures by number."""
        return [torch.from_numpy(self.array[index].copy()).permute(2, 0, 1) for index in indices]

    def digest(self) -> str:
        """A hash over shape and pixels."""
        return hashlib.sha256(str(self.array.shape).encode() + np.ascontiguousarray(self.array).data).hexdigest()


def open_images(path: Path) -> ImageFolder | ImageArray:
    """A folder of pictures or an `.npz` of them."""
    return ImageArray(path) if path.suffix == ".npz" else ImageFolder(path)


def save_array(file: BinaryIO, read: Callable[[Sequence[int]], Sequence[Tensor]], count: int) -> None:
    """Write pictures as `ImageArray` reads them, and the evaluators of ADM and LlamaGen: a few at a time, so that
    memory holds no more.

    Args:
        file: to be written, an `.npz`.
        read: gives pictures uint8 `[3, H, W]` by number.
        count: of pictures.

    Raises:
        DataError: there is none, or they differ in size.
    """
    if count < 1:
        raise DataError("an array of pictures needs at least one")
    _, height, width = read([0])[0].shape
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, height, width, 3)}
    with zipfile.ZipFile(file, "w") as archive, archive.open("arr_0.npy", "w", force_zip64=True) as entry:
        np.lib.format.write_array_header_1_0(entry, header)
        for number in range(count):
            picture = read([number])[0]
            if picture.shape != (3, height, width):
                raise DataError(f"picture {number + 1} has another size than the first, {height} x {width}")
            entry.write(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()).tobytes())


@contextmanager
def open_npz(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """An `.npz` file whose arrays hold plain numbers, to be read within the block. Raises DataError when it is missing
    or damaged, or an array in it is."""
    _check_regular(path)
    try:
        with np.load(path, allow_pickle=False) as opened:
            if not isinstance(opened, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is not an .npz file")
            names = [name.removesuffix(".npy") for name in (opened.zip.namelist() if opened.zip else ())]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise DataError(f"{path} holds two arrays {twice}; make it again")
            yield opened
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path} needs more memory than there is ({error}); make it again, or smaller") from error
    except Exception as error:  # numpy reads arrays when they are asked for, and a damaged one can raise anything
        reason = str(error).split("\n")[0] or type(error).__name__
        raise DataError(f"{path} cannot be read ({reason}); make or copy it again") from error


def read_rgb(path: Path, upright: bool = False) -> Image.Image:
    """A picture as RGB of 8 bits: greys of 16 bits are scaled, and what is transparent shows white.

    Args:
        path: the file.
        upright: turn it as its camera was held.

    Raises:
        DataError: a file that is missing, truncated, no picture, too large, or of numbers without a white.
    """
    _check_regular(path)
    try:
        with open_whole(path) as image:
            return to_rgb(ImageOps.exif_transpose(image) if upright else image)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # PIL raises half a dozen kinds
        raise DataError(f"{path} cannot be read ({error}); make or copy it again") from error


@contextmanager
def open_whole(
    file: Path | bytes, formats: tuple[str, ...] = FORMATS, check: Callable[[Image.Image], None] | None = None
) -> Iterator[Image.Image]:
    """A picture, which is loaded. Reading pixels shows what is missing; a byte of a PNG that is another one shows in
    the sums of its parts alone.

    Args:
        file: its path, or its content.
        formats: that it may have.
        check: refuses a picture by its head, before its pixels are read.

    Raises:
        Exception: half a dozen kinds of errors, and what `check` raises.
    """
    for is_checked in (False, True):
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=formats) as image:
            if is_checked:
                image.load()
                yield image
                return
            if check is not None:
                check(image)
            if image.format == "PNG":
                image.verify()


def read_image(path: Path) -> Tensor:
    """uint8 `[3, H, W]`. Raises DataError as `read_rgb`."""
    return to_bytes(read_rgb(path))


def eight_bits(image: Image.Image) -> Image.Image:
    """A picture whose greys of 16 bits are scaled: PIL's own conversion cuts them off at 255. Raises DataError for one
    of numbers without a white."""
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65_535:
            raise DataError("a picture of whole numbers beyond 16 bits has no white; save it with 8 bits")
        return Image.fromarray(np.round(values / 257).astype(np.uint8))
    if image.mode == "F":
        raise DataError("a picture of floating-point numbers has no white; save it with 8 bits")
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """A picture as RGB of 8 bits, see `read_rgb`: PIL's own conversion shows the hidden colour of what is transparent.
    Raises DataError as `eight_bits`."""
    image = eight_bits(image)
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        white = Image.new("RGBA", shown.size, "white")
        return Image.alpha_composite(white, shown).convert("RGB")
    return image.convert("RGB")


def _check_regular(path: Path) -> None:
    """Refuse what is no file; a pipe would be waited for."""
    if not os.path.exists(path):
        raise DataError(f"{path} does not exist")
    if not os.path.isfile(path):
        raise DataError(f"{path} is no regular file; name one")


def is_hidden(path: Path) -> bool:
    """Whether systems hide it, such as `.ipynb_checkpoints` and the `._1.png` that macOS writes beside a picture."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.parts)


def unreadable(paths: Sequence[Path]) -> list[Path]:
    """Those that `read_image` cannot read."""
    broken = []
    for path in paths:
        try:
            read_image(path)
        except DataError:
            broken.append(path)
    return broken


def to_bytes(image: Image.Image) -> Tensor:
    """uint8 `[3, H, W]` of an RGB image."""
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def to_image(picture: Tensor) -> Image.Image:
    """The PIL image of uint8 `[3, H, W]`."""
    return Image.fromarray(picture.permute(1, 2, 0).cpu().numpy())


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts numbers inside names by value."""
    parts = re.split(r"(\d+)", name.lower())
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]


# Resizers: from a picture uint8 [3, h, w] and a side to uint8 [3, side, side].
def keep_size(picture: Tensor, side: int) -> Tensor:
    """The picture as it is. Raises DataError if it has another size."""
    if picture.shape[-2:] != (side, side):
        height, width = picture.shape[-2:]
        raise DataError(f"a picture is {width} x {height}, not {side} x {side}; resize them or name another resizer")
    return picture


def crop_and_lanczos(picture: Tensor, side: int) -> Tensor:
    """The middle square, then Lanczos: what GigaGAN's evaluation, and LANTERN's and LlamaGen's after it, do."""
    height, width = picture.shape[-2:]
    edge = min(height, width)
    left, top = (width - edge) // 2, (height - edge) // 2
    image = to_image(picture).crop((left, top, left + edge, top + edge))
    return to_bytes(image.resize((side, side), Image.Resampling.LANCZOS))


def bicubic(picture: Tensor, side: int) -> Tensor:
    """PIL's bicubic, antialiased, of the whole picture."""
    return to_bytes(to_image(picture).resize((side, side), Image.Resampling.BICUBIC))


RESIZERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "none": keep_size,
    "center-crop-lanczos": crop_and_lanczos,
    "bicubic": bicubic,
}
"""The resizers, by the name that protocols record."""


def resize(pictures: Sequence[Tensor], resizer: str, side: int) -> Tensor:
    """uint8 `[B, 3, side, side]`. Raises DataError for another resizer, a picture of another size under "none", or none
    that is uint8 `[3, H, W]`."""
    if resizer not in RESIZERS:
        raise DataError(f"resizer must be one of {', '.join(RESIZERS)}, got {resizer!r}")
    for picture in pictures or (torch.empty(0),):
        if picture.dtype != torch.uint8 or picture.ndim != 3 or len(picture) != 3 or not picture.numel():
            found = f"{picture.dtype} {list(picture.shape)}"
            raise DataError(f"pictures must be uint8 [3, H, W], one or more, got {found}")
    return torch.stack([RESIZERS[resizer](picture, side) for picture in pictures])
