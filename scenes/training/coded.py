"""Batches of pictures as codes: what a trainer of transformers reads, and the frozen tokenizer that makes them.

Belongs here: encoding rendered scenes at each step. Does not belong here: a store of codes (`code_store.py`), and
captions for training, which a trainer composes for each batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor

from scenes.captions.picture_captions import compose_caption
from scenes.rendering.scene import Scene
from scenes.training.data import SceneBatch, SceneSource
from vargen.checkpoints.model_folder import check_stored
from vargen.models.llamagen.vq import downsampling_factor, encode_images
from vargen.training.config import check
from vargen.training.run import move

PLACES = ("object", "edge", "ground", "sky")


@dataclass(frozen=True)
class CodedBatch:
    """Scenes with the codes of their pictures.

    Attributes:
        scenes: B of them, the truth.
        caption_seeds: the seed with which each is to be described.
        codes: int64 [B, N], raster order.
        places: int64 [B, N], which part of the picture each token lies in, as an index into `PLACES`.
    """

    scenes: Sequence[Scene]
    caption_seeds: Sequence[int]
    codes: Tensor
    places: Tensor

    def captions(self) -> list[str]:
        """One of each scene, as prompts have them."""
        return [compose_caption(*each).text for each in zip(self.scenes, self.caption_seeds, strict=True)]

    def split(self, size: int) -> Iterator[CodedBatch]:
        """The batch in parts of at most `size` pictures, in order."""
        for start in range(0, len(self.scenes), size):
            rows = slice(start, start + size)
            yield CodedBatch(self.scenes[rows], self.caption_seeds[rows], self.codes[rows], self.places[rows])


class CodeSource(Protocol):
    """Anything that gives the pictures of consecutive numbers, which need never repeat or end."""

    def __call__(self, first: int, count: int) -> CodedBatch: ...


class RenderedCodes:
    """Pictures of the train split, rendered and encoded when they are asked for; numbers are the seeds of scenes.

    Args:
        source: where scenes and pictures come from.
        encode: images [B, 3, H, W] in [-1, 1] to codes int64 [B, N].
        grid_size: tokens along a side.
    """

    def __init__(self, source: SceneSource, encode: Callable[[Tensor], Tensor], grid_size: int) -> None:
        self.source = source
        self.encode = encode
        self.grid_size = grid_size

    def __call__(self, first: int, count: int) -> CodedBatch:
        return self.coded(self.source(first, count, "train"))

    def coded(self, batch: SceneBatch) -> CodedBatch:
        """The same scenes with codes in place of pictures."""
        places = token_places(batch.object_mask, batch.ground_mask, self.grid_size)
        return CodedBatch(batch.scenes, batch.seeds, self.encode(batch.images), places)


class FrozenEncoder:
    """A finished tokenizer that turns images into codes, in autocast where that is asked for.

    Args:
        vqvae: the tokenizer, frozen.
        use_autocast: compute in bfloat16.
    """

    def __init__(self, vqvae: VQModel, use_autocast: bool | None) -> None:
        self.vqvae = vqvae
        self.use_autocast = use_autocast

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Codes int64 [B, N] of images [B, 3, H, W] in [-1, 1]."""
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=bool(self.use_autocast)):
            return encode_images(self.vqvae, images.contiguous(memory_format=torch.channels_last))


def load_vqvae(folder: str, image_size: int, device: torch.device) -> tuple[VQModel, int]:
    """The frozen tokenizer in fp32, and the side of its token grid.

    Raises:
        UserError: if there is none in `folder`, its weights are none, or it does not divide `image_size`.
    """
    there = (Path(folder) / "config.json").is_file()
    check(there, "vqvae", folder, "holds no config.json; name the export folder of a tokenizer run")
    check_stored(folder, "vqvae")
    vqvae = VQModel.from_pretrained(folder)
    move(vqvae, device, images=True)
    vqvae.eval().requires_grad_(False)
    factor = downsampling_factor(vqvae)
    check(image_size % factor == 0, "image_size", image_size, f"must be a multiple of {factor} for {folder}")
    return vqvae, image_size // factor


def codes_fingerprint(vqvae: VQModel) -> str:
    """A short hash of the weights that decide a picture's codes: all but the decoder's."""
    digest = hashlib.sha256()
    for name, value in sorted(vqvae.state_dict().items()):
        if name.startswith(("decoder.", "post_quant_conv.")):
            continue
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def token_places(object_mask: Tensor, ground_mask: Tensor, grid_size: int) -> Tensor:
    """Which part of the picture each token lies in, as an index into `PLACES`.

    Args:
        object_mask: [B, H, W], share of each pixel covered by objects.
        ground_mask: [H, W], 1 below the horizon.

    Returns:
        int64 [B, grid_size ** 2] in raster order. A cell at least nine tenths covered is "object", one at least a
        fiftieth covered is "edge".
    """
    covered = F.adaptive_avg_pool2d(object_mask[:, None].float(), grid_size).flatten(1)  # [B, N]
    below = F.adaptive_avg_pool2d(ground_mask[None, None].float(), grid_size).flatten(1)  # [1, N]
    places = torch.where(below >= 0.5, PLACES.index("ground"), PLACES.index("sky")).expand_as(covered)
    places = torch.where(covered >= 0.02, PLACES.index("edge"), places)
    return torch.where(covered >= 0.9, PLACES.index("object"), places)
