"""LANTERN's EAGLE head for Chameleons (Lumina-mGPT, Anole): one decoder layer over pairs of token and feature.

Belongs here: the network. Does not belong here: its part in the decode loop (`chameleon_draft_head.py`), and reading
published files (`convert_draft_head.py`).

It differs from `EagleHead`: positions are those of a text, there is a norm before the attention, queries and keys of
every head have a norm of their own, and the token embedding has the whole vocabulary, so that it reads the prompt's own
tokens. Source: github.com/jadohu/LANTERN at 3a56e451, `models/drafters/cnets_lumina_mgpt.py` and `cnets_anole.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from specdecode.kernels.fast_pass import FastPass
from specdecode.kernels.native import Geometry
from vargen.models.transformer_layers import Attention, FeedForward, RMSNorm, initialise

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache

_QUERY_KEY_EPS = 1e-5


class ChameleonHead(ModelMixin, ConfigMixin):
    """Guesses the target's next hidden state from a token and the hidden state before it.

    Args:
        dim: width of the target's hidden states, and of the head.
        num_attention_heads: heads; `dim / num_attention_heads` must be even.
        intermediate_size: width of the feed-forward layer.
        vocab_size: tokens of the target's whole vocabulary.
        norm_eps: epsilon of the two RMSNorms.
        rope_base: base of the rotary frequencies, as the target has.
        acceptance_rate, sampled_acceptance_rate: as for `EagleHead`.

    Raises:
        ValueError: the heads do not share the width evenly.
    """

    if TYPE_CHECKING:
        config: Any

    feature_layers: tuple[int, ...] = ()
    """It reads the final states alone."""

    @register_to_config
    def __init__(
        self,
        dim: int = 4096,
        num_attention_heads: int = 32,
        intermediate_size: int = 11008,
        vocab_size: int = 65536,
        norm_eps: float = 1e-5,
        rope_base: float = 10000.0,
        acceptance_rate: float | None = None,
        sampled_acceptance_rate: float | None = None,
    ) -> None:
        super().__init__()
        if dim % num_attention_heads or (dim // num_attention_heads) % 2:
            raise ValueError(
                f"dim must be num_attention_heads times an even number, got dim {dim} with {num_attention_heads} heads."
            )
        self.head_dim = dim // num_attention_heads
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.fc = nn.Linear(2 * dim, dim)
        self.norm1 = RMSNorm(dim, norm_eps)
        self.attn = Attention(dim, num_attention_heads, num_attention_heads, layer_index=0, dropout=0.0)
        self.attn.norm = QueryKeyNorm(2 * num_attention_heads, self.head_dim)
        self.attn.project = project
        self.norm2 = RMSNorm(dim, norm_eps)
        self.ff = FeedForward(dim, intermediate_size, dropout=0.0)
        self.rotary_rows = RotaryAngles(self.head_dim, rope_base)
        # The kernels know no such layer, so there is none for them, and they never serve.
        geometry = Geometry(num_attention_heads, num_attention_heads, self.head_dim, intermediate_size, norm_eps)
        self.fast_pass = FastPass(self, [], geometry)
        self.apply(initialise)

    def fused(self, states: Tensor) -> Tensor:
        """The same states, see `EagleHead.fused`."""
        return states

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
            input_ids: int64 [B, n], the pairs' tokens in the whole vocabulary.
            features: [B, n, dim], the target's hidden states at the token before each, or a guess of these.
            positions: int64 [B or 1, n], counted from anywhere: only differences matter.
            attention_mask: bool [B or 1, 1, n, S], true where a pair sees a key; None: causal, without a cache.
            kv_cache, slots, kv_length: as for `EagleHead`.

        Returns:
            [B, n, dim]; the target's `lm_head` of it gives logits.
        """
        if kv_cache is not None and slots is not None and slots.ndim == 2:
            slots = kv_cache.flatten_slots(slots)
        pairs = torch.cat((self.token_embedding(input_ids), features.to(self.fc.weight.dtype)), dim=-1)
        hidden_states = self.fc(pairs)
        hidden_states = hidden_states + self.attn(
            self.norm1(hidden_states), self.rotary_rows(positions), attention_mask, kv_cache, slots, kv_length
        )
        return hidden_states + self.ff(self.norm2(hidden_states))


class QueryKeyNorm(nn.Module):
    """A LayerNorm over each head's channels, with weights of its own for every head.

    Args:
        num_heads: of queries and keys together, queries first.
        head_dim: channels of one.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads, head_dim))

    def forward(self, query_key: Tensor) -> Tensor:
        """The same shape, [B, n, num_heads, head_dim]."""
        return F.layer_norm(query_key, query_key.shape[-1:], eps=_QUERY_KEY_EPS) * self.weight + self.bias


class RotaryAngles:
    """Rotary embedding of a text: cosine and sine of each position, fp32 [B, n, 1, head_dim / 2, 2].

    The frequencies are a plain attribute, not a buffer, so that `.to(torch.bfloat16)` cannot round them.
    """

    def __init__(self, head_dim: int, base: float) -> None:
        self.head_dim, self.base = head_dim, base
        self._frequencies: Tensor | None = None

    def table(self, device: torch.device) -> Tensor:
        """Frequencies [head_dim / 2], on a device."""
        if self._frequencies is None or self._frequencies.device != device:
            with torch.inference_mode(False):
                steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device)
                self._frequencies = 1.0 / self.base ** (steps / self.head_dim)
        return self._frequencies

    def __call__(self, positions: Tensor) -> Tensor:
        angles = positions[..., None, None] * self.table(positions.device)
        return torch.stack((angles.cos(), angles.sin()), -1)


def project(attention: Attention, hidden_states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normed queries and keys, turned by their positions, and values: [B, H, n, D] each.

    Channels i and i + D / 2 are turned together.
    """
    query_key, value = attention.split_heads(attention.to_qkv(hidden_states))
    norm: nn.Module = attention.norm  # type: ignore[assignment]  # set by the head
    cosine, sine = rotary.unbind(-1)
    first, second = norm(query_key).float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return attention.by_head(turned.to(value.dtype), value)
