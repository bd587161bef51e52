"""An EAGLE head beside the target of a picture model: its positions, guidance and cache, behind `DraftHead`.

Belongs here: how pairs become a forward pass of a head's network, for every family. Does not belong here: how trees
grow (`specdecode.drafters.eagle`), the network and its training, and code that depends on the target
(`llamagen_draft_head.py`, `transformers_draft_head.py`, `text_draft_head.py`).

A guided target needs a guided head: the features of both halves lie side by side, `[conditional | unconditional]`, both
halves are fed the same tokens, and the guided logits choose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.kernels.native import NewTokens
from specdecode.roles import Target, TargetOutput
from vargen.base.errors import UserError
from vargen.checkpoints.offloading import move_offloaded
from vargen.drafters.eagle_head import PairHead
from vargen.drafters.kept_caches import KeptCaches
from vargen.drafters.transformer_layers import CONDITION_POSITION, condition_attention_mask

_SLOTS = 128
"""A new cache has a multiple of this number of slots, so that the next batch, with slightly longer prompts, fits."""

_SIZES = {"vocab_size": "image tokens", "grid_size": "tokens along a side", "dim": "channels in a hidden state"}


class FeatureTarget(Target, Protocol):
    """A target that gives hidden states after the layers that a head reads."""

    feature_layers: tuple[int, ...]


def check_sizes(head: PairHead, num_layers: int, **sizes: int) -> None:
    """Refuse a head that was trained for another model, naming what differs.

    Args:
        num_layers: of the target.
        sizes: the target's, by names of `EagleHead`'s arguments: some of vocab_size, grid_size and dim.

    Raises:
        UserError: another size, or the head reads layers that the target does not have.
    """
    for name, size in sizes.items():
        if head.config[name] != size:
            raise UserError(
                f"drafter was trained for another model: {head.config[name]} {_SIZES[name]}, this model has {size}; "
                f"give one trained for it"
            )
    if head.feature_layers and head.feature_layers[-1] != num_layers:
        raise UserError(
            f"drafter was trained for another model: it reads the last of {head.feature_layers[-1]} layers "
            f"(feature_layers), this model has {num_layers}; give one trained for it"
        )


class EagleDraftHead(ABC):
    """`DraftHead` for one batch of pictures.

    Args:
        drafter: the network, in eval mode, made for this target.
        target: the target it drafts for.
        halves: rows of a picture, 2 with guidance.
        num_tokens: the most tokens of a picture.
        condition_length: tokens before the picture.
        longest_condition: tokens of the longest condition that may take a row's place.
        most_new_pairs: the most pairs that are fed before some of them join the sequence: those of one accepted draft,
            and the expanded nodes of the next tree.
        caches: of earlier batches, to be used again; None: the head makes a new one.

    """

    graph_state = ("kv_cache", "_answer_starts")

    def __init__(
        self,
        drafter: PairHead,
        target: FeatureTarget,
        halves: int,
        num_tokens: int,
        condition_length: int,
        longest_condition: int,
        most_new_pairs: int,
        caches: KeptCaches | None = None,
    ) -> None:
        target.feature_layers = drafter.feature_layers
        self.drafter = drafter
        self.vocab_size = target.vocab_size
        self._batch_size, self._device, self._halves = target.batch_size, target.device, halves
        self._prefix_length, self._longest_prefix = condition_length - 1, longest_condition - 1
        # [rows]: where pictures begin. All equal, until rows are given to other conditions.
        self._answer_starts = torch.full((target.batch_size * halves,), self._prefix_length, device=target.device)
        self._last_position = num_tokens - 1
        num_slots = self._longest_prefix + num_tokens + most_new_pairs
        self.kv_cache = (KeptCaches() if caches is None else caches).get(
            "head",
            -(-num_slots // _SLOTS) * _SLOTS,
            num_layers=1,
            batch_size=target.batch_size * halves,
            num_heads=drafter.config.num_attention_heads,
            max_length=num_slots,
            head_dim=drafter.head_dim,
            device=target.device,
            dtype=drafter.dtype,
        )
        self._num_new = 0

    def features(self, output: TargetOutput) -> Tensor:
        """[B, n, F]: features of the target's halves side by side, F = dim or 2 dim."""
        return self._fused(self.states(output))

    @property
    def kind(self) -> str:
        """See `LoadedDrafter`."""
        return f"eagle-{self.drafter.config.dim}"

    @property
    def acceptance_rates(self) -> dict[str, float | None]:
        """See `LoadedDrafter`; the trainer measured them."""
        config = self.drafter.config
        drawn = config.sampled_acceptance_rate  # with whose number makes little difference
        return {"top": config.acceptance_rate, "sampled": drawn, "coupled": drawn}

    @abstractmethod
    def states(self, output: TargetOutput) -> Tensor:
        """[B, n, halves * k dim]: hidden states of the target's halves side by side, each after k layers."""

    @abstractmethod
    def condition_mask(self) -> Tensor | None:
        """[rows, T] bool, true for tokens of the condition that are read; None: all."""

    @abstractmethod
    def guided_logits(self, hidden_states: Tensor) -> Tensor:
        """Guided logits [B, n, V] float32 of hidden states [rows, n, dim], made as the target makes its own."""

    def names(self, tokens: Tensor) -> Tensor:
        """Drafted tokens under the network's numbers; the same unless it has another vocabulary than the target."""
        return tokens

    def condition_tokens(self, length: int) -> Tensor:
        """[1 or rows, length] int64: tokens of the condition's pairs, in the network's vocabulary; here 0."""
        return torch.zeros(1, length, dtype=torch.long, device=self._device)

    def condition_positions(self, length: int) -> Tensor:
        """[1, length] int64: positions of the condition's pairs; here it has none."""
        return torch.full((1, length), CONDITION_POSITION, device=self._device)

    def output_head(self) -> tuple[nn.Linear | None, float | None]:
        """The layer that makes logits of hidden states if it is one matrix of the drafter's precision, else None; and
        the guidance scale, None without guidance."""
        return None, None

    def start(self, prompt: TargetOutput) -> Tensor:
        """Feed the condition's features, each with a token. Returns [B, 1, F], the condition's last feature."""
        move_offloaded(self.drafter)  # `features` uses its weights before it is called
        features = self.features(prompt)  # [B, T, F]
        self._read(features)
        return features[:, -1:]

    def _read(self, features: Tensor) -> None:
        """Feed the condition's features [B, T, F] to an empty cache; the last one belongs to the first token."""
        self.drafter.rotary_rows.table(features.device)  # not within a pass that is captured
        cache, length = self.kv_cache, self._prefix_length
        cache.reset()
        cache.starts = torch.zeros_like(cache.lengths)  # also without padding: one graph serves both
        self._num_new = 0
        if length > 0:
            rows = self._rows(features[:, :length])  # [2B, T - 1, dim]
            mask = self.condition_mask()
            if mask is None:
                mask = torch.ones(1, length, dtype=torch.bool, device=rows.device)
            else:
                # Pair k holds the feature of condition token k and stands for token k + 1: it is padding if k is.
                mask = mask[:, :length]
                cache.starts = length - mask.sum(1)
            self.drafter(
                self.condition_tokens(length).expand(len(rows), -1),
                rows,
                self.condition_positions(length),
                condition_attention_mask(mask),
                kv_cache=cache,
                slots=cache.new_slots(length),
                kv_length=length,
            )
            cache.advance(length)
        cache.expect_from(length, self._longest_prefix + self._last_position + 1)
        self.drafter.fast_pass.check(self.output_head()[0])

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """Guess what follows new pairs; see `DraftHead.forward`."""
        cache, num_new = self.kv_cache, mask.shape[2]
        self._num_new = num_new
        output_head, guidance_scale = self.output_head()
        alike = features if features.dtype == cache.dtype else features.to(cache.dtype)
        new = NewTokens(
            depths,
            mask,
            tokens=tokens,
            features=alike,
            halves=self._halves,
            lengths=cache.lengths,
            starts=cache.starts,
            origins=self._answer_starts,
            last_position=self._last_position,
        )
        fast = self.drafter.fast_pass.run(new, cache, output_head, guidance_scale=guidance_scale, side_by_side=True)
        if fast is None:
            return DraftHeadOutput(*self._pass(tokens, features, mask, depths, cache.reach(num_new)))
        states, logits = fast
        return DraftHeadOutput(self.guided_logits(self._rows(states)) if logits is None else logits, states)

    def _pass(
        self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor, kv_length: int
    ) -> tuple[Tensor, Tensor]:
        """`forward` by the modules.

        Args:
            tokens, features, mask, depths: of `forward`.
            kv_length: how many slots attention reads.

        Returns:
            Guided logits [B, q, V], and features [B, q, F].
        """
        cache, num_new = self.kv_cache, mask.shape[2]
        before = num_new - tokens.shape[1]  # new pairs that earlier passes fed
        tokens = self.names(torch.cat([tokens] * self._halves))
        mask, depths = (self._both(value) for value in (mask, depths))
        positions = (cache.lengths - self._answer_starts)[:, None] + depths
        # Nothing is drafted after the last token of a picture; the loop clips a tree there.
        positions = positions.clamp(max=self._last_position)
        slots = cache.new_slots(num_new)[:, before:]
        hidden_states = self.drafter(
            tokens,
            self._rows(features),
            positions,
            cache.attention_mask(mask, kv_length),
            kv_cache=cache,
            slots=cache.flatten_slots(slots),
            kv_length=kv_length,
        )
        return self.guided_logits(hidden_states), self._side_by_side(hidden_states)

    @torch.no_grad()
    def draft_once(self, num_pairs: int) -> None:
        """One level of drafting over `num_pairs` pairs a row, for the clock; none of them joins the sequence."""
        rows, device = self._batch_size, self._device
        tokens = torch.zeros(rows, num_pairs, dtype=torch.long, device=device)
        features = torch.zeros(
            rows, num_pairs, self.drafter.config.dim * self._halves, dtype=self.drafter.dtype, device=device
        )
        mask = torch.eye(num_pairs, dtype=torch.bool, device=device)[None]
        self.forward(tokens, features, mask, tokens[:1]).logits.topk(min(num_pairs, self.vocab_size))

    def advance(self, counts: Tensor) -> None:
        """The first `counts[b]` new pairs of row b join the sequence."""
        self.kv_cache.advance(torch.cat([counts] * self._halves))
        self.kv_cache.expect(self._num_new)

    def replace_rows(self, rows: Tensor, other: EagleDraftHead) -> None:
        """See `specdecode.roles.RowReplacing`."""
        rows = torch.cat([rows + half * self._batch_size for half in range(self._halves)])
        self.kv_cache.replace_rows(rows, other.kv_cache, other.kv_cache.most_committed)
        self._answer_starts.index_copy_(0, rows, other._answer_starts)

    def _fused(self, states: Tensor) -> Tensor:
        """Features [B, n, F] of the halves' states side by side, see `states`."""
        if not self.drafter.feature_layers:
            return states
        return self.drafter.fused(states.unflatten(-1, (self._halves, -1))).flatten(-2)

    def _rows(self, features: Tensor) -> Tensor:
        """Features [B, n, F] as rows [2B, n, dim] (or [B, n, dim] without guidance), the conditional half first."""
        return features if self._halves == 1 else torch.cat(features.chunk(self._halves, dim=-1))

    def _side_by_side(self, hidden_states: Tensor) -> Tensor:
        """Rows [2B, n, dim] as features [B, n, F]; the inverse of `_rows`."""
        return hidden_states if self._halves == 1 else torch.cat(hidden_states.chunk(self._halves), dim=-1)

    def _both(self, value: Tensor) -> Tensor:
        """The same values for both halves; one row for all stays one."""
        return value if value.shape[0] == 1 else torch.cat([value] * self._halves)
