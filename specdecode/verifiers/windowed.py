"""FLy: a mismatch is forgiven where the target is unsure and agrees again right after (arXiv 2511.22972).

Belongs here: the rule of the paper. The entropy of the target's distribution, divided by log V, must reach the
threshold, and the next `window` draft tokens must all be the target's own. The released code differs: it takes the
entropy in nats of the three likeliest tokens, one token less, and forgives none of the last `window` draft tokens.

With `window` None only the entropy decides (the ablation, and LVSpec's comparison).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.checks import check_bounds
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, draw_tokens
from specdecode.verifiers.exact import chain_counters, chain_path, check_chain, count_accepted, root_only


class WindowedVerifier:
    """FLy's acceptance of a chain. Never exact.

    Args:
        threshold: the least entropy at which a mismatch may be forgiven: a share of the greatest possible one.
        window: how many tokens after it must agree; None: none.

    Raises:
        ValueError: a number out of range.
    """

    exact = False

    def __init__(self, threshold: float = 0.3, window: int | None = 6) -> None:
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, or None for none, got {window}")
        self.threshold = check_bounds("threshold", threshold, 0)
        self.window = window

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
        if draft.tree.max_depth == 0:
            return root_only(output, state)
        if draft.probabilities is not None:
            raise ValueError("WindowedVerifier compares tokens, but these were drawn: draft with children coupled")
        tree, counters = draft.tree, chain_counters(draft.tree, state)
        length = counters.shape[1] - 1
        logits = output.logits[:, : length + 1]
        choices = draw_tokens(logits, state.sampling, state.streams, counters, Tag.TARGET)  # [B, L + 1]
        there = tree.valid[:, 1 : length + 1]
        matches = (tree.tokens[:, 1 : length + 1] == choices[:, :length]) & there
        forgiven = there & ~matches & (self._entropy(logits[:, :length]) >= self.threshold) & self._agrees(matches)
        accepted = count_accepted(tree, matches | forgiven)
        relaxed = F.pad(forgiven, (0, tree.max_depth - length))
        return Verdict(chain_path(tree), accepted, choices.gather(1, accepted[:, None])[:, 0], relaxed)

    def _entropy(self, logits: Tensor) -> Tensor:
        """[B, L], a share of the greatest possible one."""
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
        return entropy / torch.tensor(float(logits.shape[-1])).log()

    def _agrees(self, matches: Tensor) -> Tensor:
        """[B, L] bool: whether enough draft tokens after each one are the target's own."""
        if self.window is None:
            return torch.ones_like(matches)
        later = F.pad(matches, (0, self.window))
        # [B, L, window]: entry j of token i is token i + 1 + j; past the end nothing agrees.
        return later.unfold(1, self.window + 1, 1)[:, :, 1:].all(2)
