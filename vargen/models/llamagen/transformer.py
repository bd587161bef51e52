"""The LlamaGen transformer: class- or text-conditional next-token prediction over a grid of image tokens.

Belongs here: the network, its published sizes and its condition tokens. Does not belong here: the layers, which the
EAGLE head shares (`vargen.drafters.transformer_layers`), sampling and guidance (`specdecode.sampling`), the cache
(`specdecode.kv_cache`), names of official checkpoints (`convert.py`), text encoding (`text_encoder.py`).

Source: Sun et al., "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation", arXiv 2406.06525. A
pre-norm Llama decoder (RMSNorm, SwiGLU, no biases, untied embeddings) with two peculiarities that weights depend on:

* Rotary embedding is two-dimensional and covers image tokens only. Its rows for condition tokens (the class, the text)
  are zero in cosine *and* sine, so their queries and keys vanish: every token gives each visible condition token the
  logit 0. A condition token therefore has no position, and padding before the text may be trimmed freely. With
  `condition_rotary="identity"` they are not turned at all: still without position, but seen by content.
* The null caption is not learned. It is a fixed random buffer in the space of text features, kept with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from specdecode.kernels.fast_pass import FastPass, visible
from specdecode.kernels.native import Geometry, NewTokens
from vargen.drafters.transformer_layers import Attention, FeedForward, RMSNorm, RotaryTable, check_heads, initialise

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache

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
    """The output of one forward pass.

    Attributes:
        logits: fp32 `[B, n, vocab_size]`, raw: no guidance, no temperature.
        hidden_states: `[B, n, dim]` after the final norm, in the model's dtype; `lm_head` makes logits of them.
        features: `[B, n, k dim]`, states after the k `feature_layers` side by side; without these, `hidden_states`.
    """

    logits: Tensor
    hidden_states: Tensor
    features: Tensor


def default_intermediate_size(dim: int, multiple_of: int = 256) -> int:
    """Width of the SwiGLU layer: two thirds of `4 * dim`, rounded up to a multiple of `multiple_of`."""
    width = int(2 * 4 * dim / 3)
    return math.ceil(width / multiple_of) * multiple_of


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
        self.norm1 = RMSNorm(dim, norm_eps)
        self.attn = Attention(dim, num_heads, num_key_value_heads, layer_index, residual_dropout)
        self.norm2 = RMSNorm(dim, norm_eps)
        self.ff = FeedForward(dim, intermediate_size, ffn_dropout)

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
        for name in ("dim", "num_layers", "num_attention_heads", "vocab_size", "grid_size", "position_scale"):
            if self.config[name] <= 0:
                raise ValueError(f"{name} must be positive, got {self.config[name]}.")
        check_heads(dim, num_attention_heads, condition_rotary)
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
        # Resolved values are written back, so that config.json describes the model without the defaults of this code.
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
        sizes = dim, num_attention_heads, num_key_value_heads, intermediate_size, norm_eps
        self.transformer_blocks = nn.ModuleList(
            LlamaGenBlock(*sizes, residual_dropout, ffn_dropout, layer_index) for layer_index in range(num_layers)
        )
        self.norm_out = RMSNorm(dim, norm_eps)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

        self.rotary_rows = RotaryTable(grid_size, self.head_dim, rope_base, condition_rotary, position_scale)
        self.fast_pass = FastPass(
            self,
            [(block.norm1, block.attn, block.norm2, block.ff) for block in self.transformer_blocks],
            Geometry(num_attention_heads, num_key_value_heads, self.head_dim, intermediate_size, norm_eps),
        )
        self.apply(initialise)
        nn.init.zeros_(self.lm_head.weight)

    def embed_condition(
        self, class_labels: Tensor | None = None, caption_embeds: Tensor | None = None, drop: Tensor | None = None
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
            # An adapter's layer has no `num_embeddings`, and its `weight` is without what the adapter adds.
            if self.class_embedding.weight.shape[0] == self.config.num_classes:
                raise ValueError("class_dropout_prob is 0: the model has no null class, so it cannot be guided.")
            null_class = torch.full((1,), self.config.num_classes, device=self.class_embedding.weight.device)
            null = self.class_embedding(null_class)  # [1, dim]
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
            logits_to_keep: compute logits of this many last tokens only; 0 for all.
            feature_layers: numbers of blocks, rising, after which hidden states are kept; after the last block these
                are normed.

        Returns:
            Logits, fp32 `[B, n or logits_to_keep, vocab_size]`, final hidden states `[B, n, dim]`, and features.

        Raises:
            ValueError: not exactly one kind of input, no positions, or a cache without a mask.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given.")
        if positions is None:
            raise ValueError("positions must be given: -1 for condition tokens, the raster index for image tokens.")
        hidden_states = inputs_embeds if input_ids is None else self.token_embedding(input_ids)  # [B, n, dim]
        assert hidden_states is not None
        if kv_cache is not None:
            if attention_mask is None:
                raise ValueError("attention_mask must be given with kv_cache, for instance kv_cache.attention_mask().")
            slots = kv_cache.new_slots(hidden_states.shape[1]) if slots is None else slots
            slots = kv_cache.flatten_slots(slots)
            if (seen := visible(attention_mask, len(hidden_states))) is not None:
                new = NewTokens(positions, seen, hidden_states, places=slots)
                fast = self.fast_pass.run(
                    new,
                    kv_cache,
                    self.lm_head,
                    is_prompt=input_ids is None,
                    logits_to_keep=logits_to_keep,
                    kept_layers=feature_layers,
                )
                if fast is not None:
                    features, kept_logits = fast
                    assert kept_logits is not None
                    final = features[..., -self.config.dim :]  # the kernels always give the final states, at the end
                    if feature_layers and feature_layers[-1] < len(self.transformer_blocks):
                        features = features[..., : -self.config.dim]
                    return LlamaGenTransformerOutput(kept_logits, final, features)
        rotary = self.rotary_rows(positions)  # [B or 1, n, 1, D // 2, 2]
        kept = []
        for number, block in enumerate(self.transformer_blocks, start=1):
            hidden_states = block(hidden_states, rotary, attention_mask, kv_cache, slots, kv_length)
            if number in feature_layers and number < len(self.transformer_blocks):
                kept.append(hidden_states)
        hidden_states = self.norm_out(hidden_states)
        if len(self.transformer_blocks) in feature_layers:
            kept.append(hidden_states)
        logits = self.lm_head(hidden_states[:, -logits_to_keep:] if logits_to_keep else hidden_states)
        features = torch.cat(kept, dim=-1) if kept else hidden_states  # [B, n, k dim]
        return LlamaGenTransformerOutput(logits=logits.float(), hidden_states=hidden_states, features=features)
