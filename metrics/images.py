"""Pictures on disk as tensors of bytes: which files there are, whether they are whole, and how they are resized.

Belongs here: listing, reading, resizing. Does not belong here: what is computed from the pictures.

A picture is uint8 `[3, H, W]`, RGB. Nothing is skipped silently: a file that cannot be read is an error that names it
and says how many there are. The resizer is part of a protocol: FID changes by whole points between them (Parmar et al.,
"On Aliased Resizing and Surprising Subtleties in GAN Evaluation", arXiv 2104.11222).
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metrics.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


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
        found = [file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()]
        if not found:
            raise DataError(f"{path} holds no picture ({', '.join(IMAGE_SUFFIXES)}); name another folder")
        self.path = path
        self.files = sorted(found, key=lambda file: natural_key(file.relative_to(path).as_posix()))

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


def open_npz(path: Path) -> np.lib.npyio.NpzFile:
    """An `.npz` file whose arrays hold plain numbers. Raises DataError when it is missing or damaged."""
    try:
        opened = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}); make or copy it again") from error
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise DataError(f"{path} is not an .npz file")
    return opened


def read_image(path: Path) -> Tensor:
    """uint8 `[3, H, W]`. Raises DataError for a file that is missing, truncated or no picture."""
    try:
        with Image.open(path) as image:
            return to_bytes(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # SyntaxError: a broken PNG
        raise DataError(f"{path} cannot be read ({error}); make or copy it again") from error


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
    return [(1, int(part), part) if part.isdigit() else (0, 0, part) for part in parts]


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
"""By the name that protocols record."""


def resize(pictures: Sequence[Tensor], resizer: str, side: int) -> Tensor:
    """uint8 `[B, 3, side, side]`. Raises DataError for another resizer, or a picture of another size under "none"."""
    if resizer not in RESIZERS:
        raise DataError(f"resizer must be one of {', '.join(RESIZERS)}, got {resizer!r}")
    return torch.stack([RESIZERS[resizer](picture, side) for picture in pictures])
