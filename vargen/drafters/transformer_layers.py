"""Layers of a decoder over a grid of image tokens: norm, attention, feed-forward, and rotary embedding on the grid.

Belongs here: parts of the layers of LlamaGen's transformer and the EAGLE head, and the masks of a condition that stands
before a picture. Does not belong here: a whole network, a cache, and anything that one family alone uses.

Names of dimensions: B rows, n new tokens, S cached slots, T tokens of the condition, N image tokens, H query heads,
H_kv key and value heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache

CONDITION_POSITION = -1
"""The position of a token that belongs to the condition: it selects the last row of the rotary table."""

CONDITION_ROTARY = ("zero", "identity")
"""What that row does: "zero" makes queries and keys of condition tokens vanish, "identity" leaves them unturned."""

Projection = Callable[["Attention", Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


# ---------------------------------------------------------------------------------------------------------------------
# Rotary embedding


def build_rotary_table(
    grid_size: int,
    head_dim: int,
    base: float = 10000.0,
    device: Any = None,
    condition_rotary: str = "zero",
    position_scale: float = 1.0,
) -> Tensor:
    """Two-dimensional rotary table for a square grid of tokens in raster order (LlamaGen `precompute_freqs_cis_2d`).

    The token's row turns the first half of a head's channel pairs, its column the second half.

    Args:
        grid_size: side of the grid.
        head_dim: channels of one head, a multiple of 4.
        base: rotary base.
        condition_rotary: one of `CONDITION_ROTARY`.
        position_scale: factor on rows and columns.

    Returns:
        fp32 `[grid_size ** 2 + 1, head_dim // 2, 2]`, cosine and sine. The last row, found at index -1, belongs to
        condition tokens: zeros, or cosine 1 and sine 0 for "identity".
    """
    # Every dtype is explicit: `from_pretrained` builds models under the default dtype of the weights, maybe bf16.
    half = head_dim // 2
    exponents = torch.arange(0, half, 2, dtype=torch.float32, device=device)[: half // 2] / half
    frequencies = 1.0 / base**exponents  # [head_dim // 4]
    side = position_scale * torch.arange(grid_size, dtype=torch.float32, device=device)
    angles = torch.outer(side, frequencies)  # [grid, head_dim // 4]
    by_row = angles[:, None].expand(grid_size, grid_size, -1)
    by_column = angles[None, :].expand(grid_size, grid_size, -1)
    grid = torch.cat((by_row, by_column), dim=-1).flatten(0, 1)  # [grid ** 2, head_dim // 2]
    table = torch.stack((grid.cos(), grid.sin()), dim=-1)
    condition = table.new_zeros(1, *table.shape[1:])
    condition[..., 0] = float(condition_rotary == "identity")
    return torch.cat((table, condition))


class RotaryTable:
    """`build_rotary_table`, built at its first use on each device, and the lookup of its rows.

    It is a plain attribute of a model, not a buffer, so that `.to(torch.bfloat16)` cannot round it.

    Args:
        grid_size, head_dim, base, condition_rotary, position_scale: as for `build_rotary_table`.
    """

    def __init__(
        self, grid_size: int, head_dim: int, base: float, condition_rotary: str = "zero", position_scale: float = 1.0
    ) -> None:
        self.grid_size, self.head_dim = grid_size, head_dim
        self.base, self.condition_rotary, self.position_scale = base, condition_rotary, position_scale
        self._table: Tensor | None = None

    def __call__(self, positions: Tensor) -> Tensor:
        """Rows for image positions `[B, n]`, fp32 `[B, n, 1, head_dim // 2, 2]`.

        -1 gives the row of the condition. A position past the last image token is the caller's error: an
        IndexError on a CPU, a device assertion on CUDA.
        """
        return self.table(positions.device)[positions].unsqueeze(2)

    def table(self, device: torch.device) -> Tensor:
        """All rows, on a device."""
        # Rebuilt when the model has moved. Outside inference mode, or a later training pass could not use it.
        if self._table is None or self._table.device != device:
            with torch.inference_mode(False):
                self._table = build_rotary_table(
                    self.grid_size, self.head_dim, self.base, device, self.condition_rotary, self.position_scale
                )
        return self._table


def apply_rotary(states: Tensor, rotary: Tensor) -> Tensor:
    """Turn each pair of neighbouring channels by its token's angle, in fp32.

    Args:
        states: `[B, n, H, D]` queries or keys; channels 2i and 2i + 1 form a pair.
        rotary: fp32 `[B or 1, n, 1, D // 2, 2]`, rows of `build_rotary_table`.

    Returns:
        `[B, n, H, D]` in the dtype of `states`.
    """
    pairs = states.float().unflatten(-1, (-1, 2))  # [B, n, H, D // 2, 2]
    if torch.compiler.is_compiling():
        # The compiler fuses real arithmetic and falls back on complex numbers.
        first, second = pairs.unbind(-1)
        cosine, sine = rotary.unbind(-1)
        turned = torch.stack((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    else:
        # Eagerly one complex multiplication replaces seven passes over the data.
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(rotary))
    return turned.flatten(-2).to(states.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Masks and attention


def condition_attention_mask(condition_mask: Tensor, num_image_tokens: int = 0) -> Tensor:
    """Causal attention mask of a whole sequence: the condition, then image tokens.

    Padding of the condition sees itself, because every query must see something; no other token sees it.

    Args:
        condition_mask: bool `[B, T]`, true where the condition is valid.
        num_image_tokens: N, how many image tokens follow.

    Returns:
        bool `[B, 1, T + N, T + N]`.
    """
    total = condition_mask.shape[1] + num_image_tokens
    device = condition_mask.device
    causal = torch.ones(total, total, dtype=torch.bool, device=device).tril()
    valid = F.pad(condition_mask.bool(), (0, num_image_tokens), value=True)  # [B, T + N]
    diagonal = torch.eye(total, dtype=torch.bool, device=device)
    return ((causal & valid[:, None, :]) | diagonal)[:, None]


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> Tensor:
    """PyTorch's attention of query `[B, H, n, D]` over key and value `[B, H_kv, S, D]`, which gives `[B, H, n, D]`.

    The mask is bool or additive, `[B or 1, 1, n, S]`; without one, attention is causal.
    """
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        enable_gqa=key.shape[1] != query.shape[1],
    )


class Attention(nn.Module):
    """Self-attention with rotary positions and grouped key/value heads. All three projections are one matrix.

    Training on a CPU replaces `project` and `attend` by faster ways (`scenes.training.transformer_pass`).
    """

    def __init__(self, dim: int, num_heads: int, num_key_value_heads: int, layer_index: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = dim // num_heads
        self.layer_index = layer_index
        self.dropout = dropout
        # Output rows: [queries | keys | values], each a block of whole heads.
        self.to_qkv = nn.Linear(dim, (num_heads + 2 * num_key_value_heads) * self.head_dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.project: Projection = project
        self.attend: AttentionFunction = scaled_dot_product_attention

    def forward(
        self,
        hidden_states: Tensor,  # [B, n, dim]
        rotary: Tensor,  # [B or 1, n, 1, D // 2, 2]
        attention_mask: Tensor | None,  # [B or 1, 1, n, S]
        kv_cache: StaticKVCache | None = None,
        slots: Tensor | None = None,
        kv_length: int | None = None,
    ) -> Tensor:
        query, key, value = self.project(self, hidden_states, rotary)  # [B, H or H_kv, n, D]
        if kv_cache is not None and slots is not None:
            key, value = kv_cache.update(self.layer_index, key, value, slots, kv_length)  # [B, H_kv, S, D]
        attended = self.attend(query, key, value, attention_mask)  # [B, H, n, D]
        output = self.to_out(attended.transpose(1, 2).reshape(hidden_states.shape))  # [B, n, dim]
        return F.dropout(output, self.dropout) if self.training and self.dropout > 0 else output

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """The output of `to_qkv`, `[B, n, (H + 2 H_kv) D]`, as queries with keys `[B, n, H + H_kv, D]`, and values."""
        kv_heads = self.num_key_value_heads
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        query_key, value = heads.split((self.num_heads + kv_heads, kv_heads), dim=2)
        return query_key, value

    def by_head(self, query_key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[B, H or H_kv, n, D]` of what `split_heads` gave."""
        query, key = query_key.split((self.num_heads, self.num_key_value_heads), dim=2)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def project(attention: Attention, hidden_states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, H or H_kv, n, D]` of `[B, n, dim]`, turned by their positions."""
    query_key, value = attention.split_heads(attention.to_qkv(hidden_states))
    # Queries and keys are turned together: they lie side by side, and one pass costs less than two.
    return attention.by_head(apply_rotary(query_key, rotary), value)


# ---------------------------------------------------------------------------------------------------------------------
# Norm and feed-forward


class RMSNorm(nn.Module):
    """RMSNorm as LlamaGen has it: normalised in fp32, cast back, and only then multiplied by the weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, hidden_states: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            # The same in plain operations: on a CPU their backward takes two thirds of the time of F.rms_norm's.
            states = hidden_states.float()
            mean_square = torch.linalg.vector_norm(states, dim=-1, keepdim=True).square() / states.shape[-1]
            return (states * torch.rsqrt(mean_square + self.eps)).to(hidden_states.dtype) * self.weight
        if hidden_states.dtype == torch.float32:
            return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.eps)
        # Fused kernels multiply by a given weight before they round, so the weight stays outside.
        return (
            F.rms_norm(hidden_states.float(), self.weight.shape, None, self.eps).to(hidden_states.dtype) * self.weight
        )


class FeedForward(nn.Module):
    """SwiGLU. Gate and up projection are one matrix, gate first."""

    def __init__(self, dim: int, intermediate_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.gate_up_proj = nn.Linear(dim, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, dim, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)  # [B, n, intermediate_size] each
        output = self.down_proj(F.silu(gate) * up)  # [B, n, dim]
        return F.dropout(output, self.dropout) if self.training and self.dropout > 0 else output


# ---------------------------------------------------------------------------------------------------------------------
# Checks and initial weights of networks that are built from these layers


def check_heads(dim: int, num_heads: int, condition_rotary: str) -> None:
    """Refuse sizes that two-dimensional rotary embedding cannot use. Raises ValueError."""
    if condition_rotary not in CONDITION_ROTARY:
        raise ValueError(f"condition_rotary must be one of {', '.join(CONDITION_ROTARY)}, got {condition_rotary!r}.")
    if dim % num_heads or (dim // num_heads) % 4:
        raise ValueError(
            f"dim must be num_attention_heads times a multiple of 4 (two-dimensional rotary pairs), got dim {dim} "
            f"with {num_heads} heads."
        )


def initialise(module: nn.Module) -> None:
    """Weights of one linear or embedding layer from a normal distribution of width 0.02; biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
