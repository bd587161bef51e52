"""A user's picture in a request: which tokens it makes known, and its own pixels in the result.

Belongs here: reading pictures and masks as diffusers' inpainting pipelines take them, and the tokens that they force.
Does not belong here: a family's encoder, and how forced tokens are decoded (`specdecode.loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from metrics.images import eight_bits
from vargen.base.bounds import MAX_BATCH_SIZE, check_number
from vargen.base.errors import UserError
from vargen.base.picture_files import MAX_SIDE, check_edit
from vargen.models.picture_size import Grid

PictureInput = PIL.Image.Image | np.ndarray | Tensor | Sequence[PIL.Image.Image | np.ndarray | Tensor]
"""One picture for all prompts, or one for each, as diffusers takes them: an image, uint8 [H, W, 3], float32 [H, W, 3]
in [0, 1], or a tensor [3, H, W] in [0, 1]; arrays and tensors may have one dimension more in front."""

_MOST_LEVEL = 1.5
"""A picture of levels from 0 to 1 may have a little more where it was resized."""
_NEAR_RATIO = 1.02
"""How far the ratio of a picture's sides may be from that of the picture to draw."""


@dataclass(frozen=True)
class Edit:
    """The arguments of a call about a user's picture.

    Args:
        image: pictures to start from; None: everything is drawn.
        mask_image: white where to draw; None: `start_rows` says where.
        start_rows: so many first rows of codes stay as they are: one number for all, or one for each prompt.
        num_candidates: fillings of which the likeliest is given.
        paste_back: give the user's own pixels outside the mask, not the decoded ones.

    Raises:
        UserError: they do not belong together.
    """

    image: PictureInput | None = None
    mask_image: PictureInput | None = None
    start_rows: int | Sequence[int] | None = None
    num_candidates: int = 1
    paste_back: bool = False

    def __post_init__(self) -> None:
        check_number("num_candidates", self.num_candidates, 1, MAX_BATCH_SIZE)
        check_edit(self.image, self.mask_image, self.start_rows, self.paste_back)
        if self.image is None and self.num_candidates > 1:
            raise UserError("num_candidates needs image: fillings are compared by the tokens that it makes known")


@dataclass(frozen=True)
class KnownPicture:
    """A user's picture in the size that is drawn.

    Args:
        pixels: float32 [3, H, W] in [-1, 1].
        mask: bool [H, W], where to draw.
        codes: int64 [h, w], those of the whole picture.
        drawn: bool [h, w], where a code is drawn.
    """

    pixels: Tensor
    mask: Tensor
    codes: Tensor
    drawn: Tensor


def known_pictures(
    edit: Edit, grids: Sequence[Grid], pixels_a_code: int, encode: Callable[[Tensor], Tensor] | None, title: str
) -> list[KnownPicture] | None:
    """The pictures of a call, a prompt each; None: there are none.

    Args:
        edit: of the call.
        grids: of the pictures that are drawn, one for each prompt.
        pixels_a_code: along a side.
        encode: codes int64 [1, h, w] of pixels [1, 3, H, W] in [-1, 1]; None: there is no encoder.
        title: of the family.

    Raises:
        UserError: a picture or a mask cannot be used; the message names the argument.
    """
    if edit.image is None:
        return None
    if encode is None:
        raise UserError(f"image cannot be used with {title}: no encoder makes codes of pictures")
    count, found = len(grids), dict[tuple[int, int, Grid, Any], KnownPicture]()
    names = ("image", "mask_image", "start_rows")
    images, masks, rows = (one_for_each(name, getattr(edit, name), count) for name in names)
    pictures = []
    for key in zip(images, masks, rows, grids, strict=True):
        image, mask, start, grid = key
        same = (id(image), id(mask), grid, start)
        if same not in found:
            found[same] = _known_picture(image, mask, start, grid, pixels_a_code, encode)
        pictures.append(found[same])
    return pictures


def _known_picture(
    image: Any, mask: Any, start_rows: int | None, grid: Grid, pixels_a_code: int, encode: Callable[[Tensor], Tensor]
) -> KnownPicture:
    size = grid[0] * pixels_a_code, grid[1] * pixels_a_code
    pixels = read_picture(
        "image", image, VaeImageProcessor(vae_scale_factor=1, do_resize=False, do_convert_rgb=True), 3
    )
    found = pixels.shape[2:]
    if start_rows is not None:
        check_number("start_rows", start_rows, 1, grid[0] - 1)
        where = torch.arange(size[0])[:, None].expand(size) >= start_rows * pixels_a_code
    else:
        grey = VaeImageProcessor(
            vae_scale_factor=1, do_resize=False, do_normalize=False, do_binarize=True, do_convert_grayscale=True
        )
        drawn = read_picture("mask_image", mask, grey, 1)
        if drawn.shape[2:] != found:
            raise UserError(
                f"mask_image must have the size of image, {found[1]} x {found[0]} pixels, got {drawn.shape[3]} x "
                f"{drawn.shape[2]}"
            )
        where = F.adaptive_max_pool2d(drawn, size)[0, 0] > 0
    off = found[1] * size[0] / (found[0] * size[1])
    if max(off, 1 / off) > _NEAR_RATIO:
        raise UserError(
            f"image must have the shape of the picture that is drawn, {size[1]} x {size[0]} pixels, or that in another "
            f"size, got {found[1]} x {found[0]}; crop it first"
        )
    if found != size:
        pixels = F.interpolate(pixels, size, mode="bicubic", antialias=True, align_corners=False).clamp(-1, 1)
    draws = F.adaptive_max_pool2d(where[None, None].float(), grid)[0, 0] > 0
    if not bool(draws.any()):
        raise UserError("mask_image leaves nothing to draw: it must be white somewhere")
    with torch.no_grad():
        codes = encode(pixels)[0].cpu()
    return KnownPicture(pixels[0], where, codes, draws)


def one_for_each(name: str, value: Any, count: int) -> list[Any]:
    """An argument as one value for each of `count` prompts; it may be one for all. Raises UserError."""
    if isinstance(value, np.ndarray | Tensor) and value.ndim > 3:
        value = [*value]
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise UserError(f"{name} must be one for all prompts or one for each, {count} here; got {len(value)}")
    return [*value]


def read_picture(name: str, value: Any, processor: VaeImageProcessor, channels: int) -> Tensor:
    """float32 [1, channels, H, W] on the CPU. Raises UserError, which begins with `name`."""
    if isinstance(value, PIL.Image.Image):
        if getattr(value, "is_animated", False):
            raise UserError(f"{name} must be a single picture, got an animation of {value.n_frames} frames")  # type: ignore[attr-defined]
        sides = value.size
    elif isinstance(value, np.ndarray | Tensor) and value.ndim in (2, 3):
        is_array = isinstance(value, np.ndarray)
        sides = tuple(value.shape[:2] if is_array else value.shape[-2:])
        value = _shares(name, value)
        value = value.numpy() if is_array else value
    else:
        raise UserError(
            f"{name} must be an image, an array [H, W, 3] or a tensor [3, H, W], got {type(value).__name__}"
        )
    if not 0 < min(sides) <= max(sides) <= MAX_SIDE:
        raise UserError(f"{name} must have sides of 1 to {MAX_SIDE:,} pixels, got {' x '.join(map(str, sides))}")
    try:
        if isinstance(value, Tensor) and value.ndim == 2:
            value = value[None]
        if isinstance(value, PIL.Image.Image):
            value = eight_bits(value)
        made = processor.preprocess(value).float().cpu()
    except (ValueError, OSError, SyntaxError) as error:  # the last two: a file that is read here breaks off
        raise UserError(f"{name} cannot be read ({error})") from error
    if made.ndim != 4 or made.shape[1] != channels:
        raise UserError(f"{name} must have {channels} channels, got {list(made.shape)}")
    return made.clamp(-1, 1)


def _shares(name: str, value: np.ndarray | Tensor) -> Tensor:
    """Levels from 0 to 1, float32, of bytes, truth values, or such levels. Raises UserError, which begins with `name`,
    for other numbers: of 0 to 255 nearly all would be white."""
    if isinstance(value, np.ndarray):
        is_byte, is_level = value.dtype == np.uint8, value.dtype.kind in "fb"
        numbers = torch.from_numpy(value.astype(np.float32)) if is_byte or is_level else None
    else:
        is_byte, is_level = value.dtype == torch.uint8, value.is_floating_point() or value.dtype == torch.bool
        numbers = value.float() if is_byte or is_level else None
    if numbers is not None:
        numbers = numbers / 255 if is_byte else numbers
        if not numbers.numel() or bool(numbers.abs().amax() <= _MOST_LEVEL):
            return numbers
        if not bool(numbers.isfinite().all()):
            raise UserError(f"{name} must hold finite numbers")
    raise UserError(f"{name} must be uint8, or of numbers from 0 to 1; divide what goes to 255, or convert it")


def tokens_of(
    known: Sequence[KnownPicture], copies: int, layouts: Sequence[Tensor], num_tokens: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """int64 [B, num_tokens]: the tokens that the pictures of a call make known, -1 where one is drawn; and all tokens
    that these pictures are made of.

    Args:
        known: of each prompt, of which so many `copies` are drawn.
        layouts: of each prompt, int64 [N], tokens that its grid forces, -1 where there is a code.
    """
    given, whole = list[Tensor](), list[Tensor]()
    for picture, layout in zip(known, layouts, strict=True):
        for rows, codes in ((given, picture.codes.masked_fill(picture.drawn, -1)), (whole, picture.codes)):
            row = layout.cpu().clone()
            row[row < 0] = codes.flatten()
            rows += [F.pad(row, (0, num_tokens - len(row)), value=-1)] * copies
    return torch.stack(given).to(device), torch.stack(whole).to(device)


def paste(images: Any, known: Sequence[KnownPicture], output_type: str) -> Any:
    """Pictures as `output_type` asks, one for each of `known`, with the user's own pixels outside the mask."""
    if output_type == "latent":
        return images
    pasted = [_pasted(image, picture, output_type) for image, picture in zip(images, known, strict=True)]
    if isinstance(images, Tensor):
        return torch.stack(pasted)
    return np.stack(pasted) if isinstance(images, np.ndarray) else pasted


def _pasted(image: Any, picture: KnownPicture, output_type: str) -> Any:
    own, where = (picture.pixels + 1) / 2, picture.mask
    if output_type == "pt":
        return torch.where(where.to(image.device), image, own.to(image.device, image.dtype))
    levels = own.permute(1, 2, 0).numpy()
    if output_type == "np":
        return np.where(where.numpy()[..., None], image, levels)
    drawn = np.asarray(image.convert("RGB"))
    return PIL.Image.fromarray(np.where(where.numpy()[..., None], drawn, (levels * 255).round().astype(np.uint8)))
