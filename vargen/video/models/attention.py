"""How much attention some tokens of a prompt pay, seen while the prompt is fed.

Belongs here: reading attention off transformers' unmodified layers. Does not belong here: choosing tokens by it
(`pruning.py`), caches and positions (`target.py`).

The fast attention kernels return no weights, and a map of a whole video would not fit anyway. So a layer's attention
module is watched: of its input the queries of a few rows are made once more, turned to their positions as the module
turns them, and multiplied with the keys that the cache holds. In float32 throughout, whatever the model computes in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from specdecode.targets.arguments import cache_among
from specdecode.targets.transformers import SlotCache


def watch_attention(
    module: Any, cache: SlotCache, rows: Callable[[], Tensor], keep: Callable[[Tensor], None]
) -> RemovableHandle:
    """Watch a layer's attention while a prompt is fed.

    Args:
        module: `self_attn` of a decoder layer.
        cache: of the prompt. Passes with another cache, of another request on the same model, are not watched.
        rows: gives [n] int64, the prompt's tokens whose attention is wanted, when the layer is reached.
        keep: called with the result of `attention_of_rows`.

    Returns:
        A handle to end it with.
    """

    def hook(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> None:
        if cache_among(inputs) is cache:
            states = inputs["hidden_states"]
            keys = cache.prompt_keys(module.layer_idx, states.shape[1])
            keep(attention_of_rows(module, states, inputs["position_embeddings"], keys, rows()))

    return module.register_forward_hook(hook, with_kwargs=True)


def attention_of_rows(
    module: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], keys: Tensor, rows: Tensor
) -> Tensor:
    """[heads, S] float32: the attention that some tokens of a prompt pay to every token of it, a mean over the former.

    Heads that share keys stand together. Each token sees itself and those before it.

    Args:
        module: transformers' attention of a decoder layer.
        hidden_states: [1, S, dim] its input.
        position_embeddings: cosines and sines, each [1, S, head_dim], or [3, 1, S, head_dim] where the module itself
            mixes the three axes of a video (older releases).
        keys: [1, kv_heads, S, head_dim], at their positions already.
        rows: [n] int64.
    """
    num_tokens, head_dim = keys.shape[2:]
    cosines, sines = (_mix_axes(module, each)[0, rows].float() for each in position_embeddings)  # [n, head_dim]
    queries = module.q_proj(hidden_states[0, rows]).view(len(rows), -1, head_dim)
    queries = getattr(module, "q_norm", nn.Identity())(queries)  # Qwen3-VL's; the cache's keys are normalised already
    queries = _turn(queries.transpose(0, 1).float(), cosines, sines)  # [heads, n, head_dim]
    hidden = torch.arange(num_tokens, device=keys.device) > rows[:, None]  # [n, S]
    means = []
    # One key head at a time: the weights of all heads together would be some hundred megabytes for a long video.
    for key, query in zip(keys[0], queries.chunk(keys.shape[1]), strict=True):
        scores = query @ key.float().T * module.scaling  # [heads of this key, n, S]
        means.append(scores.masked_fill(hidden, -torch.inf).softmax(-1).mean(1))
    return torch.cat(means)


def _mix_axes(module: Any, embeddings: Tensor) -> Tensor:
    """[1, S, head_dim]: each stretch of channels from the axis of M-RoPE that it belongs to."""
    if embeddings.ndim == 3:
        return embeddings
    sections = list(module.config.rope_parameters["mrope_section"]) * 2
    stretches = embeddings.split(sections, dim=-1)
    return torch.cat([stretch[number % 3] for number, stretch in enumerate(stretches)], dim=-1)


def _turn(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary position embedding of [heads, n, head_dim], channel i paired with channel i + head_dim / 2."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines + torch.cat((-second, first), dim=-1) * sines
