"""The EAGLE draft network for LlamaGen: one decoder layer over pairs of token and target feature.

Belongs here: the network alone. Its cache, guidance and place in the decode loop are
`vargen.models.llamagen.draft_head`; the published LANTERN layout is read in `vargen.models.llamagen.convert`.

Depths. A drafter may read the target's states after several of its layers, low, middle and last, as EAGLE-3 does (Li et
al. 2025, arXiv 2503.01840, section 3.1): `fuse` makes one feature of them. Its own guesses, which are of the last
state alone, take the place of a fused feature as they are.

The architecture is that of LANTERN's LlamaGen drafter (arXiv 2410.03355; `models/drafters/cnets_llamagen.py` of the
release), which differs from a LlamaGen block: a biased projection of token embedding and feature to one width, no norm
before the attention, none at the end, an epsilon of 1e-6, its own token embedding; the output head is the target's and
is not kept here. Before the image it reads the target's features of the condition, each paired with token 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from vargen.kernels.native import Geometry, NewTokens, fits_linear, linear_now
from vargen.models.llamagen.fast_pass import FastPass, untouched, visible
from vargen.models.llamagen.transformer import (
    CONDITION_ROTARY,
    LlamaGenAttention,
    LlamaGenFeedForward,
    LlamaGenRMSNorm,
    RotaryTable,
)

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache


class LlamaGenDrafter(ModelMixin, ConfigMixin):
    """Guesses the target's next hidden state from a token and the hidden state before it.

    Args:
        dim: width of the target's hidden states, and of the drafter.
        num_attention_heads: heads; `dim / num_attention_heads` must be a multiple of 4.
        intermediate_size: width of the feed-forward layer.
        vocab_size: entries of the image tokenizer's codebook, as the target has.
        grid_size: side of the token grid, as the target has. No weight depends on it.
        norm_eps: epsilon of the one RMSNorm.
        rope_base: base of the rotary frequencies, as the target has.
        attend_to_padding: whether padding before the text is fed and seen. Published LANTERN drafters were trained so;
            the prompt must then come in its full length. Drafters trained here see the text alone.
        acceptance_rate, sampled_acceptance_rate: how often the target accepted its likeliest token, and a token drawn
            from its distribution, when training ended; for choosing draft sizes. None where nobody measured them. No
            weight depends on them.
        condition_rotary: what rotary embedding does to pairs of the condition, as the target has it.
        position_scale: factor on rows and columns of rotary embedding, as the target has it.
        feature_layers: after which of the target's layers it reads hidden states, rising, the last layer at the end;
            None: the final states alone, and there is nothing to fuse.

    Raises:
        ValueError: the sizes do not fit each other, `condition_rotary` is unknown, or `feature_layers` do not rise.
    """

    if TYPE_CHECKING:
        config: Any

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
        if condition_rotary not in CONDITION_ROTARY:
            raise ValueError(
                f"condition_rotary must be one of {', '.join(CONDITION_ROTARY)}, got {condition_rotary!r}."
            )
        if dim % num_attention_heads or (dim // num_attention_heads) % 4:
            raise ValueError(
                f"dim must be num_attention_heads times a multiple of 4, got dim {dim} with "
                f"{num_attention_heads} heads."
            )
        if feature_layers is not None and (
            len(feature_layers) < 2 or sorted({0, *feature_layers})[1:] != [*feature_layers]
        ):
            raise ValueError(f"feature_layers must be two layers or more, from 1 on, rising, got {feature_layers}.")
        self.head_dim = dim // num_attention_heads
        self.num_image_tokens = grid_size**2
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.feature_layers: tuple[int, ...] = tuple(feature_layers or ())
        if self.feature_layers:
            self.fuse = nn.Linear(len(self.feature_layers) * dim, dim, bias=False)
        self.fc = nn.Linear(2 * dim, dim)
        self.attn = LlamaGenAttention(dim, num_attention_heads, num_attention_heads, layer_index=0, dropout=0.0)
        self.norm2 = LlamaGenRMSNorm(dim, norm_eps)
        self.ff = LlamaGenFeedForward(dim, intermediate_size, dropout=0.0)
        self.rotary_rows = RotaryTable(grid_size, self.head_dim, rope_base, condition_rotary, position_scale)
        self.fast_pass = FastPass(
            self,
            [(None, self.attn, self.norm2, self.ff)],
            Geometry(num_attention_heads, num_attention_heads, self.head_dim, intermediate_size, norm_eps),
        )
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def fused(self, states: Tensor) -> Tensor:
        """Features `[..., dim]` of the target's states `[..., k dim]` after the k layers of `feature_layers`.

        Only the last layer's state is normed; the others, whose size grows from layer to layer, are put on one scale.
        """
        if not self.feature_layers:
            return states
        weight, dim = self.fuse.weight, self.config.dim
        inner, last = states.to(weight.dtype).split((states.shape[-1] - dim, dim), dim=-1)
        normed = F.rms_norm(inner.unflatten(-1, (-1, dim)), (dim,), eps=1e-6).flatten(-2)
        joined = torch.cat((normed, last), dim=-1)
        own = type(self.fuse) is nn.Linear and untouched([self.fuse]) and fits_linear(joined, weight)
        features = linear_now(joined, weight) if own else None
        return self.fuse(joined) if features is None else features

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
            features: `[B, n, dim]`, what `fused` makes of the target's hidden states at the token before each, or a
                guess of the last of these.
            positions: int64 `[B or 1, n]`, the token's place in the picture, -1 for pairs of the condition.
            attention_mask, kv_cache, slots, kv_length: as for `LlamaGenTransformer.forward`.

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
        pairs = torch.cat((self.token_embedding(input_ids), features.to(self.fc.weight.dtype)), dim=-1)
        hidden_states = self.fc(pairs)
        hidden_states = hidden_states + self.attn(
            hidden_states, self.rotary_rows(positions), attention_mask, kv_cache, slots, kv_length
        )
        return hidden_states + self.ff(self.norm2(hidden_states))
