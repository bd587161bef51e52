"""A vertical branch: what a LlamaGen says about the token below, so that a picture can be drawn in diagonals.

Belongs here: the network, and which places of the grid a token may see. Does not belong here: its cache, guidance and
part in decoding (`vertical_head.py`), the order of places (`specdecode.grid.diagonals`), and its training.

The network's output head says what stands to the right of a token. The branch says what stands below it: one more
block on the states after an upper middle layer, whose output goes through the same output head. A gate, of both
states, mixes the two sets of logits. The branch's attention sees every token that has been fed, those of lower rows
included; the model's own attention sees only tokens that come before in raster order, as it was trained to.

Source: FlashAR, arXiv 2605.09430 (branch below the top, gate, first row and first column). There the whole model is
trained in a second stage; here it stays as it is, and the branch is all that is trained and saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from specdecode.kernels.fast_pass import FastPass, visible
from specdecode.kernels.native import Geometry, NewTokens
from vargen.base.errors import UserError
from vargen.models.llamagen.transformer import LlamaGenBlock, LlamaGenTransformer
from vargen.models.transformer_layers import RMSNorm, RotaryTable, check_heads, condition_attention_mask, initialise

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache

COPIED_SIZES = (
    *("dim", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "grid_size"),
    *("norm_eps", "rope_base", "condition_rotary", "position_scale"),
)
"""Sizes that a branch has from its model, by names of arguments of both."""


def default_feature_layer(num_layers: int) -> int:
    """The layer that a branch leaves: five eighths up."""
    return max(5 * num_layers // 8, 1)


class VerticalBranch(ModelMixin, ConfigMixin):
    """Hidden states for the token below each token.

    Args:
        dim, num_attention_heads, num_key_value_heads, intermediate_size, vocab_size, grid_size, norm_eps, rope_base,
            condition_rotary, position_scale: as in the model, see `LlamaGenTransformer`.
        num_layers: layers of the model.
        feature_layer: the layer of the model after which the branch reads its states.
        gate_size: width inside the gate.

    Raises:
        ValueError: sizes that do not fit each other, or a layer that the model does not have.
    """

    if TYPE_CHECKING:
        config: Any

    @register_to_config
    def __init__(
        self,
        dim: int = 768,
        num_attention_heads: int = 12,
        num_key_value_heads: int = 12,
        intermediate_size: int = 2048,
        vocab_size: int = 16384,
        grid_size: int = 16,
        norm_eps: float = 1e-5,
        rope_base: float = 10000.0,
        condition_rotary: str = "zero",
        position_scale: float = 1.0,
        num_layers: int = 12,
        feature_layer: int = 7,
        gate_size: int = 64,
    ) -> None:
        super().__init__()
        check_heads(dim, num_attention_heads, condition_rotary)
        for name in ("vocab_size", "grid_size", "gate_size", "num_key_value_heads", "intermediate_size"):
            if self.config[name] <= 0:
                raise ValueError(f"{name} must be positive, got {self.config[name]}.")
        if not 1 <= feature_layer < num_layers:
            raise ValueError(
                f"feature_layer must be at least 1 and below num_layers ({num_layers}), got {feature_layer}."
            )
        self.head_dim = dim // num_attention_heads
        self.block = LlamaGenBlock(
            dim, num_attention_heads, num_key_value_heads, intermediate_size, norm_eps, 0.0, 0.0, layer_index=0
        )
        self.norm_out = RMSNorm(dim, norm_eps)
        self.to_head = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Sequential(nn.Linear(2 * dim, gate_size), nn.SiLU(), nn.Linear(gate_size, 1))
        self.rotary_rows = RotaryTable(grid_size, self.head_dim, rope_base, condition_rotary, position_scale)
        self.fast_pass = FastPass(
            self,
            [(self.block.norm1, self.block.attn, self.block.norm2, self.block.ff)],
            Geometry(num_attention_heads, num_key_value_heads, self.head_dim, intermediate_size, norm_eps),
        )
        self._joined: tuple[Tensor, nn.Parameter] | None = None
        self.apply(initialise)

    @classmethod
    def beside(cls, transformer: LlamaGenTransformer, feature_layer: int | None = None, gate_size: int = 64) -> Self:
        """An untrained branch of a model. It begins as the model's next block, and its gate in the middle.

        Args:
            transformer: the model.
            feature_layer: None for `default_feature_layer`.
            gate_size: width inside the gate.
        """
        config = transformer.config
        layer = default_feature_layer(config.num_layers) if feature_layer is None else feature_layer
        sizes = {name: config[name] for name in COPIED_SIZES}
        branch = cls(**sizes, num_layers=config.num_layers, feature_layer=layer, gate_size=gate_size)
        with torch.no_grad():
            branch.block.load_state_dict(transformer.transformer_blocks[layer].state_dict())
            branch.norm_out.load_state_dict(transformer.norm_out.state_dict())
            branch.to_head.weight.copy_(torch.eye(config.dim))
            branch.gate[2].weight.zero_()
        return branch

    def forward(
        self,
        states: Tensor,
        positions: Tensor,
        attention_mask: Tensor,
        kv_cache: StaticKVCache | None = None,
        slots: Tensor | None = None,
        kv_length: int | None = None,
    ) -> Tensor:
        """Normed states for the tokens below.

        Args:
            states: `[B, n, dim]`, the model's after `feature_layer`.
            positions: int64 `[B or 1, n]`, the tokens' places in raster order, -1 in the condition.
            attention_mask: bool `[B or 1, 1, n, S]`, or additive.
            kv_cache, slots, kv_length: as for `LlamaGenTransformer`.

        Returns:
            `[B, n, dim]`; `logits` makes logits of it.
        """
        if kv_cache is not None and slots is not None:
            slots = kv_cache.flatten_slots(slots) if slots.ndim == 2 else slots
            seen = visible(attention_mask, len(states))
            if seen is not None:
                new = NewTokens(positions, seen, hidden_states=states, places=slots)
                if (fast := self.fast_pass.run(new, kv_cache, is_prompt=True)) is not None:
                    return fast[0]
        rotary = self.rotary_rows(positions)
        return self.norm_out(self.block(states, rotary, attention_mask, kv_cache, slots, kv_length))

    def logits(self, states: Tensor, lm_head: nn.Linear) -> Tensor:
        """`[..., V]` float32 of what `forward` gave, by the model's own output head."""
        return lm_head(self.to_head(states)).float()

    @torch.no_grad()
    def output_head(self, lm_head: nn.Linear) -> nn.Parameter:
        """`[V, dim]`, `to_head` and the model's own output head as one matrix; made once for each precision."""
        known = self._joined
        if known is None or known[0] is not lm_head.weight or known[1].dtype != self.dtype:
            joined = (lm_head.weight.float() @ self.to_head.weight.float()).to(self.dtype)
            known = self._joined = (lm_head.weight, nn.Parameter(joined, requires_grad=False))
        return known[1]

    def weight_of_left(self, left: Tensor, above: Tensor) -> Tensor:
        """`[..., 1]` float32 in (0, 1): how much of the mixture is the model's own logits.

        Args:
            left: `[..., dim]` final states of the model at the token to the left.
            above: `[..., dim]` states of the branch at the token above.
        """
        gate = self.gate(torch.cat((left, above.to(left.dtype)), dim=-1).to(self.dtype))
        return gate.float().sigmoid()


def check_branch(branch: VerticalBranch, transformer: LlamaGenTransformer) -> None:
    """Refuse a branch of another model, naming what differs. Raises UserError."""
    for name in ("num_layers", *COPIED_SIZES):
        if branch.config[name] != transformer.config[name]:
            raise UserError(
                f"vertical_branch was trained for another model: its {name} is {branch.config[name]!r}, this model has "
                f"{transformer.config[name]!r}; train one with `vargen train vertical`"
            )


def diagonal_masks(condition_mask: Tensor, grid_size: int) -> tuple[Tensor, Tensor]:
    """What the tokens of a whole picture see when it is drawn in diagonals, all but the last token fed.

    A token is fed together with the others of its diagonal. So it sees tokens of no later diagonal.

    Args:
        condition_mask: bool `[B, T]`, false at padding.
        grid_size: G; N = G * G tokens.

    Returns:
        For the model and for its branch, bool `[B, 1, T + N - 1, T + N - 1]`: in the model a token sees none that comes
        after it in raster order; in the branch it does.
    """
    count, length = grid_size**2 - 1, condition_mask.shape[1]
    places = torch.arange(count, device=condition_mask.device)
    diagonal = places // grid_size + places % grid_size
    fed = diagonal <= diagonal[:, None]
    of_model = condition_attention_mask(condition_mask, count)
    of_branch = of_model.clone()
    of_model[..., length:, length:] &= fed
    of_branch[..., length:, length:] = fed
    return of_model, of_branch
