"""The draft trees that methods take by name. One list for pictures and videos.

Belongs here: names, and the shape behind a name. Does not belong here: how a tree grows (`specdecode.drafters`).
Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdecode.drafters.tree_shapes import StaticTree

FIXED_TREES = ("naive_extend_57", "mc_sim_7b_63", "mc_sim_7b_63_balanced", "reverse_balanced_25", "medusa_2_7b_63")
"""Published fixed trees; `specdecode.drafters.tree_shapes` has their nodes."""


def fixed_tree(tree: str | Sequence[Sequence[int]], chain_length: int = 0) -> StaticTree:
    """A fixed tree: "chain" of so many tokens, a published one by name, or a list of nodes. Raises ValueError for what
    is no tree."""
    from specdecode.drafters.tree_shapes import StaticTree

    if tree == "chain":
        return StaticTree.chain(chain_length)
    return StaticTree.published(tree) if isinstance(tree, str) else StaticTree.from_paths(tree)
