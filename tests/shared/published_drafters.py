"""LANTERN's drafters as their sources describe them: weights by published names, and a forward a pair at a time.

The drafters for LlamaGen and for Chameleons differ in what happens to a query and a key, which a test hands in.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

DIM, HEADS, WIDTH = 16, 2, 20
HEAD_DIM = DIM // HEADS


def published_weights(vocab_size: int, std: float, more: dict[str, tuple[int, ...]] | None = None) -> dict[str, Tensor]:
    """Random weights of one layer; more: what else the layer holds."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab_size, DIM),
        "fc.weight": (DIM, 2 * DIM),
        "fc.bias": (DIM,),
        **{f"layers.0.self_attn.{name}_proj.weight": (DIM, DIM) for name in "qkvo"},
        "layers.0.mlp.gate_proj.weight": (WIDTH, DIM),
        "layers.0.mlp.up_proj.weight": (WIDTH, DIM),
        "layers.0.mlp.down_proj.weight": (DIM, WIDTH),
        "layers.0.post_attention_layernorm.weight": (DIM,),
        **{f"layers.0.{name}": shape for name, shape in (more or {}).items()},
    }
    return {name: torch.randn(shape, generator=generator) * std for name, shape in shapes.items()}


def write_published(folder: Path, weights: dict[str, Tensor], config: dict[str, object]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def published_forward(
    weights: dict[str, Tensor],
    tokens: list[int],
    features: Tensor,
    turned: Callable[[Tensor, str, int, int], Tensor],
    eps: float,
) -> Tensor:
    """States of all pairs of a token and a feature: [n, DIM].

    turned: gives the vector that attention reads for a query or key [HEAD_DIM], "q" or "k", a head and a pair's number.
    """

    def linear(name: str, value: Tensor) -> Tensor:
        return weights[f"layers.0.{name}.weight"] @ value

    def normed(name: str, value: Tensor) -> Tensor:
        weight = weights.get(f"layers.0.{name}.weight")
        return value if weight is None else value / (value.square().mean() + eps).sqrt() * weight

    def part(name: str, value: Tensor, head: int, pair: int) -> Tensor:
        vector = linear(f"self_attn.{name}_proj", value)[head * HEAD_DIM : (head + 1) * HEAD_DIM]
        return vector if name == "v" else turned(vector, name, head, pair)

    inputs = [
        weights["fc.weight"] @ torch.cat((weights["embed_tokens.weight"][token], feature)) + weights["fc.bias"]
        for token, feature in zip(tokens, features, strict=True)
    ]
    attends = [normed("input_layernorm", value) for value in inputs]
    outputs = []
    for i, x in enumerate(inputs):
        attended = []
        for head in range(HEADS):
            query = part("q", attends[i], head, i)
            keys, values = (torch.stack([part(name, attends[j], head, j) for j in range(i + 1)]) for name in "kv")
            attended.append((keys @ query / HEAD_DIM**0.5).softmax(0) @ values)
        x = x + linear("self_attn.o_proj", torch.cat(attended))
        inner = normed("post_attention_layernorm", x)
        gate, up = linear("mlp.gate_proj", inner), linear("mlp.up_proj", inner)
        outputs.append(x + linear("mlp.down_proj", F.silu(gate) * up))
    return torch.stack(outputs)
