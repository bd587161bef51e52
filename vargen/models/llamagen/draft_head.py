"""The EAGLE drafter beside a LlamaGen target: guidance, positions and its own cache behind `DraftHead`.

Belongs here: how pairs become a forward of `LlamaGenDrafter`. Does not belong here: how trees grow
(`specdecode.drafters.eagle`), the network, and how it is trained.

A guided target needs a guided drafter: both halves' features are kept side by side, `[conditional | unconditional]`,
both halves are fed the same tokens, and the guided logits choose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.kv_cache import StaticKVCache
from specdecode.roles import TargetOutput
from specdecode.sampling import apply_guidance
from vargen.errors import UserError
from vargen.models.llamagen.drafter import LlamaGenDrafter
from vargen.models.llamagen.target import LlamaGenTarget, LlamaGenTargetOutput
from vargen.models.llamagen.transformer import CONDITION_POSITION, LlamaGenTransformer, condition_attention_mask


def check_drafter(drafter: LlamaGenDrafter, transformer: LlamaGenTransformer) -> None:
    """Refuse a drafter that was not made for this transformer, naming what differs.

    Raises:
        UserError: another vocabulary, grid or hidden size.
    """
    ours, theirs = transformer.config, drafter.config
    for name, meaning in (
        ("vocab_size", "image tokens"),
        ("grid_size", "tokens along a side"),
        ("dim", "channels in a hidden state"),
    ):
        if ours[name] != theirs[name]:
            raise UserError(
                f"drafter was trained for another model: {theirs[name]} {meaning}, this model has {ours[name]}; "
                f"give one trained for it"
            )


class LlamaGenDraftHead:
    """`DraftHead` for one batch of pictures.

    Args:
        drafter: the network, in eval mode.
        target: the target it drafts for; it lends its output head, its guidance and the mask of its condition.
        most_new_pairs: the most pairs that are fed before some of them join the sequence: those of one accepted draft,
            and the nodes of the next tree that are expanded.

    Raises:
        UserError: see `check_drafter`; or the drafter wants prompts in full length and this one is not.
    """

    def __init__(self, drafter: LlamaGenDrafter, target: LlamaGenTarget, most_new_pairs: int) -> None:
        check_drafter(drafter, target.transformer)
        full_length = target.transformer.config.condition_length
        if drafter.config.attend_to_padding and target.condition_length != full_length:
            raise UserError(
                f"drafter reads prompts in their full length of {full_length} tokens, padding included; this one has "
                f"{target.condition_length}"
            )
        self.drafter = drafter
        self.target = target
        self.vocab_size = target.vocab_size
        self._halves = 2 if target.is_guided else 1
        rows = target.batch_size * self._halves
        self._prefix_length = target.condition_length - 1
        self._last_position = drafter.num_image_tokens - 1
        self.kv_cache = StaticKVCache(
            num_layers=1,
            batch_size=rows,
            num_heads=drafter.config.num_attention_heads,
            max_length=self._prefix_length + drafter.num_image_tokens + most_new_pairs,
            head_dim=drafter.head_dim,
            device=target.device,
            dtype=drafter.dtype,
        )
        self._most_committed = 0
        self._num_new = 0
        self._logits_dtype = target.transformer.dtype  # diffusers looks through all parameters for it, every time

    def start(self, prompt: TargetOutput) -> Tensor:
        """Feed the condition's features, each with token 0. Returns [B, 1, F], the condition's last feature."""
        features = self.features(prompt)  # [B, T, F]
        cache, length = self.kv_cache, self._prefix_length
        cache.reset()
        self._most_committed = self._num_new = 0
        if length > 0:
            rows = self._rows(features[:, :length])  # [2B, T - 1, dim]
            mask = self.target.condition_mask
            if mask is None or self.drafter.config.attend_to_padding:
                mask = torch.ones(1, length, dtype=torch.bool, device=rows.device)
            else:
                # Pair k holds the feature of condition token k and stands for token k + 1, so padding is where k is.
                mask = mask[:, :length]
                cache.starts = length - mask.sum(1)
            self.drafter(
                torch.zeros(rows.shape[:2], dtype=torch.long, device=rows.device),
                rows,
                torch.full((1, length), CONDITION_POSITION, device=rows.device),
                condition_attention_mask(mask),
                kv_cache=cache,
                slots=cache.new_slots(length),
                kv_length=length,
            )
            cache.advance(length)
            self._most_committed = length
        return features[:, -1:]

    def features(self, output: TargetOutput) -> Tensor:
        """[B, n, F]: hidden states of the target's halves side by side, F = dim or 2 dim."""
        assert isinstance(output, LlamaGenTargetOutput) and output.hidden_states is not None
        if self._halves == 1:
            return output.hidden_states
        assert output.unconditional_hidden_states is not None
        return torch.cat((output.hidden_states, output.unconditional_hidden_states), dim=-1)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """Guess what follows new pairs; see `DraftHead.forward`."""
        cache, num_pairs, num_new = self.kv_cache, tokens.shape[1], mask.shape[2]
        before = num_new - num_pairs  # new pairs that were fed in earlier forwards
        tokens = torch.cat([tokens] * self._halves)
        mask, depths = (self._both(value) for value in (mask, depths))
        positions = (cache.lengths - self._prefix_length)[:, None] + depths
        # Below the last token of a picture nothing is drafted; what a tree asks for there is clipped by the loop.
        positions = positions.clamp(max=self._last_position)
        self._num_new = num_new
        kv_length = min(self._most_committed + num_new, cache.max_length)
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
        logits = self.target.transformer.lm_head(hidden_states.to(self._logits_dtype)).float()
        if self._halves == 1:
            return DraftHeadOutput(logits, hidden_states)
        conditional, unconditional = logits.chunk(2)
        guided = apply_guidance(conditional, unconditional, self.target.guidance_scale)
        return DraftHeadOutput(guided, torch.cat(hidden_states.chunk(2), dim=-1))

    @torch.no_grad()
    def draft_once(self, num_pairs: int) -> None:
        """One level of drafting over so many pairs a row, none of which join the sequence; for the clock."""
        rows, device = self.target.batch_size, self.target.device
        tokens = torch.zeros(rows, num_pairs, dtype=torch.long, device=device)
        features = torch.zeros(
            rows, num_pairs, self.drafter.config.dim * self._halves, dtype=self.drafter.dtype, device=device
        )
        mask = torch.eye(num_pairs, dtype=torch.bool, device=device)[None]
        self.forward(tokens, features, mask, tokens[:1]).logits.topk(min(num_pairs, self.vocab_size))

    def advance(self, counts: Tensor) -> None:
        """The first `counts[b]` new pairs of row b join the sequence."""
        self.kv_cache.advance(torch.cat([counts] * self._halves))
        most = self._prefix_length + self._last_position + 1
        self._most_committed = min(self._most_committed + self._num_new, most)

    def _rows(self, features: Tensor) -> Tensor:
        """Features [B, n, F] as rows [2B, n, dim] (or [B, n, dim] without guidance), the conditional half first."""
        return features if self._halves == 1 else torch.cat(features.chunk(2, dim=-1))

    def _both(self, value: Tensor) -> Tensor:
        """The same for both halves; what is shared by all rows stays as it is."""
        return value if value.shape[0] == 1 else torch.cat([value] * self._halves)
