"""Official-layout weights made by rule, so that no test needs a weight file (see tests/golden and its README)."""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

SMALL_CHANNELS = [32, 32, 64]  # three levels: a factor of 4
GOLDEN = Path(__file__).parents[1] / "golden"


def fill_by_rule(shapes: dict[str, list[int]], salt: str = "dev") -> dict[str, Tensor]:
    """The weights that the goldens were made with: a generator per key, scaled by the kind of tensor."""
    filled = {}
    for key, shape in shapes.items():
        if key == "quantize.codebook_used":
            filled[key] = torch.zeros(shape)
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(f"{salt}/{key}".encode()))
        x = torch.randn(shape, generator=generator)
        if len(shape) <= 1:
            filled[key] = 0.1 * x + (1.0 if key.endswith("weight") else 0.0)
            continue
        fan_in = x[0].numel()
        gain = 1.0 if key.startswith(("encoder", "decoder", "quant", "post")) else 3.0 if "embed" in key else 1.5
        filled[key] = x * gain / fan_in**0.5
    return filled


def golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors of one golden case."""
    return json.loads((GOLDEN / f"{name}.json").read_text()), load_file(GOLDEN / f"{name}.safetensors")


def official_transformer_shapes(
    dim: int,
    num_layers: int,
    intermediate_size: int,
    vocab_size: int,
    *,
    num_classes: int | None = None,
    caption: tuple[int, int] | None = None,
    key_value_rows: int | None = None,
) -> dict[str, list[int]]:
    """Keys and shapes of an official transformer file; `caption` is (condition length, feature size)."""
    shapes: dict[str, list[int]] = {}
    if caption is not None:
        shapes |= {
            "cls_embedding.uncond_embedding": list(caption),
            "cls_embedding.cap_proj.fc1.weight": [dim, caption[1]],
            "cls_embedding.cap_proj.fc2.weight": [dim, dim],
        }
    else:
        shapes["cls_embedding.embedding_table.weight"] = [(num_classes or 10) + 1, dim]
    shapes["tok_embeddings.weight"] = [vocab_size, dim]
    for layer in range(num_layers):
        shapes |= {
            f"layers.{layer}.attention.wqkv.weight": [dim + (key_value_rows or 2 * dim), dim],
            f"layers.{layer}.attention.wo.weight": [dim, dim],
            f"layers.{layer}.feed_forward.w1.weight": [intermediate_size, dim],
            f"layers.{layer}.feed_forward.w3.weight": [intermediate_size, dim],
            f"layers.{layer}.feed_forward.w2.weight": [dim, intermediate_size],
            f"layers.{layer}.attention_norm.weight": [dim],
            f"layers.{layer}.ffn_norm.weight": [dim],
        }
    return shapes | {"norm.weight": [dim], "output.weight": [vocab_size, dim]}


def official_vq_shapes(
    channels: list[int], *, num_codes: int = 16384, code_dim: int = 8, latent_channels: int = 256
) -> dict[str, list[int]]:
    """Keys and shapes of an official tokenizer file (fact sheet, appendix B): two blocks a level, three to decode."""
    shapes: dict[str, list[int]] = {}

    def add(prefix: str, *shape: int) -> None:
        shapes[f"{prefix}.weight"] = list(shape)
        shapes[f"{prefix}.bias"] = [shape[0]]

    def add_residual(prefix: str, before: int, after: int) -> None:
        add(f"{prefix}.norm1", before)
        add(f"{prefix}.conv1", after, before, 3, 3)
        add(f"{prefix}.norm2", after)
        add(f"{prefix}.conv2", after, after, 3, 3)
        if before != after:
            add(f"{prefix}.nin_shortcut", after, before, 1, 1)

    def add_attention(prefix: str, width: int) -> None:
        add(f"{prefix}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            add(f"{prefix}.{part}", width, width, 1, 1)

    last = len(channels) - 1
    for side, levels, blocks in (("encoder", channels, 2), ("decoder", channels[::-1], 3)):
        width = levels[0]
        add(f"{side}.conv_in", width, *((3,) if side == "encoder" else (latent_channels,)), 3, 3)
        for level, after in enumerate(levels):
            for block in range(blocks):
                add_residual(f"{side}.conv_blocks.{level}.res.{block}", width, after)
                width = after
                if level == (last if side == "encoder" else 0):
                    add_attention(f"{side}.conv_blocks.{level}.attn.{block}", width)
            if level < last:
                add(
                    f"{side}.conv_blocks.{level}.{'down' if side == 'encoder' else 'up'}sample.conv", width, width, 3, 3
                )
        middle = channels[-1]
        add_residual(f"{side}.mid.0", middle, middle)
        add_attention(f"{side}.mid.1", middle)
        add_residual(f"{side}.mid.2", middle, middle)
        add(f"{side}.norm_out", width)
        add(f"{side}.conv_out", latent_channels if side == "encoder" else 3, width, 3, 3)
    add("quant_conv", code_dim, latent_channels, 1, 1)
    add("post_quant_conv", latent_channels, code_dim, 1, 1)
    return shapes | {"quantize.embedding.weight": [num_codes, code_dim], "quantize.codebook_used": [65536]}


@pytest.fixture
def small_class_weights() -> dict[str, Tensor]:
    return fill_by_rule(official_transformer_shapes(32, 2, 48, 40, num_classes=6))


@pytest.fixture
def small_text_weights() -> dict[str, Tensor]:
    return fill_by_rule(official_transformer_shapes(32, 2, 48, 40, caption=(9, 16)))


@pytest.fixture
def small_vq_weights() -> dict[str, Tensor]:
    return fill_by_rule(official_vq_shapes(SMALL_CHANNELS, num_codes=40, code_dim=4, latent_channels=16))


@pytest.fixture
def official_files(
    tmp_path: Path,
    small_class_weights: dict[str, Tensor],
    small_text_weights: dict[str, Tensor],
    small_vq_weights: dict[str, Tensor],
) -> dict[str, Path]:
    """A class-conditional and a text-conditional transformer, and their tokenizer, of a size never published."""
    paths = {name: tmp_path / f"{name}.pt" for name in ("class", "text", "vq")}
    torch.save({"model": small_class_weights, "steps": 3, "args": argparse.Namespace(lr=1.0)}, paths["class"])
    torch.save(small_text_weights, paths["text"])
    torch.save({"model": small_vq_weights, "ema": {}, "optimizer": {}}, paths["vq"])
    return paths
