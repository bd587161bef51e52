"""Tokens that were taken without asking the target, and how the next verified step feeds them.

Belongs here: the layout of one forward over a chain of pending tokens and the tree behind it. Does not belong here: who
decides to skip (`roles.Schedule`), and what features a drafter reads meanwhile.

Source: VVS (arXiv 2511.13587), "post verification": the skipped path is prepended to the new tree and both go through
the target at once, which gives the skipped tokens the keys, values and features they lack. They are not judged again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode.roles import Verdict
from specdecode.tree import TokenTree


@dataclass(frozen=True)
class PendingChain:
    """Tokens before the root of the next tree that the target has not been fed.

    Args:
        tokens: [B, m] int64, left-aligned, the old root first.
        counts: [B] int64 in [0, m]; 0 in rows that did not skip.
    """

    tokens: Tensor
    counts: Tensor

    @property
    def max_length(self) -> int:
        """m."""
        return self.tokens.shape[1]

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

    def kept(self, verdict: Verdict) -> tuple[Tensor, Tensor]:
        """What `Target.commit` takes: all pending tokens, then the accepted path.

        Returns:
            Nodes [B, m + max_depth + 1] of the joint forward, and how many tokens of the chain precede the path, [B].
        """
        length, width = self.max_length, verdict.path.shape[1]
        place = torch.arange(length + width, device=self.tokens.device)
        in_path = (place - self.counts[:, None]).clamp(0, width - 1)
        nodes = torch.where(place < self.counts[:, None], place, length + verdict.path.gather(1, in_path))
        return nodes, self.counts
