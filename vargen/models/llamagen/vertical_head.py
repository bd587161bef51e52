"""A vertical branch beside a LlamaGen target: its cache, guidance and gate, behind `specdecode.grid.diagonals`.

Belongs here: how a pass of the branch follows one of the target. Does not belong here: the network
(`vertical_branch.py`), and the order of places (`specdecode.grid.diagonals`).

With guidance both halves of a picture are fed, as in the target. The gate is that of the conditional half, and mixes
guided logits. Guidance is linear in logits, so this is the same as mixing each half's by this gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdecode.graphs.in_graph import in_graph
from specdecode.grid.diagonals import CrossedTokens
from specdecode.kernels.fast_pass import untouched
from specdecode.kernels.native import NewTokens, fits_linear, linear_now
from specdecode.roles import TargetOutput
from vargen.models.kept_caches import KeptCaches
from vargen.models.llamagen.target import LlamaGenTarget, LlamaGenTargetOutput
from vargen.models.llamagen.vertical_branch import VerticalBranch, check_branch
from vargen.models.offloading import move_offloaded
from vargen.models.transformer_layers import CONDITION_POSITION, condition_attention_mask

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache


class LlamaGenVerticalHead:
    """`VerticalHead` for one batch of pictures.

    Args:
        branch: the network, in eval mode, in the target's dtype.
        target: before its prefill; it will give states after two layers.
        caches: of earlier batches, to be used again; None: the head makes a new one.

    Raises:
        UserError: a branch of another model.
    """

    def __init__(self, branch: VerticalBranch, target: LlamaGenTarget, caches: KeptCaches | None = None) -> None:
        transformer = target.transformer
        check_branch(branch, transformer)
        target.feature_layers = (branch.config.feature_layer, transformer.config.num_layers)
        self.branch, self.target = branch, target
        self._condition_length = target.condition_length
        self._halves = 2 if target.is_guided else 1
        self._starts_of_pictures = torch.full(
            (self._halves * target.batch_size,), target.condition_length, device=target.device
        )
        behind = 0 if target.prompt_only else transformer.num_image_tokens
        before = target.condition_length if target.prompt_only else target.longest_condition
        most = transformer.config.condition_length + transformer.num_image_tokens
        self.kv_cache: StaticKVCache = (KeptCaches() if caches is None else caches).get(
            "vertical branch",
            most,
            num_layers=1,
            batch_size=self._halves * target.batch_size,
            num_heads=branch.config.num_key_value_heads,
            max_length=before + behind,
            head_dim=branch.head_dim,
            device=target.device,
            dtype=branch.dtype,
        )
        self._output_head = nn.Linear(branch.config.dim, target.vocab_size, bias=False, device="meta")

    in_no_graph = ("_condition_length",)

    @torch.no_grad()
    def prefill(self, prompt: TargetOutput) -> None:
        """See `VerticalHead.prefill`."""
        move_offloaded(self.branch)
        cache, length = self.kv_cache, self._condition_length
        cache.reset()
        mask = self.target.condition_mask
        if mask is None:
            mask = torch.ones(1, length, dtype=torch.bool, device=self.target.device)
        else:
            cache.starts = length - mask.sum(1)
        inner, _ = self._states(prompt)
        self.branch(
            inner,
            torch.full((1, length), CONDITION_POSITION, device=self.target.device),
            condition_attention_mask(mask),
            kv_cache=cache,
            slots=cache.new_slots(length),
            kv_length=length,
        )
        cache.advance(length)
        cache.expect_from(length)
        self._output_head.weight = self.branch.output_head(self.target.transformer.lm_head)

    def forward_places(self, output: TargetOutput, placed: CrossedTokens) -> Tensor:
        """See `VerticalHead.forward_places`."""
        inner, final = self._states(output)
        states, logits = self._pass(inner, placed)
        batch_size = self.target.batch_size  # of rows, those of the conditional half come first
        weight = self._weight_of_left(final[:batch_size, placed.left], states[:batch_size, placed.above])
        weight = weight.where(placed.has_left[:, None], 0.0).where(placed.has_above[:, None], 1.0)  # [B, k, 1]
        return logits[:, placed.above].lerp(output.logits[:, placed.left], weight)

    def _pass(self, inner: Tensor, placed: CrossedTokens) -> tuple[Tensor, Tensor]:
        """States [rows, n, dim] for the tokens below, and their guided logits [B, n, V]."""
        cache, target = self.kv_cache, self.target
        slots = cache.lengths[:, None] + placed.slots
        fast = self.branch.fast_pass.run(
            NewTokens(
                placed.positions,
                placed.fed,
                hidden_states=inner,
                halves=self._halves,
                lengths=cache.lengths,
                starts=cache.starts,
                origins=self._starts_of_pictures,
                places=cache.flatten_slots(slots),
            ),
            cache,
            self._output_head,
            guidance_scale=target.guidance_scale if target.is_guided else None,
        )
        if fast is not None:
            states, logits = fast
            assert logits is not None
            return states, logits
        kv_length = cache.reach(placed.fed.shape[2])
        mask = cache.attention_mask(placed.fed, kv_length)
        states = self.branch(inner, placed.positions, mask, kv_cache=cache, slots=slots, kv_length=kv_length)
        return states, target.guided(self._output_head(states).float())

    def _weight_of_left(self, left: Tensor, above: Tensor) -> Tensor:
        """As `VerticalBranch.weight_of_left`, where possible by kernels that compute each row by itself, so that a
        picture does not depend on the size of its batch."""
        into: Any = self.branch.gate[0]
        out: Any = self.branch.gate[2]
        joined = torch.cat((left, above), dim=-1)
        fits = not in_graph() and fits_linear(joined, into.weight, bias=into.bias)
        if fits and untouched(self.branch.gate):
            inside = linear_now(joined, into.weight, bias=into.bias)
            if inside is not None and fits_linear(inside, out.weight, bias=out.bias):
                opened = linear_now(F.silu(inside), out.weight, bias=out.bias)
                assert opened is not None
                return opened.float().sigmoid()
        return self.branch.weight_of_left(left, above)

    def _states(self, output: TargetOutput) -> tuple[Tensor, Tensor]:
        """The target's states [rows, n, dim] after the branch's layer, and the final ones."""
        assert isinstance(output, LlamaGenTargetOutput) and output.hidden_states is not None
        halves = [output.hidden_states]
        if output.unconditional_hidden_states is not None:
            halves.append(output.unconditional_hidden_states)
        inner, final = torch.cat(halves).chunk(2, dim=-1)
        return inner.contiguous(), final

    def replace_rows(self, rows: Tensor, other: LlamaGenVerticalHead) -> None:
        """See `specdecode.roles.RowReplacing`."""
        rows = torch.cat([rows + half * self.target.batch_size for half in range(self._halves)])
        self.kv_cache.replace_rows(rows, other.kv_cache, other._condition_length)
        self._starts_of_pictures.index_copy_(0, rows, other._starts_of_pictures)
