"""Positions whose token is known in advance: it is drafted there, and nowhere else.

Belongs here: correcting another drafter's proposals and their distributions. Not here: which tokens are forced.

A sequence may have a form, such as one token after every so many others. A drafter that does not know it guesses wrong
there, and everything behind a wrong guess is lost. Why this is exact: a forced token is certain, so its distribution is
1 there. Elsewhere the probability of forced tokens goes to another token, in the draw and in the claim alike. That
holds for chains. In trees such a token stays where it was drafted, and the target, for which it is impossible, rejects
it.

Other tokens may be forced in one place and drawn in another: `marks` says which may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
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
from specdecode.trace import ForcedPlaces
from specdecode.tree import TokenTree


class ForcedTokensDrafter(Drafter):
    """The Drafter role: another drafter's proposals with forced tokens.

    In chains, marks are drafted nowhere else. A verifier that may accept a token that the target excludes must be given
    chains.

    Args:
        drafter: makes the proposals; it observes the corrected ones.
        forced_tokens: [max_new_tokens] int64, or [B, max_new_tokens], the token at each output position, -1 where it is
            open.
        vocab_size: V.
        marks: tokens that stand only where they are forced, also in rows that may join the batch; not all V. None: all
            that are forced.

    Raises:
        ValueError: every token is a mark, or `forced_tokens` is of another shape or type.
    """

    graph_state = ("drafter", "forced_tokens", "_is_forced")

    def __init__(
        self, drafter: Drafter, forced_tokens: Tensor, vocab_size: int, marks: Sequence[int] | None = None
    ) -> None:
        if forced_tokens.dtype != torch.int64 or forced_tokens.ndim not in (1, 2):
            raise ValueError(
                f"forced_tokens must be int64 of shape [max_new_tokens] or [batch, max_new_tokens], got "
                f"{forced_tokens.dtype} of shape {list(forced_tokens.shape)}"
            )
        self.drafter, self.forced_tokens = drafter, forced_tokens
        self._is_forced = torch.zeros(vocab_size, dtype=torch.bool, device=forced_tokens.device)
        self._is_forced[forced_tokens[forced_tokens >= 0] if marks is None else list(marks)] = True
        if bool(self._is_forced.all()):
            raise ValueError("forced_tokens must leave some token that is forced nowhere")
        self.forced_places = ForcedPlaces(forced_tokens >= 0)
        self._substitute = int(self._is_forced.int().argmin())  # a token that is forced nowhere

    @property
    def skipping(self) -> SkippingDrafter | None:
        """Itself, if the drafter can skip verification."""
        return None if self.drafter.skipping is None else self

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """See `Drafter.start`."""
        self.forced_tokens = self.forced_tokens.expand(len(state.lengths), -1).contiguous()
        self.drafter.start(prompt, state)

    def observe_given(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """See `Drafter.observe_given`."""
        self.drafter.observe_given(output, counts, state)

    def propose(self, state: DecodeState) -> Draft:
        """The drafter's proposal, corrected."""
        draft = self.drafter.propose(state)
        tree = draft.tree
        self.forced_places.chains = self.forced_places.chains and tree.is_chain
        places = state.lengths[:, None] - 1 + tree.depth  # [B, n]; the loop cuts off what lies past the end
        wanted = ragged.at_places(self.forced_tokens, places)
        is_forced = wanted >= 0
        tokens, probabilities = tree.tokens, draft.probabilities
        if tree.is_chain:
            tokens = torch.where(self._is_forced[tokens], self._substitute, tokens)
            if probabilities is not None:
                moved = (probabilities * self._is_forced).sum(-1)  # [B, n]
                probabilities = probabilities.masked_fill(self._is_forced, 0)
                probabilities[..., self._substitute] += moved
        if probabilities is not None:
            certain = torch.zeros_like(probabilities).scatter_(-1, wanted.clamp(min=0)[..., None], 1.0)
            probabilities = torch.where(is_forced[..., None], certain, probabilities)
        tree = replace(tree, tokens=torch.where(is_forced, wanted, tokens))
        return replace(draft, tree=tree, probabilities=probabilities)

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """See `Drafter.observe`."""
        self.drafter.observe(draft, output, verdict, state)

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """See `SkippingDrafter.observe_skipped`."""
        self._skipping().observe_skipped(draft, selection, state)

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """See `SkippingDrafter.observe_pending`."""
        self._skipping().observe_pending(output, counts, state)

    def replace_rows(self, rows: Tensor, other: ForcedTokensDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        replace_rows(self.drafter, rows, other.drafter)
        self.forced_tokens[rows] = other.forced_tokens  # in place: a captured step reads it where it lies
        self.forced_places.places = self.forced_tokens >= 0

    def _skipping(self) -> SkippingDrafter:
        assert self.drafter.skipping is not None
        return self.drafter.skipping


class KnownRuns(Drafter):
    """The Drafter role for plain decoding beside forced tokens: those behind the newest token, which need no pass.

    It proposes their number alone; `ForcedTokensDrafter` writes the tokens.

    Args:
        forced_tokens: [B, N] int64, -1 where a place is open.
        most: the most that are proposed at once.
    """

    graph_state = ("forced_tokens",)

    def __init__(self, forced_tokens: Tensor, most: int) -> None:
        self.forced_tokens, self.most = forced_tokens.clone(), most

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Nothing to keep."""

    def propose(self, state: DecodeState) -> Draft:
        """Fillers, as many as tokens are known behind each row's newest one."""
        places = state.lengths[:, None] + torch.arange(self.most, device=state.lengths.device)
        run = (ragged.at_places(self.forced_tokens, places) >= 0).long().cumprod(1).sum(1)
        width = ragged.at_most(run, self.most)
        return Draft(TokenTree.chain(F.pad(state.last_tokens()[:, None], (0, width))).clip(run))

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Nothing to learn."""

    def replace_rows(self, rows: Tensor, other: KnownRuns) -> None:
        """See `specdecode.roles.RowReplacing`."""
        self.forced_tokens[rows] = other.forced_tokens


def longest_known(forced_tokens: Tensor) -> int:
    """The most forced tokens of [B, N] that follow each other behind an open place of their row."""
    longest = 0
    for row in forced_tokens.tolist():
        known = "".join("k" if token >= 0 else " " for token in row).lstrip("k")
        longest = max(longest, *map(len, known.split(" ")))
    return longest


def certain_where_forced(output: TargetOutput, forced_tokens: Tensor, places: Tensor) -> TargetOutput:
    """The output with the forced token alone where one is forced.

    Args:
        output: logits [B, n, V].
        forced_tokens: [B, N] int64, -1 where a place is open.
        places: [B, n] int64, of the logits; past the end they mean nothing.
    """
    wanted = ragged.at_places(forced_tokens, places)[..., None]
    certain = torch.full_like(output.logits, -torch.inf).scatter_(2, wanted.clamp(min=0), 0)
    return replace(output, logits=torch.where(wanted >= 0, certain, output.logits))
