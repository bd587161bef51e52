"""FLy: a mismatch is forgiven where the target is unsure and agrees again right after (arXiv 2511.22972).

Belongs here: the paper's rule and the released code's, which differ:

- "paper": the entropy of the target's distribution, divided by log V, must reach the threshold, and the next `window`
  draft tokens must all be the target's own.
- "release": the entropy in nats of the three likeliest tokens, not renormalised, must reach it; the next `window - 1`
  draft tokens must match; and none of the last `window` tokens of a draft is forgiven.

With `window` None only the entropy decides (the released ablation, and LVSpec's comparison).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.checks import check_number
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, draw_tokens
from specdecode.verifiers.exact import chain_counters, chain_path, check_chain, count_accepted

MODES = ("paper", "release")
_TOP = 3


class WindowedVerifier:
    """FLy's acceptance of a chain of likeliest tokens. Never exact.

    Args:
        threshold: the least entropy at which a mismatch may be forgiven: a share of the greatest possible one
            ("paper"), or nats ("release").
        window: how many tokens after it must agree, as the mode says; None: none.
        mode: "paper" or "release".

    Raises:
        ValueError: a number out of range, or an unknown mode.
    """

    exact = False

    def __init__(self, threshold: float = 0.3, window: int | None = 6, mode: str = "paper") -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, or None for none, got {window}")
        self.threshold = check_number("threshold", threshold, 0)
        self.window = window
        self.mode = mode

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Accept the longest start of the chain whose every token is the target's or forgiven.

        Args:
            draft: a chain of n nodes, a deterministic choice.
            output: `logits` [B, n, V].
            state: lengths, sampling and random streams.

        Raises:
            ValueError: the draft is no chain, or its tokens were drawn at random.
        """
        check_chain("WindowedVerifier", draft)
        if draft.probabilities is not None:
            raise ValueError("WindowedVerifier judges likeliest tokens, but these were drawn: draft with children top")
        tree, counters = draft.tree, chain_counters(draft.tree, state)
        length = counters.shape[1] - 1
        logits = output.logits[:, : length + 1]
        choices = draw_tokens(logits, state.sampling, state.streams, counters, Tag.TARGET)  # [B, L + 1]
        there = tree.valid[:, 1 : length + 1]
        matches = (tree.tokens[:, 1 : length + 1] == choices[:, :length]) & there
        forgiven = (
            there & ~matches & (self._entropy(logits[:, :length]) >= self.threshold) & self._agrees(matches, there)
        )
        accepted = count_accepted(tree, matches | forgiven)
        relaxed = F.pad(forgiven, (0, tree.max_depth - length))
        return Verdict(chain_path(tree), accepted, choices.gather(1, accepted[:, None])[:, 0], relaxed)

    def _entropy(self, logits: Tensor) -> Tensor:
        """[B, L], in the mode's unit."""
        probabilities = logits.softmax(-1)
        if self.mode == "release":
            probabilities = probabilities.topk(min(_TOP, probabilities.shape[-1]), dim=-1).values
        entropy = torch.special.entr(probabilities).sum(-1)
        return entropy if self.mode == "release" else entropy / torch.tensor(float(logits.shape[-1])).log()

    def _agrees(self, matches: Tensor, there: Tensor) -> Tensor:
        """[B, L] bool: whether enough draft tokens after each one are the target's own."""
        if self.window is None:
            return torch.ones_like(matches)
        following = self.window if self.mode == "paper" else self.window - 1
        later = F.pad(matches, (0, following))
        # [B, L, following]: entry j of token i is token i + 1 + j; past the end nothing agrees.
        agrees = later.unfold(1, following + 1, 1)[:, :, 1:].all(2) if following else torch.ones_like(matches)
        if self.mode == "paper":
            return agrees
        place = torch.arange(matches.shape[1], device=matches.device)
        return agrees & (place < there.sum(1, keepdim=True) - self.window)
