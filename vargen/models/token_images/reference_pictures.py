"""Users' pictures in a prompt: how they are read and scaled, and which codes they become.

Belongs here: pictures that a family's authors put before or between words. Does not belong here: the text around them
(`description.py` of a family), and pictures that are drawn on (`vargen.models.known_pictures`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from vargen.base.errors import UserError
from vargen.models.known_pictures import read_picture
from vargen.models.token_images.description import References, Sizes

ReferenceInput = Any
"""One picture of every prompt, several of every prompt, or for each prompt a list of its own, as diffusers' pipelines
take them; see `PictureInput`."""
PLACE = "<image>"
"""Where a picture stands among the words of a prompt, as processors of transformers have it."""


def reference_codes(
    given: ReferenceInput,
    prompts: Sequence[str],
    references: References | str,
    sizes: Sizes,
    area: int | None,
    encode: Callable[[Tensor], Tensor] | None,
    title: str,
) -> list[list[Tensor]]:
    """The codes int64 [h, w] of the pictures of each prompt.

    Args:
        given: of a call.
        prompts: their words.
        references: of the family, or why it has none.
        sizes: of the family.
        area: pixels of each picture in the prompt, about; None: those of the usual picture.
        encode: codes int64 [1, h, w] of pixels [1, 3, H, W] in [-1, 1]; None: there is no encoder.
        title: of the family.

    Raises:
        UserError: the family reads no pictures, or one of them cannot be used.
    """
    if isinstance(references, str):
        raise UserError(f"reference_images cannot be used with {title}: {references}")
    if encode is None:
        raise UserError(f"reference_images cannot be used with {title}: no encoder makes codes of pictures")
    found: dict[int, Tensor] = {}
    each = _of_each(given, len(prompts))
    for number, (own, text) in enumerate(zip(each, prompts, strict=True), 1):
        if references.most is not None and len(own) > references.most:
            raise UserError(f"reference_images must be at most {references.most} of a prompt, got {len(own)}")
        if references.among_words and PLACE in text and text.count(PLACE) != len(own):
            raise UserError(
                f"prompt {number} has {PLACE} {text.count(PLACE)} times, for {len(own)} of reference_images; each "
                f"needs its place, or none has one"
            )
        for picture in own:
            if id(picture) not in found:
                with torch.no_grad():
                    found[id(picture)] = encode(_scaled(picture, references, sizes, area))[0].cpu()
    return [[found[id(picture)] for picture in own] for own in each]


def pieces_of(form: str, text: str, count: int, among_words: bool, named: dict[str, Any]) -> list[str]:
    """The words before, between and behind the `count` pictures of a prompt.

    Args:
        form: with {prompt}, and with {pictures} where they stand if the text does not say it.
        text: of the prompt.
        among_words: whether the text may say it, by `PLACE`.
        named: what else the form takes.
    """
    before, _, behind = form.partition("{pictures}")
    words = text.split(PLACE) if among_words and PLACE in text else ["" for _ in range(count)] + [text]
    words[-1] = behind.format(prompt=words[-1], **named)
    words[0] = before.format(**named) + words[0]
    return words


def _of_each(given: ReferenceInput, count: int) -> list[list[Any]]:
    """The pictures of each prompt. Raises UserError for another number of lists than prompts, and for an empty one."""
    pictures = [given] if not isinstance(given, list | tuple) else [*given]
    lists = [[*own] for own in pictures if isinstance(own, list | tuple)]
    if not pictures or not all(lists) or (lists and len(lists) != len(pictures)):
        raise UserError("reference_images must be pictures, or for each prompt a list of pictures, none of them empty")
    if lists and len(lists) != count:
        raise UserError(f"reference_images must be a list of pictures for each prompt, {count} here; got {len(lists)}")
    return lists or [pictures] * count


def _scaled(picture: Any, references: References, sizes: Sizes, area: int | None) -> Tensor:
    """float32 [1, 3, H, W] in [-1, 1], as the family's authors scale pictures of prompts. Raises UserError."""
    if isinstance(picture, PIL.Image.Image) and references.on_white and picture.has_transparency_data:
        layers = np.asarray(picture.convert("RGBA"), np.float64)
        opaque = layers[..., 3:] / 255
        picture = PIL.Image.fromarray(((1 - opaque) * 255 + opaque * layers[..., :3]).astype(np.uint8))
    reader = VaeImageProcessor(vae_scale_factor=1, do_resize=False, do_convert_rgb=True)
    pixels = read_picture("reference_images", picture, reader, 3)[0].permute(1, 2, 0)
    image = PIL.Image.fromarray(((pixels + 1) * 127.5).round().to(torch.uint8).numpy())
    rows, columns = references.grid(image.size, sizes, area)
    size = columns * sizes.pixels_a_code, rows * sizes.pixels_a_code
    if references.fit == "area":
        image = image.resize(size, PIL.Image.Resampling.BICUBIC)
    else:
        scale = max(size[0] / image.width, size[1] / image.height)
        whole = round(image.width * scale), round(image.height * scale)
        image = image.resize(whole, PIL.Image.Resampling.LANCZOS)
        left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
        image = image.crop((left, top, left + size[0], top + size[1]))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 127.5 - 1
