"""The LlamaGen transformer: class- or text-conditional next-token prediction over a grid of image tokens.

What belongs here: the network, its geometry, its rotary table, and the masks that follow from its conditioning. What
does not: sampling and guidance (`specdecode.sampling`), the cache (`specdecode.kv_cache`), names of foreign checkpoints
(`vargen.models.llamagen.convert`), text encoding (`vargen.models.llamagen.text_encoder`).

Source: Sun et al., "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation", arXiv 2406.06525. A
pre-norm Llama decoder (RMSNorm, SwiGLU, no biases, untied embeddings) with two peculiarities that weights depend on:

* Rotary embedding is two-dimensional and knows image tokens only. Its rows for condition tokens (the class, the text)
  are zero in cosine *and* sine, so their queries and keys vanish: every token gives each visible condition token the
  logit 0. A condition token therefore has no position, and padding before the text may be trimmed freely. A model of
  our own may turn them by nothing instead (`condition_rotary="identity"`): still without position, but seen by content.
* The null caption is not learned. It is a fixed random buffer in the space of text features, kept with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from vargen.kernels.native import Geometry, NewTokens
from vargen.models.llamagen.fast_pass import FastPass, visible

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache

CONDITION_POSITION = -1
"""The position of a token that belongs to the condition: it selects the last row of the rotary table."""

CONDITION_ROTARY = ("zero", "identity")
"""What that row does: let the queries and keys of condition tokens vanish, as in LlamaGen, or leave them be."""

Projection = Callable[["LlamaGenAttention", Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]

LLAMAGEN_SIZES: dict[str, dict[str, int]] = {
    "B": {"dim": 768, "num_layers": 12, "num_attention_heads": 12},
    "L": {"dim": 1024, "num_layers": 24, "num_attention_heads": 16},
    "XL": {"dim": 1280, "num_layers": 36, "num_attention_heads": 20},
    "XXL": {"dim": 1536, "num_layers": 48, "num_attention_heads": 24},
    "3B": {"dim": 3200, "num_layers": 24, "num_attention_heads": 32},
    # The three sizes below are in the authors' code, but no weights were released for them.
    "1B": {"dim": 2048, "num_layers": 22, "num_attention_heads": 32},
    "XXXL": {"dim": 2560, "num_layers": 48, "num_attention_heads": 40},
    "7B": {"dim": 4096, "num_layers": 32, "num_attention_heads": 32},
}
"""Geometry of the sizes by the authors' names; everything else is a default of `LlamaGenTransformer`."""


@dataclass
class LlamaGenTransformerOutput(BaseOutput):
    """What one forward says.

    Attributes:
        logits: fp32 `[B, n, vocab_size]`, raw: no guidance, no temperature.
        hidden_states: `[B, n, dim]` after the final norm, in the model's dtype; `lm_head` of it gives the logits.
        features: `[B, n, k dim]`, states of `feature_layers` side by side; `hidden_states` where none were asked for.
    """

    logits: Tensor
    hidden_states: Tensor
    features: Tensor


def default_intermediate_size(dim: int, multiple_of: int = 256) -> int:
    """Width of the SwiGLU layer: two thirds of `4 * dim`, rounded up to a multiple of `multiple_of`."""
    width = int(2 * 4 * dim / 3)
    return math.ceil(width / multiple_of) * multiple_of


def build_rotary_table(
    grid_size: int,
    head_dim: int,
    base: float = 10000.0,
    device: Any = None,
    condition_rotary: str = "zero",
    position_scale: float = 1.0,
) -> Tensor:
    """Two-dimensional rotary table for a square grid of tokens in raster order (LlamaGen `precompute_freqs_cis_2d`).

    The first half of a head's channel pairs turns with the token's row, the second half with its column.

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

    A plain attribute of a model, not a buffer, so that `.to(torch.bfloat16)` cannot round it.

    Args:
        grid_size, head_dim, base, condition_rotary, position_scale: as for `build_rotary_table`.
    """

    def __init__(
        self,
        grid_size: int,
        head_dim: int,
        base: float,
        condition_rotary: str = "zero",
        position_scale: float = 1.0,
    ) -> None:
        self.grid_size = grid_size
        self.head_dim = head_dim
        self.base = base
        self.condition_rotary = condition_rotary
        self.position_scale = position_scale
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


def condition_attention_mask(condition_mask: Tensor, num_image_tokens: int = 0) -> Tensor:
    """Attention mask of a whole sequence: the condition, then image tokens.

    Causal; padding of the condition is seen by nobody but itself (every query must see something).

    Args:
        condition_mask: bool `[B, T]`, true where the condition is valid.
        num_image_tokens: N, how many image tokens follow.

    Returns:
        bool `[B, 1, T + N, T + N]`.
    """
    condition_length = condition_mask.shape[1]
    total = condition_length + num_image_tokens
    device = condition_mask.device
    causal = torch.ones(total, total, dtype=torch.bool, device=device).tril()
    valid = F.pad(condition_mask.bool(), (0, num_image_tokens), value=True)  # [B, T + N]
    diagonal = torch.eye(total, dtype=torch.bool, device=device)
    return ((causal & valid[:, None, :]) | diagonal)[:, None]


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> Tensor:
    """PyTorch's attention: query `[B, H, n, D]`, key and value `[B, H_kv, S, D]`, mask as `forward` has it, causal if
    None; gives `[B, H, n, D]`."""
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        enable_gqa=key.shape[1] != query.shape[1],
    )


class LlamaGenRMSNorm(nn.Module):
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
        # Fused kernels multiply by a weight they are given before they round, so it stays outside.
        return (
            F.rms_norm(hidden_states.float(), self.weight.shape, None, self.eps).to(hidden_states.dtype) * self.weight
        )


class LlamaGenAttention(nn.Module):
    """Self-attention with rotary positions and grouped key/value heads. All three projections are one matrix.

    Training on a CPU puts faster ways to do the same into `project` and `attend` (`vargen.training.transformer_pass`).
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
        hidden_states: Tensor,
        rotary: Tensor,
        attention_mask: Tensor | None,
        kv_cache: StaticKVCache | None = None,
        slots: Tensor | None = None,
        kv_length: int | None = None,
    ) -> Tensor:
        query, key, value = self.project(self, hidden_states, rotary)  # [B, H or H_kv, n, D]
        if kv_cache is not None and slots is not None:
            key, value = kv_cache.update(self.layer_index, key, value, slots, kv_length)  # [B, H_kv, S, D]
        attended = self.attend(query, key, value, attention_mask)  # [B, H, n, D]
        output = self.to_out(attended.transpose(1, 2).reshape(hidden_states.shape))
        return F.dropout(output, self.dropout) if self.training and self.dropout > 0 else output

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """What `to_qkv` gave, `[B, n, (H + 2 H_kv) D]`, as queries with keys `[B, n, H + H_kv, D]` and values."""
        kv_heads = self.num_key_value_heads
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        query_key, value = heads.split((self.num_heads + kv_heads, kv_heads), dim=2)
        return query_key, value

    def by_head(self, query_key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[B, H or H_kv, n, D]` of what `split_heads` gave."""
        query, key = query_key.split((self.num_heads, self.num_key_value_heads), dim=2)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def project(attention: LlamaGenAttention, hidden_states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, H or H_kv, n, D]` of `[B, n, dim]`, turned by their positions."""
    query_key, value = attention.split_heads(attention.to_qkv(hidden_states))
    # Queries and keys are turned together: they lie side by side, and one pass costs less than two.
    return attention.by_head(apply_rotary(query_key, rotary), value)


class LlamaGenFeedForward(nn.Module):
    """SwiGLU. Gate and up projection are one matrix, gate first."""

    def __init__(self, dim: int, intermediate_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.gate_up_proj = nn.Linear(dim, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, dim, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        output = self.down_proj(F.silu(gate) * up)
        return F.dropout(output, self.dropout) if self.training and self.dropout > 0 else output


class LlamaGenBlock(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_key_value_heads: int,
        intermediate_size: int,
        norm_eps: float,
        residual_dropout: float,
        ffn_dropout: float,
        layer_index: int,
    ) -> None:
        super().__init__()
        self.norm1 = LlamaGenRMSNorm(dim, norm_eps)
        self.attn = LlamaGenAttention(dim, num_heads, num_key_value_heads, layer_index, residual_dropout)
        self.norm2 = LlamaGenRMSNorm(dim, norm_eps)
        self.ff = LlamaGenFeedForward(dim, intermediate_size, ffn_dropout)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Tensor,
        attention_mask: Tensor | None,
        kv_cache: StaticKVCache | None = None,
        slots: Tensor | None = None,
        kv_length: int | None = None,
    ) -> Tensor:
        hidden_states = hidden_states + self.attn(
            self.norm1(hidden_states), rotary, attention_mask, kv_cache, slots, kv_length
        )
        return hidden_states + self.ff(self.norm2(hidden_states))


class LlamaGenCaptionProjection(nn.Module):
    """Text features to the transformer's width: two layers without bias, tanh-approximated GELU between."""

    def __init__(self, caption_dim: int, dim: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(caption_dim, dim, bias=False)
        self.linear_2 = nn.Linear(dim, dim, bias=False)

    def forward(self, caption_embeds: Tensor) -> Tensor:
        return self.linear_2(F.gelu(self.linear_1(caption_embeds), approximate="tanh"))


class LlamaGenTransformer(ModelMixin, ConfigMixin):
    """LlamaGen's decoder over image tokens, conditioned on a class or on text features.

    Args:
        dim: width.
        num_layers: decoder layers.
        num_attention_heads: query heads; `dim / num_attention_heads` must be a multiple of 4.
        num_key_value_heads: key/value heads, a divisor of `num_attention_heads`; None for as many as query heads.
        intermediate_size: width of the feed-forward layer; None for `default_intermediate_size(dim, multiple_of)`.
        multiple_of: rounding of the default `intermediate_size`; unused when that is given.
        vocab_size: entries of the image tokenizer's codebook.
        grid_size: side of the token grid; a picture has `grid_size ** 2` tokens. No weight depends on it, so it must
            be known from elsewhere (16 for 256 pixels with the f16 tokenizer, 24 for 384, 32 for 512).
        condition_type: "class" or "text".
        num_classes: classes, when the condition is a class; one more embedding row serves as the null class.
        caption_dim: width of the text features, when the condition is text.
        condition_length: the most condition tokens; None for 1 (class) or 120 (text).
        class_dropout_prob: how often training replaces the condition by the null condition. Only kept here, for the
            trainer; 0 with a class condition also means there is no null class.
        norm_eps: epsilon of every RMSNorm.
        rope_base: base of the rotary frequencies.
        condition_rotary: "zero" for official weights: image tokens see the mean of the condition's values, each
            condition token as much as any other. "identity": they attend to condition tokens by content.
        position_scale: factor on rows and columns before they turn queries and keys; 1 for official weights. A model
            that goes on from one with a smaller grid takes the ratio of the two sides, such as 0.5 for 32 after 16.
            An object is then as large to it as before (position interpolation, Chen et al. 2023, arXiv 2306.15595).
        token_dropout, residual_dropout, ffn_dropout: training only, on embeddings, attention and feed-forward outputs.

    Raises:
        ValueError: the sizes do not fit each other, or `condition_type` or `condition_rotary` is unknown.
    """

    _supports_gradient_checkpointing = False
    _no_split_modules = ["LlamaGenBlock"]  # noqa: RUF012

    if TYPE_CHECKING:
        config: Any  # diffusers declares a dict, and serves its keys as attributes

    @register_to_config
    def __init__(
        self,
        dim: int = 768,
        num_layers: int = 12,
        num_attention_heads: int = 12,
        num_key_value_heads: int | None = None,
        intermediate_size: int | None = None,
        multiple_of: int = 256,
        vocab_size: int = 16384,
        grid_size: int = 16,
        condition_type: str = "class",
        num_classes: int = 1000,
        caption_dim: int = 2048,
        condition_length: int | None = None,
        class_dropout_prob: float = 0.1,
        norm_eps: float = 1e-5,
        rope_base: float = 10000.0,
        condition_rotary: str = "zero",
        position_scale: float = 1.0,
        token_dropout: float = 0.1,
        residual_dropout: float = 0.1,
        ffn_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if condition_type not in ("class", "text"):
            raise ValueError(f'condition_type must be "class" or "text", got {condition_type!r}.')
        if condition_rotary not in CONDITION_ROTARY:
            raise ValueError(
                f"condition_rotary must be one of {', '.join(CONDITION_ROTARY)}, got {condition_rotary!r}."
            )
        for name, size in (
            ("dim", dim),
            ("num_layers", num_layers),
            ("num_attention_heads", num_attention_heads),
            ("vocab_size", vocab_size),
            ("grid_size", grid_size),
            ("position_scale", position_scale),
        ):
            if size <= 0:
                raise ValueError(f"{name} must be positive, got {size}.")
        if dim % num_attention_heads or (dim // num_attention_heads) % 4:
            raise ValueError(
                f"dim must be num_attention_heads times a multiple of 4 (two-dimensional rotary pairs), got dim {dim} "
                f"with {num_attention_heads} heads."
            )
        num_key_value_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        if num_key_value_heads <= 0 or num_attention_heads % num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads must divide num_attention_heads ({num_attention_heads}), got "
                f"{num_key_value_heads}."
            )
        if intermediate_size is None:
            intermediate_size = default_intermediate_size(dim, multiple_of)
        if condition_length is None:
            condition_length = 1 if condition_type == "class" else 120
        # Resolved values are written back, so that config.json says what the model is, not how it was asked for.
        self.register_to_config(
            num_key_value_heads=num_key_value_heads,
            intermediate_size=intermediate_size,
            condition_length=condition_length,
        )
        self.head_dim = dim // num_attention_heads
        self.num_image_tokens = grid_size**2

        self.token_embedding = nn.Embedding(vocab_size, dim)
        if condition_type == "class":
            self.class_embedding = nn.Embedding(num_classes + (class_dropout_prob > 0), dim)
        else:
            self.caption_projection = LlamaGenCaptionProjection(caption_dim, dim)
            # A buffer: saved and loaded with the weights, never trained (see the module's docstring).
            self.register_buffer("null_caption_embeds", torch.randn(condition_length, caption_dim) / caption_dim**0.5)
        self.transformer_blocks = nn.ModuleList(
            LlamaGenBlock(
                dim=dim,
                num_heads=num_attention_heads,
                num_key_value_heads=num_key_value_heads,
                intermediate_size=intermediate_size,
                norm_eps=norm_eps,
                residual_dropout=residual_dropout,
                ffn_dropout=ffn_dropout,
                layer_index=layer_index,
            )
            for layer_index in range(num_layers)
        )
        self.norm_out = LlamaGenRMSNorm(dim, norm_eps)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

        self.rotary_rows = RotaryTable(grid_size, self.head_dim, rope_base, condition_rotary, position_scale)
        self.fast_pass = FastPass(
            self,
            [(block.norm1, block.attn, block.norm2, block.ff) for block in self.transformer_blocks],
            Geometry(num_attention_heads, num_key_value_heads, self.head_dim, intermediate_size, norm_eps),
        )
        self.apply(self._initialise)
        nn.init.zeros_(self.lm_head.weight)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    @classmethod
    def from_size(cls, size: str, **kwargs: Any) -> Self:
        """A model of a published size, with random weights.

        Args:
            size: a key of `LLAMAGEN_SIZES`, such as "XL".
            **kwargs: any other constructor argument, such as `condition_type="text", grid_size=32`.

        Raises:
            ValueError: the size is unknown.
        """
        if size not in LLAMAGEN_SIZES:
            raise ValueError(f"size must be one of {', '.join(LLAMAGEN_SIZES)}, got {size!r}.")
        return cls(**LLAMAGEN_SIZES[size], **kwargs)

    def embed_condition(
        self,
        class_labels: Tensor | None = None,
        caption_embeds: Tensor | None = None,
        drop: Tensor | None = None,
    ) -> Tensor:
        """Condition tokens, as the first `T` inputs of the sequence.

        Args:
            class_labels: int64 `[B]`, for a class-conditional model; `num_classes` is the null class.
            caption_embeds: `[B, T, caption_dim]` text features, right-aligned (padding first), for a text-conditional
                one; T at most `condition_length`.
            drop: bool `[B]`; these rows get the null condition instead (classifier-free guidance training).

        Returns:
            `[B, T, dim]`, T = 1 for a class.

        Raises:
            ValueError: the condition is of the wrong kind, or too long.
        """
        if self.config.condition_type == "class":
            if class_labels is None or caption_embeds is not None:
                raise ValueError("class_labels (and no caption_embeds) must be given: the model is class-conditional.")
            if drop is not None:
                class_labels = class_labels.masked_fill(drop, self.config.num_classes)
            return self.class_embedding(class_labels)[:, None]  # [B, 1, dim]
        if caption_embeds is None or class_labels is not None:
            raise ValueError("caption_embeds (and no class_labels) must be given: the model is text-conditional.")
        length = caption_embeds.shape[1]
        self._check_condition_length(length)
        if drop is not None:
            null = self.null_caption_embeds[-length:].to(caption_embeds.dtype)
            caption_embeds = torch.where(drop[:, None, None], null, caption_embeds)
        return self.caption_projection(caption_embeds.to(self.caption_projection.linear_1.weight.dtype))

    def null_condition(self, batch_size: int, length: int | None = None) -> Tensor:
        """Condition tokens of the unconditional half of guidance.

        For text these are the *last* `length` rows of the null caption through the caption's own projection. They go
        with the conditional prompt's mask, so that both halves see equally many condition tokens.

        Args:
            batch_size: rows.
            length: T of the conditional half; None for `condition_length`. Ignored for a class.

        Returns:
            `[B, T, dim]`, the rows all views of one.
        """
        if self.config.condition_type == "class":
            if self.class_embedding.num_embeddings == self.config.num_classes:
                raise ValueError("class_dropout_prob is 0: the model has no null class, so it cannot be guided.")
            null = self.class_embedding.weight[-1:]  # [1, dim]
        else:
            length = self.config.condition_length if length is None else length
            self._check_condition_length(length)
            null = self.caption_projection(self.null_caption_embeds)[-length:]  # whole: the same bits at every length
        return null[None].expand(batch_size, -1, -1)

    def _check_condition_length(self, length: int) -> None:
        if not 1 <= length <= self.config.condition_length:
            raise ValueError(
                f"caption_embeds must have 1 to {self.config.condition_length} tokens (condition_length), got {length}."
            )

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: StaticKVCache | None = None,
        slots: Tensor | None = None,
        kv_length: int | None = None,
        logits_to_keep: int = 0,
        feature_layers: Sequence[int] = (),
    ) -> LlamaGenTransformerOutput:
        """One pass over `n` tokens of every row, with or without a cache.

        Args:
            input_ids: int64 `[B, n]` image tokens, or None with `inputs_embeds`.
            inputs_embeds: `[B, n, dim]`, for condition tokens (see `embed_condition`).
            positions: int64 `[B, n]` (or `[1, n]`): a token's place in the picture, raster order, -1 for a condition
                token. Several tokens may share a position, as the alternatives of a token tree do.
            attention_mask: bool, broadcastable to `[B, 1, n, S]`, true where a token sees a key (or additive). None
                means causal over the `n` tokens, and is allowed only without a cache.
            kv_cache: keys and values of earlier tokens; new ones are written to `slots`.
            slots: int64 `[B, n]` cache slots of the new tokens; None for `kv_cache.new_slots(n)`.
            kv_length: attend to the first `kv_length` slots only, when the host knows that no row reaches further.
            logits_to_keep: compute logits of the last so many tokens only; 0 for all.
            feature_layers: after how many blocks hidden states are kept, rising; that of all blocks is normed.

        Returns:
            Logits, fp32 `[B, n or logits_to_keep, vocab_size]`, final hidden states `[B, n, dim]`, and features.

        Raises:
            ValueError: not exactly one kind of input, no positions, or a cache without a mask.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given.")
        if positions is None:
            raise ValueError("positions must be given: -1 for condition tokens, the raster index for image tokens.")
        hidden_states = inputs_embeds if input_ids is None else self.token_embedding(input_ids)
        assert hidden_states is not None
        if kv_cache is not None:
            if attention_mask is None:
                raise ValueError("attention_mask must be given with kv_cache, for instance kv_cache.attention_mask().")
            slots = kv_cache.new_slots(hidden_states.shape[1]) if slots is None else slots
            slots = kv_cache.flatten_slots(slots)
            seen = visible(attention_mask, len(hidden_states))
            fast = None
            if seen is not None:
                fast = self.fast_pass.run(
                    NewTokens(positions, seen, hidden_states, places=slots),
                    kv_cache,
                    self.lm_head,
                    is_prompt=input_ids is None,
                    logits_to_keep=logits_to_keep,
                    kept_layers=feature_layers,
                )
            if fast is not None:
                features, logits = fast
                assert logits is not None
                states = features[..., -self.config.dim :]
                if feature_layers and feature_layers[-1] < len(self.transformer_blocks):
                    features = features[..., : -self.config.dim]
                return LlamaGenTransformerOutput(logits, states, features)
        rotary = self.rotary_rows(positions)
        kept = []
        for number, block in enumerate(self.transformer_blocks, start=1):
            hidden_states = block(hidden_states, rotary, attention_mask, kv_cache, slots, kv_length)
            if number in feature_layers and number < len(self.transformer_blocks):
                kept.append(hidden_states)
        hidden_states = self.norm_out(hidden_states)
        if len(self.transformer_blocks) in feature_layers:
            kept.append(hidden_states)
        logits = self.lm_head(hidden_states[:, -logits_to_keep:] if logits_to_keep else hidden_states)
        features = torch.cat(kept, dim=-1) if kept else hidden_states
        return LlamaGenTransformerOutput(logits=logits.float(), hidden_states=hidden_states, features=features)
