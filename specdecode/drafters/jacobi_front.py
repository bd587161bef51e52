"""A Jacobi window with several guesses at its front, since about half of all steps accept no other guess.

Belongs here: the branches, and reading a chain out of the accepted branch. Does not belong here: how guesses are drawn
(`jacobi.py`), and verification, which is the exact rule for trees.

Behind a rejected guess all opinions are about a token that is not there. So several tokens are guessed for the first
position, each followed by the main chain's next few guesses (SJD-PAC, CVPR 2026, whose tree has 4 branches of 3). The
opinions of the accepted branch are used next, and beyond its end those of the main chain, which are stale.

Why it is exact. Branches are draws without replacement: each claims what its earlier siblings leave of the
distribution, renormalised, and the verifier tests them in that order. The later guesses of a branch are the main
chain's, drawn with numbers of their own. With coupling "target" the branches are the runners-up of the race that the
target's own token wins, and tokens are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdecode.drafters.draft_size import DraftSizer
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.ragged import constant, take
from specdecode.roles import DecodeState, Draft, SkippingDrafter, TargetOutput, Verdict
from specdecode.sampling import Tag, largest
from specdecode.tree import TokenTree


class BranchingJacobiDrafter(JacobiDrafter):
    """A Jacobi window with several guesses at its first position.

    Args:
        vocab_size, sizer: as for `JacobiDrafter`; a size has `branch_nodes` more nodes than its window's chain.
        branches: guesses at the first position, the main chain's included, 2 or more.
        branch_depth: tokens of each branch beside the main chain, at most the window.
        options: of `JacobiDrafter`.

    Raises:
        ValueError: a number is out of range, or as `JacobiDrafter`.
    """

    def __init__(self, vocab_size: int, sizer: DraftSizer, branches: int, branch_depth: int, **options: Any) -> None:
        super().__init__(vocab_size, sizer, **options)
        if not 2 <= branches <= vocab_size:
            raise ValueError(f"branches must lie between 2 and the vocabulary's {vocab_size}, got {branches}")
        if branch_depth < 1:
            raise ValueError(f"branch_depth must be 1 or more, got {branch_depth}")
        self.branches = branches
        self.branch_depth = branch_depth

    @property
    def skipping(self) -> SkippingDrafter | None:
        """None: skipped steps take tokens from chains."""
        return None

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Read a chain out of the tree: the accepted branch, and beyond its end the main chain."""
        if not draft.tree.is_chain:
            _, lines = _layout(self._size.depth, self.branches, self.branch_depth, draft.tree.device)
            first = verdict.path[:, 1]  # the main chain stands first, at nodes 1 to its window
            depth = min(self.branch_depth, self._size.depth)
            beside = torch.where(first > self._size.depth, (first - self._size.depth - 1) // depth + 1, 0)
            line = lines[torch.where(verdict.accepted > 0, beside, 0)]  # [B, window + 1]
            probabilities = None if draft.probabilities is None else take(draft.probabilities, line)
            # Where a row is clipped its last nodes are padding, which is not read again.
            chain = replace(TokenTree.chain(draft.tree.tokens.gather(1, line)), valid=draft.tree.valid.gather(1, line))
            draft, output = Draft(chain, probabilities), output.at(line)
        super().observe(draft, output, verdict, state)

    def _drawn_at_once(self, window: int, state: DecodeState) -> Draft | None:
        """See `JacobiDrafter`; a race whose runners-up are wanted is run here."""
        return None if self.coupling == "target" else super()._drawn_at_once(window, state)

    def _raced(self, root: Tensor, arrival: Tensor) -> Draft:
        """See `JacobiDrafter`; the branches begin with the runners-up of the first race."""
        main = largest(arrival)
        first = arrival[:, 0].topk(self.branches, -1).indices[:, 1:]  # [B, branches - 1]
        return Draft(self._tree(torch.cat([root, main], 1), first))

    def _drawn(self, tokens: Tensor, drawn_from: Tensor, state: DecodeState) -> Draft:
        """See `JacobiDrafter`; the branches begin with draws from what the main chain's first guess leaves."""
        left = drawn_from[:, 1].double().scatter(1, tokens[:, 1:2], 0.0)  # [B, V]; may be next to nothing
        noise = state.streams.exponential(Tag.BRANCH, self._counters(state.lengths, state), self.vocab_size)
        # The first to arrive, the second, and so on, are draws without replacement.
        first = (left / noise).topk(self.branches - 1, -1).indices
        claimed = []
        for rank in range(self.branches - 1):
            token = first[:, rank : rank + 1]
            total = left.sum(-1, keepdim=True)
            # Where nothing is left the token is a choice, not a draw, and claims to be certain.
            certain = torch.zeros_like(left).scatter(1, token, 1.0)
            claimed.append(torch.where(total > 0, left / total, certain).float())
            left = left.scatter(1, token, 0.0)
        depth = min(self.branch_depth, tokens.shape[1] - 1)
        behind = drawn_from[:, 2 : depth + 1]
        beside = [part for each in claimed for part in (each[:, None], behind)]
        return Draft(self._tree(tokens, first), torch.cat([drawn_from, *beside], 1))

    def _tree(self, main: Tensor, first: Tensor) -> TokenTree:
        """The main chain [B, window + 1], the root first, and a branch behind each of first [B, branches - 1]."""
        window = main.shape[1] - 1
        parents, _ = _layout(window, self.branches, self.branch_depth, main.device)
        behind = main[:, 2 : min(self.branch_depth, window) + 1]
        beside = [part for token in first.split(1, dim=1) for part in (token, behind)]
        tokens = torch.cat([main, *beside], 1)
        return TokenTree.from_parents(tokens, parents.expand_as(tokens), max_depth=window, max_children=self.branches)


def branch_nodes(window: int, branches: int, branch_depth: int) -> int:
    """Nodes that branches add to a window's chain."""
    return (branches - 1) * min(branch_depth, window)


@constant
def _layout(window: int, branches: int, branch_depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Parents [n] of the nodes, and for the main chain and each branch the nodes by depth, [branches, window + 1]."""
    main, depth = torch.arange(-1, window + 1, device=device), min(branch_depth, window)
    beside = torch.arange(window + 1, window + 1 + branch_nodes(window, branches, branch_depth), device=device)
    beside, root = beside.view(branches - 1, depth), main[1:2].expand(branches - 1, 1)
    parents = torch.cat([main[:-1], torch.cat([root, beside[:, :-1]], 1).flatten()])
    behind = main[depth + 2 :].expand(branches - 1, -1)
    return parents, torch.cat([main[None, 1:], torch.cat([root, beside, behind], 1)])
