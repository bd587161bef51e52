"""Positions whose token is known in advance: it is drafted there, and nowhere else.

Belongs here: correcting another drafter's proposals, and the distributions they claim. Does not belong here: which
tokens are known, and the target's agreement (its logits exclude all other tokens there).

A sequence may have a form, such as a mark after every so many tokens. A drafter that does not know it guesses wrong
there, and everything behind a wrong guess is lost. Why this is exact: a known token is certain, so its distribution is
1 there; elsewhere the probability of marks goes to another token, in the draw and in the claim alike. That holds for
chains. In trees a mark stays where it was drafted, and the target, for which it is impossible, rejects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdecode.kernels import fused_ops
from specdecode.roles import (
    DecodeState,
    Draft,
    Drafter,
    Selection,
    SkippingDrafter,
    TargetOutput,
    Verdict,
    replace_rows,
)
from specdecode.trace import Forced


class KnownTokensDrafter(Drafter):
    """The Drafter role: another drafter's proposals with known tokens.

    In chains, tokens that are known somewhere are drafted nowhere else. A verifier that may accept what the target
    excludes must be given chains.

    Args:
        drafter: makes the proposals; it observes the corrected ones. One that has `write_known` may write known tokens
            itself, and then says so (`Draft.has_known`).
        known: [max_new_tokens] int64, or [B, max_new_tokens], the token at each output position, -1 where it is open.
        vocab_size: V; at least one token must not be known anywhere.
        marks: tokens that are known in other rows, which may join the batch.

    Raises:
        ValueError: every token is known somewhere, or `known` is of another shape or type.
    """

    graph_state = ("drafter", "known", "_is_mark")

    def __init__(self, drafter: Drafter, known: Tensor, vocab_size: int, marks: Sequence[int] = ()) -> None:
        if known.dtype != torch.int64 or known.ndim not in (1, 2):
            raise ValueError(
                f"known must be int64 of shape [max_new_tokens] or [batch, max_new_tokens], got {known.dtype} of shape "
                f"{list(known.shape)}"
            )
        self.drafter, self.known = drafter, known
        self._is_mark = torch.zeros(vocab_size, dtype=torch.bool, device=known.device)
        self._is_mark[known[known >= 0]] = True
        self._is_mark[list(marks)] = True
        self._marks = self._is_mark.nonzero()[:, 0]
        if bool(self._is_mark.all()):
            raise ValueError("known must leave some token that is known nowhere")
        self.forced = Forced(known >= 0)
        self._instead = int(self._is_mark.int().argmin())  # a token that is no mark

    @property
    def skipping(self) -> SkippingDrafter | None:
        """Itself, if the drafter can skip verification."""
        return None if self.drafter.skipping is None else self

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """See `Drafter.start`."""
        self.known = self.known.expand(len(state.lengths), -1).contiguous()
        self._form = fused_ops.Known(self.known, self._marks, self._instead)
        if (write_known := getattr(self.drafter, "write_known", None)) is not None:
            write_known(self._form)
        self.drafter.start(prompt, state)

    def propose(self, state: DecodeState) -> Draft:
        """The drafter's proposal, corrected; its tensors are written to where kernels serve."""
        draft = self.drafter.propose(state)
        tree = draft.tree
        self.forced.chains = self.forced.chains and tree.is_chain
        if draft.has_known:
            return draft
        made = [each for each in (tree.tokens, draft.probabilities) if each is not None]
        if self._fits(draft) and fused_ops.serves(*made, tree.depth, state.lengths):
            depth = None if tree.is_chain else tree.depth
            fused_ops.correct(tree.tokens, draft.probabilities, state.lengths, depth, self._form)
            return draft
        places = state.lengths[:, None] - 1 + tree.depth  # [B, n]; the loop cuts off what lies past the end
        wanted = self.known.gather(1, places.clamp(max=self.known.shape[1] - 1))
        is_known = wanted >= 0
        tokens, probabilities = tree.tokens, draft.probabilities
        if tree.is_chain:
            tokens = torch.where(self._is_mark[tokens], self._instead, tokens)
            if probabilities is not None:
                marks = (probabilities * self._is_mark).sum(-1)  # [B, n]
                probabilities = probabilities.masked_fill(self._is_mark, 0)
                probabilities[..., self._instead] += marks
        if probabilities is not None:
            certain = torch.zeros_like(probabilities).scatter_(-1, wanted.clamp(min=0)[..., None], 1.0)
            probabilities = torch.where(is_known[..., None], certain, probabilities)
        tree = replace(tree, tokens=torch.where(is_known, wanted, tokens))
        return replace(draft, tree=tree, probabilities=probabilities)

    def _fits(self, draft: Draft) -> bool:
        """Whether a kernel may write to a draft where it lies: the loop has not looked at it yet."""
        tokens, drawn_from = draft.tree.tokens, draft.probabilities
        if tokens.shape != draft.tree.depth.shape or len(tokens) != len(self.known) or not tokens.is_contiguous():
            return False
        if drawn_from is None:
            return True
        return drawn_from.is_floating_point() and drawn_from.shape[:2] == tokens.shape and drawn_from.is_contiguous()

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """See `Drafter.observe`."""
        self.drafter.observe(draft, output, verdict, state)

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """See `SkippingDrafter.observe_skipped`."""
        self._skipping().observe_skipped(draft, selection, state)

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """See `SkippingDrafter.observe_pending`."""
        self._skipping().observe_pending(output, counts, state)

    def replace_rows(self, rows: Tensor, other: KnownTokensDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        replace_rows(self.drafter, rows, other.drafter)
        self.known[rows] = other.known  # in place: a captured step reads it where it lies
        self.forced.places = self.known >= 0

    def _skipping(self) -> SkippingDrafter:
        assert self.drafter.skipping is not None
        return self.drafter.skipping
