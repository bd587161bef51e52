"""EAGLE heads: one decoder layer over pairs of token and target feature.

Belongs here: the layer, and the head for models that draw image tokens, which is the same for every family. Does not
belong here: the head for text (`text_head.py`), caches, guidance and the part in the decode loop
(`eagle_draft_head.py`), and reading published LANTERN heads (`convert_draft_head.py`).

Depths. The head may read the target's states after several layers, low, middle and last, as EAGLE-3 does (Li et al.
2025, arXiv 2503.01840, section 3.1); `fuse` makes one feature of them. The head's own guesses are of the last state
alone, and replace a fused feature unchanged.

The architecture is that of LANTERN's LlamaGen drafter (arXiv 2410.03355; `models/drafters/cnets_llamagen.py` of the
release). It differs from a LlamaGen block: a biased projection of token embedding and feature to one width, no norm
before the attention, none at the end, an epsilon of 1e-6, and a token embedding of its own. The output head is the
target's and is not stored here. Before the image it reads the target's features of the condition, each paired with
token 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from specdecode.kernels.as_written import untouched
from specdecode.kernels.fast_pass import FastPass, visible
from specdecode.kernels.in_graph import in_graph
from specdecode.kernels.native import Geometry, NewTokens, fits_linear, linear_now
from vargen.drafters.transformer_layers import Attention, FeedForward, RMSNorm, RotaryTable, check_heads, initialise

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache


class PairHead(ModelMixin, ConfigMixin):
    """The network of every head here; a subclass has a constructor with its settings.

    Attributes:
        token_embedding: gives embeddings [B, n, dim] of tokens [B, n].
        rotary_rows: gives rotary embeddings of positions, see `RotaryTable`.
        norm1: before the attention; most heads have none.
        feature_layers: numbers of the target's layers after which it reads hidden states, rising, the last layer at
            the end. Empty: it reads the final states alone, and has nothing to fuse.
    """

    if TYPE_CHECKING:
        config: Any
        token_embedding: Any
        rotary_rows: Any

    def build(
        self, dim: int, num_heads: int, intermediate_size: int, norm_eps: float, feature_layers: Sequence[int] | None
    ) -> None:
        """Make the layer. Raises ValueError if the heads do not share the width evenly, or `feature_layers` do not rise
        or are fewer than two."""
        if dim % num_heads or (dim // num_heads) % 2:
            raise ValueError(
                f"dim must be num_attention_heads times an even number, got dim {dim} with {num_heads} heads."
            )
        if feature_layers is not None and (
            len(feature_layers) < 2 or sorted({0, *feature_layers})[1:] != [*feature_layers]
        ):
            raise ValueError(f"feature_layers must be two layers or more, from 1 on, rising, got {feature_layers}.")
        self.head_dim = dim // num_heads
        self.feature_layers: tuple[int, ...] = tuple(feature_layers or ())
        if self.feature_layers:
            self.fuse = nn.Linear(len(self.feature_layers) * dim, dim, bias=False)
        self.fc = nn.Linear(2 * dim, dim)
        self.norm1: nn.Module = nn.Identity()
        self.attn = Attention(dim, num_heads, num_heads, layer_index=0, dropout=0.0)
        self.norm2 = RMSNorm(dim, norm_eps)
        self.ff = FeedForward(dim, intermediate_size, dropout=0.0)
        self.fast_pass = FastPass(
            self,
            [(None, self.attn, self.norm2, self.ff)],
            Geometry(num_heads, num_heads, self.head_dim, intermediate_size, norm_eps),
        )
        self.apply(initialise)

    def start_from_features(self, embedding_scale: float | None = None) -> None:
        """Untrained weights that guess the last feature again, and use the last layer's state alone.

        Neighbouring features resemble each other, so this start saves most of the training.

        Args:
            embedding_scale: the token's embedding is added to the guess, times this; None: by random weights.
        """
        dim = self.config.dim
        with torch.no_grad():
            self.fc.weight[:, dim:].copy_(torch.eye(dim))
            if embedding_scale is not None:
                self.fc.weight[:, :dim].copy_(torch.eye(dim) * embedding_scale)
            if self.feature_layers:
                self.fuse.weight.zero_()
                self.fuse.weight[:, -dim:].copy_(torch.eye(dim))

    @property
    def dtype(self) -> torch.dtype:
        """The type that it computes in; its matrices may be rounded to integers."""
        return self.norm2.weight.dtype

    def fused(self, states: Tensor) -> Tensor:
        """Features `[..., dim]` of the target's states `[..., k dim]` after the k layers of `feature_layers`.

        Only the last layer's state is normed by the target. The others grow from layer to layer, so they are put on
        one scale here.
        """
        if not self.feature_layers:
            return states
        fuse, epsilon = self.fuse, 1e-6
        if not in_graph() and type(fuse) is nn.Linear and untouched([fuse]):
            weight, states = fuse.weight, states.to(fuse.weight.dtype)
            fits = fits_linear(states, weight)
            features = linear_now(states, weight, normed=(weight.shape[0], epsilon)) if fits else None
            if features is not None:
                return features
        dim = self.config.dim
        inner, last = states.to(self.dtype).split((states.shape[-1] - dim, dim), dim=-1)
        normed = F.rms_norm(inner.unflatten(-1, (-1, dim)), (dim,), eps=epsilon).flatten(-2)
        return fuse(torch.cat((normed, last), dim=-1))

    def forward(
        self,
        input_ids: Tensor,
        features: Tensor,
        positions: Tensor,
        attention_mask: Tensor | None,
        kv_cache: StaticKVCache | None = None,
        slots: Tensor | None = None,
        kv_length: int | None = None,
    ) -> Tensor:
        """Guessed hidden states after each pair.

        Args:
            input_ids: int64 `[B, n]`, the pairs' tokens (0 for pairs of the condition).
            features: `[B, n, dim]`, `fused` of the target's hidden states at the token before each, or a guess of the
                last of these.
            positions: int64 `[B or 1, n]`, the token's place in the picture, -1 for pairs of the condition.
            attention_mask: bool `[B or 1, 1, n, S]`, true where a pair sees a key; None: causal, without a cache.
            kv_cache: keys and values of earlier pairs; new ones are written to `slots`.
            slots: int64 `[B, n]`. kv_length: attention reads the first `kv_length` slots only.

        Returns:
            `[B, n, dim]`; the target's `lm_head` of it gives logits.
        """
        if kv_cache is not None and slots is not None:
            slots = kv_cache.flatten_slots(slots) if slots.ndim == 2 else slots
            seen = visible(attention_mask, len(input_ids))
            if seen is not None:
                new = NewTokens(positions, seen, tokens=input_ids, features=features.to(kv_cache.dtype), places=slots)
                fast = self.fast_pass.run(new, kv_cache, is_prompt=True)
                if fast is not None:
                    return fast[0]
        pairs = torch.cat((self.token_embedding(input_ids), features.to(self.dtype)), dim=-1)
        hidden_states = self.fc(pairs)
        hidden_states = hidden_states + self.attn(
            self.norm1(hidden_states), self.rotary_rows(positions), attention_mask, kv_cache, slots, kv_length
        )
        return hidden_states + self.ff(self.norm2(hidden_states))


class EagleHead(PairHead):
    """Guesses the target's next hidden state from a token and the hidden state before it.

    Args:
        dim: width of the target's hidden states, and of the head.
        num_attention_heads: heads; `dim / num_attention_heads` must be a multiple of 4.
        intermediate_size: width of the feed-forward layer.
        vocab_size: entries of the image tokenizer's codebook, as the target has.
        grid_size: side of the token grid, as the target has. No weight depends on it.
        norm_eps: epsilon of the one RMSNorm.
        rope_base: base of the rotary frequencies, as the target has.
        attend_to_padding: whether padding before the text is fed and seen. Published LANTERN heads were trained this
            way, and need prompts in full length. Heads trained here see the text alone.
        acceptance_rate, sampled_acceptance_rate: how often the target accepted the head's likeliest token, and a token
            drawn from its distribution, when training ended; for choosing draft sizes. None if not measured. No weight
            depends on them.
        condition_rotary: what rotary embedding does to pairs of the condition, as in the target.
        position_scale: factor on rows and columns of rotary embedding, as in the target.
        feature_layers: numbers of the target's layers after which it reads hidden states, rising, the last layer at
            the end. None: it reads the final states alone, and has nothing to fuse.

    Raises:
        ValueError: the sizes do not fit each other, `condition_rotary` is unknown, or `feature_layers` do not rise.
    """

    @register_to_config
    def __init__(
        self,
        dim: int = 1280,
        num_attention_heads: int = 20,
        intermediate_size: int = 3584,
        vocab_size: int = 16384,
        grid_size: int = 16,
        norm_eps: float = 1e-6,
        rope_base: float = 10000.0,
        attend_to_padding: bool = False,
        acceptance_rate: float | None = None,
        sampled_acceptance_rate: float | None = None,
        condition_rotary: str = "zero",
        position_scale: float = 1.0,
        feature_layers: list[int] | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_attention_heads, condition_rotary)
        self.num_image_tokens = grid_size**2
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.build(dim, num_attention_heads, intermediate_size, norm_eps, feature_layers)
        self.rotary_rows = RotaryTable(grid_size, self.head_dim, rope_base, condition_rotary, position_scale)
