"""transformers' `repetition_penalty` along a tree: tokens that occurred already become less likely.

Belongs here: the rule, and which tokens have occurred at each node of a draft. Does not belong here: drawing.

Source: Keskar et al. 2019 (arXiv 1909.05858, section 4.1), in the form of `RepetitionPenaltyLogitsProcessor`: for every
token that occurred, a positive logit is divided by the penalty and a negative one multiplied. The target's logits have
the penalty before any verifier reads them, so exact methods stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RepetitionPenalty:
    """The penalty for a batch of sequences.

    Args:
        penalty: above 0; 1 does nothing, greater values reduce repetition.
        prompts: for each row [T] int64.
        vocab_size: V, of the logits.
        max_tokens: the most tokens of a row after its prompt, with the longest draft.

    Raises:
        ValueError: a penalty that is not above 0.
    """

    def __init__(self, penalty: float, prompts: Sequence[Tensor], vocab_size: int, max_tokens: int) -> None:
        if not penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0, got {penalty}")
        device = prompts[0].device
        self.penalty = penalty
        self._in_prompt = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
        for row, prompt in enumerate(prompts):
            self._in_prompt[row, prompt[prompt < vocab_size]] = True
        self._kept = torch.zeros(len(prompts), max_tokens, dtype=torch.int64, device=device)
        self._places = torch.arange(max_tokens, device=device)

    def of_prompts(self, logits: Tensor) -> Tensor:
        """Logits [B, n, V] float32 after the prompts, with the penalty."""
        return self._lowered(logits, self._in_prompt[:, None])

    def of_nodes(self, logits: Tensor, tokens: Tensor, mask: Tensor, num_kept: Tensor) -> Tensor:
        """Logits [B, n, V] float32 of new tokens (see `specdecode.roles.Target.forward`), with the penalty.

        Args:
            logits: [B, n, V] after each of them.
            tokens: [B, n] int64. mask: [B, n, n] bool, which new tokens lie on the path to each, itself included.
            num_kept: [B] int64, committed tokens of each row.
        """
        batch_size, count, vocab_size = logits.shape
        kept = torch.zeros(batch_size, vocab_size, dtype=torch.uint8, device=logits.device)
        is_kept = (self._places < num_kept[:, None]).byte()
        kept = kept.scatter_reduce(1, self._kept, is_kept, "amax").bool() | self._in_prompt
        on_the_way = torch.zeros(batch_size, count, vocab_size, dtype=torch.uint8, device=logits.device)
        each = tokens.clamp(0, vocab_size - 1)[:, None].expand(-1, count, -1)
        on_the_way = on_the_way.scatter_reduce(2, each, mask.expand(batch_size, -1, -1).byte(), "amax")
        return self._lowered(logits, on_the_way.bool() | kept[:, None])

    def keep(self, tokens: Tensor, num_kept: Tensor) -> None:
        """Write tokens [B, k] behind the `num_kept` [B] committed ones; those not committed are overwritten later."""
        places = num_kept[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        last = self._kept.shape[1] - 1
        self._kept.scatter_(1, places.clamp(max=last), tokens.clamp(0, self._in_prompt.shape[1] - 1))

    def _lowered(self, logits: Tensor, said: Tensor) -> Tensor:
        lowered = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return torch.where(said, lowered, logits)
