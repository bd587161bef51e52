"""Training of the image tokenizer: a `diffusers.VQModel` with a unit-norm codebook.

During training the latents are normalised and quantised by `quantizer.py`; the exported folder needs none of this code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor, nn

from scenes.seeds import HELDOUT_SEED
from scenes.training.data import RenderedSceneSource, SceneSource, save_sheet
from scenes.training.losses import object_weights, peak_signal_to_noise
from scenes.training.picture_loss import PictureLoss, PictureLossConfig
from scenes.training.quantizer import SphericalQuantizer
from vargen.base.bounds import MAX_PIXELS
from vargen.base.options import Settings, check_options, option
from vargen.training.config import check
from vargen.training.run import RunResult, Task, autocast, move, prepare, train

_COMMITMENT_WEIGHT = 0.25  # of the distance between latents and their codewords
_SHEET_IMAGES = 8
_CODEBOOK_DECAY = 0.98  # of the running k-means
_DEAD_CODE = 0.05  # uses a step below which a code is placed anew
_REPLACE_DEAD_UNTIL = 0.7  # share of the run after which dead codes stay, so that the end is calm


@dataclass
class VQModelConfig(Settings):
    """Shape of the tokenizer; names as in `diffusers.VQModel`."""

    block_out_channels: tuple[int, ...] = option((32, 64, 96, 96), least=1)
    """Channels per level, from full resolution down; each further level halves the side."""
    layers_per_block: int = option(1, least=1)
    """Residual blocks per level in the encoder (the decoder has one more)."""
    latent_channels: int = option(96, least=1)
    """Channels before and after the quantiser's 1x1 convolutions."""
    num_vq_embeddings: int = option(1024, least=1)
    """Codes."""
    vq_embed_dim: int = option(8, least=1)
    """Numbers per code."""
    norm_num_groups: int = option(2, least=1)
    """Groups of the group norms. Few are faster: torch's backward on the CPU slows down with channels per group
    falling."""

    def __post_init__(self) -> None:
        check_options(self, "shape.")
        fits = all(channels % self.norm_num_groups == 0 for channels in self.block_out_channels)
        remedy = f"must divide each of shape.block_out_channels {self.block_out_channels}"
        check(fits, "shape.norm_num_groups", self.norm_num_groups, remedy)


@dataclass
class TokenizerTrainingConfig(PictureLossConfig):
    """Settings of `vargen train tokenizer`, beside those of its loss and of every run."""

    image_size: int = option(128, least=1, most=MAX_PIXELS)
    """Side of the training pictures, pixels."""
    shape: VQModelConfig = option(VQModelConfig)
    """Shape of the tokenizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = 2 ** (len(self.shape.block_out_channels) - 1)
        check(self.image_size % factor == 0, "image_size", self.image_size, f"must be a multiple of {factor}")

    def architecture(self) -> dict[str, Any]:
        return {f"shape.{name}": value for name, value in asdict(self.shape).items()}


def build_tokenizer_model(config: TokenizerTrainingConfig) -> VQModel:
    """A new `VQModel` of the configured shape, weights from torch's global random state."""
    levels = len(config.shape.block_out_channels)
    return VQModel(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        **asdict(config.shape),
        sample_size=config.image_size,
        scaling_factor=1.0,
        lookup_from_codebook=True,
    )


@torch.no_grad()
def exported_copy(vqvae: VQModel) -> VQModel:
    """A copy in bfloat16 for saving, its codebook in fp32: rounded, the codewords would no longer have one length.

    Where it was loaded from is left out of its config: that is a path of this machine.
    """
    copied = copy.deepcopy(vqvae)
    values = {name: value for name, value in copied.config.items() if name != "_name_or_path"}
    setattr(copied, "_internal_dict", type(copied.config)(values))  # noqa: B010 - diffusers declares no such attribute
    for name, parameter in copied.named_parameters():
        dtype = torch.float32 if name.startswith("quantize.") else torch.bfloat16
        parameter.data = parameter.data.to(dtype, memory_format=torch.contiguous_format)
    return copied


class TokenizerTask(Task):
    """The tokenizer as the common loop sees it."""

    def __init__(self, config: TokenizerTrainingConfig, source: SceneSource, device: torch.device):
        self.config = config
        self.source = source
        self.vqvae = build_tokenizer_model(config)
        self.quantizer = SphericalQuantizer(self.vqvae.quantize.embedding.weight, _CODEBOOK_DECAY, _DEAD_CODE)
        self.module = nn.ModuleDict({"vqvae": self.vqvae, "quantizer": self.quantizer})
        move(self.module, device, images=True)
        self.picture_loss = PictureLoss(config, self.vqvae.decoder.conv_out.weight, device)
        self.extra_modules = nn.ModuleList([self.picture_loss.trained_modules])
        self.encode: Callable[[Tensor], Tensor] = self.vqvae.encoder
        self.decode: Callable[[Tensor], Tensor] = self.vqvae.decoder
        if config.compile:
            self.encode, self.decode = torch.compile(self.vqvae.encoder), torch.compile(self.vqvae.decoder)
        self.heldout = source(HELDOUT_SEED, config.evaluation_size, "heldout")

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        batch = self.source(config.seed + step * config.batch_size, config.batch_size, "train")
        images = batch.images.contiguous(memory_format=torch.channels_last)
        latents = self.vqvae.quant_conv(self.encode(images))
        quantized = self.quantizer(latents, learn=True, replace_dead=progress < _REPLACE_DEAD_UNTIL)
        reconstructions = self.decode(self.vqvae.post_quant_conv(quantized.codewords)).float()

        weights = object_weights(batch.object_mask)
        loss, parts = self.picture_loss(images, reconstructions, weights, progress)
        parts |= {
            "commitment": quantized.commitment.detach(),
            "perplexity": self.quantizer.perplexity(),
            "used_codes": self.quantizer.used_codes(),
        }
        loss = loss + _COMMITMENT_WEIGHT * quantized.commitment
        return loss, parts

    @torch.no_grad()
    def _reconstruct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstructions [B, 3, H, W] fp32 and codes [B, h * w] of images, in pieces of the training batch size."""
        pictures, codes = [], []
        for piece in images.contiguous(memory_format=torch.channels_last).split(self.config.batch_size):
            with autocast(self.config):
                latents = self.vqvae.quant_conv(self.vqvae.encoder(piece))
                quantized = self.quantizer(latents, learn=False, replace_dead=False)
                pictures.append(self.vqvae.decoder(self.vqvae.post_quant_conv(quantized.codewords)).float())
            codes.append(quantized.codes.flatten(1))
        return torch.cat(pictures), torch.cat(codes)

    def evaluate(self) -> dict[str, float]:
        reconstructions, codes = self._reconstruct(self.heldout.images)
        frequencies = torch.bincount(codes.flatten(), minlength=self.config.shape.num_vq_embeddings) / codes.numel()
        return {
            "psnr": peak_signal_to_noise(self.heldout.images, reconstructions).item(),
            "psnr_objects": peak_signal_to_noise(self.heldout.images, reconstructions, self.heldout.object_mask).item(),
            "perplexity": torch.special.entr(frequencies).sum().exp().item(),
            "used_codes": float((frequencies > 0).sum()),
        }

    def draw_samples(self, path: Path) -> None:
        images = self.heldout.images[:_SHEET_IMAGES]
        save_sheet([images, self._reconstruct(images)[0]], path)

    def export(self, folder: Path) -> None:
        exported_copy(self.vqvae).save_pretrained(folder)


def train_tokenizer(config: TokenizerTrainingConfig, source: SceneSource | None = None) -> RunResult:
    """Train the image tokenizer on rendered scenes.

    Args:
        source: where scenes come from; the renderer if not given.

    Raises:
        UserError: for a field or checkpoint that does not fit.
    """
    device = prepare(config)
    task = TokenizerTask(config, source or RenderedSceneSource(config.image_size, device), device)
    return train(config, task)
