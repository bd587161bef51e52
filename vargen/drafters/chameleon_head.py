"""LANTERN's EAGLE head for Chameleons (Lumina-mGPT, Anole): one decoder layer over pairs of token and feature.

Belongs here: the network. Does not belong here: its part in the decode loop (`transformers_draft_head.py`), and reading
published files (`convert_draft_head.py`).

It differs from `EagleHead`: positions are those of a text, there is a norm before the attention, queries and keys of
every head have a norm of their own, and the token embedding has the whole vocabulary, so that it reads the prompt's own
tokens. Source: github.com/jadohu/LANTERN at 3a56e451, `models/drafters/cnets_lumina_mgpt.py` and `cnets_anole.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from specdecode.kernels.fast_pass import FastPass
from vargen.drafters.eagle_head import PairHead
from vargen.drafters.text_head import TextRotary
from vargen.drafters.transformer_layers import Attention, RMSNorm

_QUERY_KEY_EPS = 1e-5


class ChameleonHead(PairHead):
    """Guesses the target's next hidden state from a token and the hidden state before it.

    Tokens are those of the whole vocabulary. Positions may be counted from anywhere: only differences matter.

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
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.build(dim, num_attention_heads, intermediate_size, norm_eps, None)
        self.norm1 = RMSNorm(dim, norm_eps)
        self.attn.norm = QueryKeyNorm(2 * num_attention_heads, self.head_dim)
        self.attn.project = project
        self.rotary_rows = ChameleonRotary(self.head_dim, rope_base)
        # The kernels know no such layer, so there is none for them, and they never serve.
        self.fast_pass = FastPass(self, [], self.fast_pass.geometry)


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


class ChameleonRotary(TextRotary):
    """The same as `TextRotary` with the published code's rounding: it multiplies by inverse frequencies."""

    def __call__(self, positions: Tensor) -> Tensor:
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=positions.device)
        angles = positions[..., None, None] * (1.0 / self.base ** (steps / self.head_dim))
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
