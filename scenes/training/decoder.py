"""Training of the tokenizer's decoder on codes as the transformer draws them.

The tokenizer learns to decode the codes of real pictures. A transformer draws other codes: each token alone is
plausible, but some cells of an object are orange and others yellow, or a sphere gets a corner. Here the decoder of a
finished model is trained further on such codes (as in Qiu et al. 2025, "Image Tokenizer Needs Post-Training",
arXiv:2509.12474). In a share of the pictures, tokens that the transformer draws replace some codes, given the caption
and the true tokens before them. The target stays the true picture. On ground and sky another code is another texture
that is just as good, so replaced cells there count in the discriminator's loss alone.

Encoder and codebook do not change, so figures that were measured on tokens (acceptance, speed) stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scenes.captions.picture_captions import compose_caption
from scenes.seeds import HELDOUT_SEED
from scenes.training.coded import PLACES, FrozenEncoder, token_places
from scenes.training.data import RenderedSceneSource, SceneBatch, SceneSource, save_sheet
from scenes.training.losses import object_weights, peak_signal_to_noise
from scenes.training.picture_loss import PictureLoss, PictureLossConfig
from scenes.training.tokenizer import exported_copy
from specdecode.sampling import SamplingConfig, apply_guidance, logits_to_probabilities
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.base.path_roles import MODEL
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import component_fingerprint
from vargen.models.llamagen.vq import downsampling_factor
from vargen.training.run import RunResult, Task, autocast, move, prepare, train
from vargen.training.teachers import guided_features

_SHEET_IMAGES = 8
_DRAWN_SHARE = 0.5
"""Share of each batch's pictures in which codes are replaced: in each of them a random share of the codes, by tokens
that the transformer draws with the pipeline's settings."""
_DRAWN_WITH = ("guidance_scale", "temperature", "top_k")
_BARE = (PLACES.index("ground"), PLACES.index("sky"))


@dataclass
class DecoderTrainingConfig(PictureLossConfig):
    """Settings of `vargen train decoder`, beside those of its loss and of every run."""

    model: str = option("", path=MODEL)
    """Folder of the pipeline whose decoder is trained; empty for the shipped one."""


class DecoderTask(Task):
    """The decoder as the common loop sees it."""

    def __init__(self, config: DecoderTrainingConfig, pipeline: Any, source: SceneSource, device: torch.device):
        self.config = config
        self.source = source
        self.device = device
        self.pipeline = pipeline
        self.vqvae = pipeline.vqvae
        for frozen in (pipeline.transformer, pipeline.text_encoder, self.vqvae):
            frozen.requires_grad_(False)
        move(self.vqvae, device, images=True)
        self.module = nn.ModuleDict({"decoder": self.vqvae.decoder, "post_quant_conv": self.vqvae.post_quant_conv})
        self.module.requires_grad_(True)
        self.picture_loss = PictureLoss(config, self.vqvae.decoder.conv_out.weight, device)
        self.extra_modules = self.picture_loss.trained_modules
        self.encode = FrozenEncoder(self.vqvae, config.autocast)
        self.decode = torch.compile(self._decode) if config.compile else self._decode
        self.heldout = source(HELDOUT_SEED, config.evaluation_size, "heldout")
        # Both sets of held-out codes are made once: they do not change, only their pictures do.
        generator, size = torch.Generator().manual_seed(HELDOUT_SEED), config.batch_size
        codes = [self.encode(images) for images in self.heldout.images.split(size)]
        captions = _captions(self.heldout, config.evaluation_size)
        prompts = [captions[start : start + size] for start in range(0, len(captions), size)]
        drawn = [self._drawn(some, part, generator) for some, part in zip(prompts, codes, strict=True)]
        self.heldout_codes, self.heldout_drawn = torch.cat(codes), torch.cat(drawn)

    @torch.no_grad()
    def _drawn(self, prompts: list[str], codes: Tensor, generator: torch.Generator) -> Tensor:
        """In place of every code [B, N] one that the transformer draws there, given the true ones before it."""
        defaults = self.pipeline.config
        with autocast(self.config):
            features, _, length = guided_features(self.pipeline, prompts, codes)
            conditional, unconditional = self.pipeline.transformer.lm_head(features[:, length - 1 :]).float().chunk(2)
        logits = apply_guidance(conditional, unconditional, defaults["default_guidance_scale"])
        probabilities = logits_to_probabilities(
            logits, SamplingConfig(defaults["default_temperature"], defaults["default_top_k"])
        )
        # An exponential race, as in sampling: the largest p / e wins.
        noise = torch.empty(probabilities.shape).exponential_(generator=generator).to(self.device)
        return (probabilities / noise).argmax(-1)

    def _decode(self, codes: Tensor) -> Tensor:
        """Pictures [B, 3, H, W] fp32 of codes [B, N]."""
        side = int(codes.shape[1] ** 0.5)
        codewords = F.embedding(codes, self.vqvae.quantize.embedding.weight).unflatten(1, (side, side)).movedim(-1, 1)
        codewords = codewords.contiguous(memory_format=torch.channels_last)
        return self.vqvae.decoder(self.vqvae.post_quant_conv(codewords)).float()

    def _replaced(self, batch: SceneBatch, codes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Codes with some drawn by the transformer, and a mask of those, bool [B, N]."""
        count = round(_DRAWN_SHARE * len(codes))
        where = torch.zeros(codes.shape, dtype=torch.bool)
        if not count:
            return codes, where.to(self.device)
        share = torch.rand(count, 1, generator=generator)
        where[:count] = torch.rand(count, codes.shape[1], generator=generator) < share
        where = where.to(self.device)
        drawn = self._drawn(_captions(batch, count), codes[:count], generator)
        drawn = torch.cat((drawn, codes[count:]))
        return torch.where(where, drawn, codes), where

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = torch.Generator().manual_seed(config.seed + step)
        batch = self.source(config.seed + step * config.batch_size, config.batch_size, "train")
        codes, replaced = self._replaced(batch, self.encode(batch.images), generator)
        pictures = self.decode(codes)
        weights = object_weights(batch.object_mask) * self._counts(batch, replaced)
        return self.picture_loss(batch.images, pictures, weights / weights.mean(), progress)

    def _counts(self, batch: SceneBatch, replaced: Tensor) -> Tensor:
        """[B, 1, H, W]: 0 where a replaced code [B, N] stands for bare ground or sky, else 1."""
        side = int(replaced.shape[1] ** 0.5)
        places = token_places(batch.object_mask, batch.ground_mask, side)
        bare = torch.isin(places, torch.tensor(_BARE, device=self.device))
        counts = (~(replaced & bare)).float().view(-1, 1, side, side)
        return F.interpolate(counts, scale_factor=downsampling_factor(self.vqvae))

    @torch.no_grad()
    def _pictures(self, codes: Tensor) -> Tensor:
        with autocast(self.config):
            return torch.cat([self._decode(part) for part in codes.split(self.config.batch_size)])

    def evaluate(self) -> dict[str, float]:
        """Signal to noise in dB on held-out scenes: of their codes, over all pixels and over objects, and of codes that
        the transformer draws in place of all of them, over objects."""
        images, objects = self.heldout.images, self.heldout.object_mask
        pictures, drawn = self._pictures(self.heldout_codes), self._pictures(self.heldout_drawn)
        return {
            "psnr": peak_signal_to_noise(images, pictures).item(),
            "psnr_objects": peak_signal_to_noise(images, pictures, objects).item(),
            "psnr_objects_drawn": peak_signal_to_noise(images, drawn, objects).item(),
        }

    def draw_samples(self, path: Path) -> None:
        """Held-out pictures, above their reconstructions, above pictures of the transformer's tokens."""
        rows = [self._pictures(codes[:_SHEET_IMAGES]) for codes in (self.heldout_codes, self.heldout_drawn)]
        save_sheet([self.heldout.images[:_SHEET_IMAGES], *rows], path)

    def export(self, folder: Path) -> None:
        """Write the tokenizer, its decoder in bfloat16: what goes into the pipeline's folder as `vqvae`."""
        exported_copy(self.vqvae).save_pretrained(folder)


def _captions(batch: SceneBatch, count: int) -> list[str]:
    pairs = zip(batch.scenes[:count], batch.seeds[:count], strict=True)
    return [compose_caption(scene, seed).text for scene, seed in pairs]


def train_decoder(config: DecoderTrainingConfig, source: SceneSource | None = None) -> RunResult:
    """Go on training the decoder of a finished pipeline's tokenizer on codes that its transformer draws.

    Args:
        source: where scenes come from; the renderer if not given.

    Raises:
        UserError: for a field, model folder or checkpoint that does not fit.
    """
    from vargen.pipelines.llamagen import LlamaGenPipeline

    device = prepare(config)
    folder = find_model(config.model or None)
    pipeline = LlamaGenPipeline.from_pretrained(folder).to(device)
    if pipeline.transformer.config.condition_type != "text" or pipeline.text_encoder is None:
        raise UserError(f"model: {folder} is not text-conditional with its text encoder, which this trainer needs")
    if source is None:
        source = RenderedSceneSource(pipeline.config["image_size"], device)
    identity = {name: component_fingerprint(folder, name) for name in ("transformer", "vqvae")}
    # The model's own guidance and sampling are not among its weights, and decide what it draws.
    identity |= {f"default_{name}": pipeline.config[f"default_{name}"] for name in _DRAWN_WITH}
    return train(config, DecoderTask(config, pipeline, source, device), identity)
