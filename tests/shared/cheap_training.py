"""Stand-ins that keep training tests to a second: scenes with cheap pictures, and tiny configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from scenes.captions.text_tokenizer import build_tokenizer
from scenes.rendering.scene import sample_scene
from scenes.training.data import SceneBatch
from scenes.training.text_encoder import TextEncoderConfig, build_text_encoder
from scenes.training.tokenizer import TokenizerTrainingConfig, VQModelConfig, build_tokenizer_model, exported_copy
from scenes.training.transformer import TransformerConfig, TransformerTrainingConfig

IMAGE_SIZE = 16
# A run of a few steps from scratch, and one long enough for a tiny draft network to learn from its model's own output.
FEW_STEPS: dict[str, Any] = dict(
    batch_size=4, steps=6, warmup_steps=2, learning_rate=3e-3, evaluation_size=6, log_every=2, autocast=False
)
DRAFT_STEPS: dict[str, Any] = dict(
    generation_batch_size=8, warmup_steps=5, learning_rate=1e-2, ema_decay=0.9, evaluate_every=1000, autocast=False
)
PICTURE_STEPS: dict[str, Any] = DRAFT_STEPS | dict(num_images=24, batch_size=8, evaluation_size=8, steps=60)


class CheapScenes:
    """True scenes with blurred noise for pictures, a function of the seed only; `repeat` gives one batch for ever."""

    def __init__(self, repeat: bool = False, size: int = IMAGE_SIZE):
        self.repeat = repeat
        self.size = size
        self.first_seeds: list[int] = []

    def __call__(self, first_seed: int, count: int, split: str) -> SceneBatch:
        self.first_seeds.append(first_seed)
        seeds = list(range(count) if self.repeat else range(first_seed, first_seed + count))
        pictures = []
        for seed in seeds:
            noise = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) * 2 - 1
            pictures.append(F.interpolate(noise, size=self.size, mode="bicubic").clamp(-1, 1))
        images = torch.cat(pictures)
        ground_mask = torch.zeros(self.size, self.size)
        ground_mask[self.size // 2 :] = 1
        scenes = [sample_scene(seed, split) for seed in seeds]
        return SceneBatch(scenes, seeds, images, (images[:, 0] > 0).float(), ground_mask)


@pytest.fixture
def cheap_scenes() -> CheapScenes:
    return CheapScenes()


@pytest.fixture
def repeated_scenes() -> CheapScenes:
    return CheapScenes(repeat=True)


@pytest.fixture
def tiny_scenes() -> CheapScenes:
    """Of the size of the pictures that `tiny_model_folder` makes."""
    return CheapScenes(size=8)


@pytest.fixture
def repeated_tiny_scenes() -> CheapScenes:
    return CheapScenes(repeat=True, size=8)


@pytest.fixture
def tokenizer_config(tmp_path: Path) -> TokenizerTrainingConfig:
    return TokenizerTrainingConfig(
        output=str(tmp_path / "tokenizer"), evaluate_every=3, sample_every=3, image_size=IMAGE_SIZE,
        shape=VQModelConfig((8, 16), 1, 16, 32, 4, 4), **FEW_STEPS | {"evaluation_size": 4},
    )  # fmt: skip


@pytest.fixture
def transformer_config(tmp_path: Path, tokenizer_config) -> TransformerTrainingConfig:
    torch.manual_seed(0)
    vqvae = build_tokenizer_model(tokenizer_config)
    codebook = vqvae.quantize.embedding.weight.data
    codebook.copy_(torch.nn.functional.normalize(torch.randn_like(codebook), dim=1))
    exported_copy(vqvae).save_pretrained(tmp_path / "vqvae")
    text_encoder = build_text_encoder(TextEncoderConfig(16, 8, 24, 1, 2), build_tokenizer())
    text_encoder.save_pretrained(tmp_path / "text" / "text_encoder")
    return TransformerTrainingConfig(
        output=str(tmp_path / "transformer"), vqvae=str(tmp_path / "vqvae"), evaluate_every=100, sample_every=100,
        image_size=tokenizer_config.image_size, shape=TransformerConfig(32, 2, 2, 48, 48),
        frozen_text_encoder=str(tmp_path / "text"), **FEW_STEPS,
    )  # fmt: skip
