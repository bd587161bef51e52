"""Tiny random models with the real architectures, small enough to make a picture in a fraction of a second."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusers import VQModel
from PIL import Image
from transformers import T5Config, T5EncoderModel

from scenes.captions.text_tokenizer import build_tokenizer
from vargen.drafters.eagle_head import EagleHead
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.pipelines.llamagen import LlamaGenPipeline

GRID = 4
VOCAB = 24


def build_tiny_vqvae(seed: int = 0) -> VQModel:
    torch.manual_seed(seed)
    return VQModel(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        num_vq_embeddings=VOCAB,
        vq_embed_dim=4,
        norm_num_groups=2,
        scaling_factor=1.0,
        lookup_from_codebook=True,
    ).eval()


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Fresh models have small weights and a zero output layer: every token would be as good as any other."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.4)


def build_tiny_transformer(seed: int = 0, **overrides: object) -> LlamaGenTransformer:
    torch.manual_seed(seed)
    sizes: dict[str, object] = {
        "dim": 16, "num_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": VOCAB,
        "grid_size": GRID, "condition_type": "text", "caption_dim": 12,
    }  # fmt: skip
    model = LlamaGenTransformer(**{**sizes, **overrides})  # type: ignore[arg-type]
    randomise(model, seed)
    return model.eval()


def build_tiny_pipeline(seed: int = 0, condition_type: str = "text", **overrides: object) -> LlamaGenPipeline:
    transformer = build_tiny_transformer(seed, condition_type=condition_type, num_classes=10, **overrides)
    if condition_type == "class":
        pipeline = LlamaGenPipeline(transformer, build_tiny_vqvae(seed))
    else:
        tokenizer = build_tokenizer()
        torch.manual_seed(seed)
        encoder = T5EncoderModel(
            T5Config(vocab_size=len(tokenizer), d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
        )
        pipeline = LlamaGenPipeline(
            transformer, build_tiny_vqvae(seed), encoder.eval(), tokenizer, default_guidance_scale=3.0, default_top_k=0
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module", autouse=True)
def _plots_without_lines() -> Iterator[None]:
    """To draw a plot takes longer than to evaluate a tiny model: tests of `metrics` and a notebook draw true ones."""
    Image.new("L", (500, 400)).save(plot := io.BytesIO(), "png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metrics.plots._png", lambda figure, dpi=0: plot.getvalue())
        yield


@pytest.fixture(scope="session")
def _saved_tiny_pipelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for condition_type in ("text", "class"):
        folders[condition_type] = tmp_path_factory.mktemp("models") / condition_type
        build_tiny_pipeline(condition_type=condition_type).save_pretrained(folders[condition_type])
    return folders


@pytest.fixture
def tiny_model_folder(_saved_tiny_pipelines: dict[str, Path], tmp_path: Path) -> Path:
    """A saved text-conditional pipeline, a copy of its own for every test."""
    return Path(shutil.copytree(_saved_tiny_pipelines["text"], tmp_path / "model"))


@pytest.fixture
def tiny_class_model_folder(_saved_tiny_pipelines: dict[str, Path], tmp_path: Path) -> Path:
    """The same, class-conditional."""
    return Path(shutil.copytree(_saved_tiny_pipelines["class"], tmp_path / "class_model"))


def build_drafting_pipeline(**overrides: object) -> LlamaGenPipeline:
    """A text-conditional pipeline with a random draft head and a random draft model."""
    base = build_tiny_pipeline(**overrides)  # type: ignore[arg-type]
    drafter = EagleHead(dim=16, num_attention_heads=2, intermediate_size=20, vocab_size=VOCAB, grid_size=GRID)
    draft_model = build_tiny_transformer(2, dim=8, num_layers=1, num_attention_heads=1, intermediate_size=16)
    randomise(drafter, 1)
    pipeline = LlamaGenPipeline(
        base.transformer, base.vqvae, base.text_encoder, base.tokenizer, drafter=drafter.eval(),
        draft_model=draft_model, default_guidance_scale=3.0, default_top_k=0,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
