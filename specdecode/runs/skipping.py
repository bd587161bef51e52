"""Skipped steps: draft tokens are kept without verification, and fed to the target at the next verification step.

Belongs here: the run that skips, and the layout of a forward over pending tokens and the tree behind them. Does not
belong here: when to skip and which tokens to take (`roles.Schedule`), and the verification step (`loop.py`).

Pending tokens are those that were taken and not yet fed. The next verification step feeds them as a chain before the
tree, in the same forward, which gives them keys, values and hidden states. They are not judged again.

Source: VVS (arXiv 2511.13587), where the layout is called "post verification".
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_tensor
from specdecode.kernels import fused_ops
from specdecode.loop import DecodeRun, clip
from specdecode.roles import DecodeState, Draft, Schedule, Selection, Target, TargetOutput, Verdict
from specdecode.tree import TokenTree, chain_layout


class SkippingRun(DecodeRun):
    """A run whose verification steps may each have a skipped step before them.

    The target needs room for the longest skip beside the nodes of one draft.

    Args:
        target, settings: Arguments of `DecodeRun`, with a drafter whose `skipping` is not None.
        schedule: Says which draft tokens are taken unverified.

    Raises:
        ValueError: As `DecodeRun`; or the drafter cannot skip.
    """

    graph_state = (*DecodeRun.graph_state, "schedule")

    def __init__(self, target: Target, *, schedule: Schedule, **settings: Any) -> None:
        super().__init__(target, **settings)
        skipping = None if self.drafter is None else self.drafter.skipping
        if skipping is None:
            raise ValueError(
                f"schedule needs a drafter that can skip verification, but `skipping` of {type(self.drafter).__name__} "
                f"is None"
            )
        self.schedule, self._skipping = schedule, skipping
        # What the last skipped step left for the verification step behind it: see `_skip`.
        self._draft: Draft | None = None
        self._pending: PendingChain | None = None
        self._output: TargetOutput | None = None

    @property
    def players(self) -> tuple[object, ...]:
        """See `DecodeRun.players`."""
        return *super().players, self.schedule

    @torch.no_grad()
    def start(self) -> None:
        """See `DecodeRun.start`; the schedule starts, too."""
        super().start()
        self.schedule.start(self.state)

    def prepare(self) -> Hashable:
        """Let the schedule decide what the host can know: whether any row may skip."""
        return self.schedule.prepare()

    def perform(self) -> int:
        """Perhaps a skipped step, then a verification step. Returns what `DecodeRun.step` does, for both."""
        with self._part("draft"):
            self._skip()
        if self.stops is not None and ragged.surely_none(self.state.active):
            self.trace.record_unverified(self._skipped)
            return 0
        gained = super().perform() + (0 if self._pending is None else self._pending.max_length)
        self._draft = self._pending = self._output = None
        return gained

    def _skip(self) -> None:
        """Draft; take tokens unverified where the schedule says so, and draft again behind them.

        Sets the draft to be judged, the pending tokens to be fed before it (None if no row has any), and how many
        tokens each row took. A row that a stop token ended took tokens and has none to be fed.
        """
        state, draft = self.state, super()._propose()
        self._draft, self._pending, self._skipped = draft, None, self._no_tokens
        selection = self.schedule.select(draft, state) if draft.tree.max_depth > 0 else None
        if selection is None:
            return
        name, rows = type(self.schedule).__name__, len(self._buffer)
        check_tensor(f"{name} must give path", selection.path, (torch.int64,), (rows, "k"))
        check_tensor(f"{name} must give counts", selection.counts, (torch.int64,), (rows,))
        _, self._skipped = self._append(draft.tree, selection.path, selection.counts, None)
        # A row that a stop token ended has nothing left to verify.
        counts = self._skipped if self.stops is None else self._skipped * state.active
        on_host = ragged.on_host(counts)
        if on_host is not None and not any(on_host):
            self._draft = draft if self.stops is None else clip(draft, state)
            return
        longest = selection.path.shape[1] - 1 if on_host is None else max(on_host)  # what no row took is not fed
        selection = Selection(ragged.first(selection.path, longest + 1), counts)
        self._skipping.observe_skipped(draft, selection, state)
        behind = super()._propose()
        # As in a batch of one: every row skipped.
        self._draft = behind if on_host is not None and all(on_host) else _choose(counts > 0, behind, draft, state)
        in_order = on_host is not None and min(on_host) == longest
        self._pending = PendingChain(selection.tokens(draft.tree)[:, :-1], counts, in_order)

    def _propose(self) -> Draft:
        """The draft that the skipped step left."""
        assert self._draft is not None
        return self._draft

    def _feed(self, tree: TokenTree) -> TargetOutput:
        """What the target says about the tree, having been fed the pending tokens before it."""
        if self._pending is None:
            return super()._feed(tree)
        self.log.width = self._pending.max_length + tree.num_nodes
        self._output = self.target.forward(*self._pending.join(tree))
        of_tree = self._output.after(self._pending.max_length)
        return self._forced(of_tree, self.state.lengths[:, None] + tree.depth)

    def _commit(self, tree: TokenTree, verdict: Verdict, kept: Tensor) -> None:
        """All pending tokens stay, and behind them the accepted path."""
        if self._pending is None:
            super()._commit(tree, verdict, kept)
        else:
            nodes = None if self._pending.in_order and tree.is_chain else self._pending.nodes(verdict)
            self.target.commit(nodes, self._pending.counts + kept)

    def _observe(self, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        if self._pending is not None:
            assert self._output is not None
            self._skipping.observe_pending(self._output, self._pending.counts, self.state)
        super()._observe(draft, output, verdict)


def _choose(rows: Tensor, behind: Draft, draft: Draft, state: DecodeState) -> Draft:
    """The draft behind the taken tokens in `rows` [B], the first draft elsewhere; finished rows are padding."""
    tree = TokenTree.where(rows, behind.tree, draft.tree)
    probabilities = None
    if behind.probabilities is not None and draft.probabilities is not None:
        either = [
            F.pad(each, (0, 0, 0, tree.num_nodes - each.shape[1]))
            for each in (behind.probabilities, draft.probabilities)
        ]
        probabilities = torch.where(rows[:, None, None], either[0], either[1])
    return clip(Draft(tree, probabilities), state)


@dataclass(frozen=True)
class PendingChain:
    """Pending tokens: the target is fed them before the root of the next tree.

    Args:
        tokens: [B, m] int64, left-aligned, the old root first.
        counts: [B] int64 in [0, m]; 0 in rows that did not skip.
        in_order: Whether the host knows all of them to be m, so that no row has a gap.
    """

    tokens: Tensor
    counts: Tensor
    in_order: bool = False

    @property
    def max_length(self) -> int:
        """m."""
        return self.tokens.shape[1]

    @fused_ops.fused(fused_ops.join)
    def join(self, tree: TokenTree) -> tuple[Tensor, Tensor, Tensor]:
        """What to feed the target: the chain, then the tree.

        Returns:
            Tokens [B, m + n], mask [B, m + n, m + n] and depths [B, m + n], as `Target.forward` takes them.
        """
        length, device = self.max_length, self.tokens.device
        place = torch.arange(length, device=device)
        pending = place < self.counts[:, None]  # [B, m]
        in_chain = pending[:, :, None] & pending[:, None, :] & (place[:, None] >= place)  # [B, m, m]
        in_chain = in_chain | torch.eye(length, dtype=torch.bool, device=device)
        batch_size, num_nodes = tree.tokens.shape
        above = torch.cat([in_chain, in_chain.new_zeros(batch_size, length, num_nodes)], dim=2)
        before_tree = (pending[:, None, :] & tree.valid[:, :, None]).expand(-1, num_nodes, -1)
        mask = torch.cat([above, torch.cat([before_tree, tree.ancestor_mask()], dim=2)], dim=1)
        depths = torch.cat([place * pending, tree.depth + self.counts[:, None] * tree.valid], dim=1)
        return torch.cat([self.tokens * pending, tree.tokens], dim=1), mask, depths

    def nodes(self, verdict: Verdict) -> Tensor:
        """[B, m + max_depth + 1] int64: nodes of the joint forward as `Target.commit` takes them: first the pending
        tokens of a row, then its accepted path."""
        pending = chain_layout(*self.tokens.shape, self.tokens.device).depth
        return ragged.append(pending, self.counts, self.max_length + verdict.path, verdict.accepted)[0]
