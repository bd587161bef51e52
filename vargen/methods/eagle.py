"""EAGLE: a one-layer draft head on the target's features drafts a tree, and the exact verifier judges it.

Belongs here: EAGLE's settings, and the base of all methods with such a head. Does not belong here: how a tree grows and
a head is fed (`specdecode.drafters.eagle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.base.path_roles import READ_FOLDER
from vargen.methods.base import AUTO, Auto, Components, ImageMethodConfig, Method, SearchSpace
from vargen.methods.trees import FIXED_TREES, fixed_tree

if TYPE_CHECKING:
    from specdecode.drafters.draft_size import DraftSize
    from specdecode.drafters.eagle import EagleDrafter
    from specdecode.drafters.tree_shapes import DynamicTree, StaticTree

CHILDREN = ("coupled", "top", "sampled")

_TOTAL_TOKENS, _DEPTH = 60, 5
"""The fixed size of a dynamic tree: that of EAGLE-2 and of LANTERN's released code."""
_ACCEPTED_BY_TREE = {(3, 2): 1.02, (4, 3): 1.28, (13, 6): 2.32, (60, 8): 3.46}
"""Nodes and levels of two chains and two dynamic trees, and the coupled tokens of them that the shipped picture model
accepts in a forward pass; over 12 held-out prompts. What "auto" expects at first, scaled by what happens."""
_RATE = 0.4
"""The acceptance rate that is expected of a head for which it was not measured."""


@dataclass(frozen=True)
class EagleConfig(ImageMethodConfig):
    """A one-layer draft head on the target's features drafts a token tree; see `specdecode.drafters.eagle`."""

    name: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "EAGLE: a one-layer head on the target's features drafts a tree (EAGLE-2 or fixed)"
    exact: ClassVar[bool] = True
    weights: ClassVar[tuple[str, ...]] = ("drafter",)
    draft_settings: ClassVar[tuple[str, ...]] = ("tree", "total_tokens", "depth", "tree_top_k", "children")

    drafter: str | None = option(None, path=READ_FOLDER)
    """Folder of a trained head; null for the one that came with the model."""
    tree: str | tuple[tuple[int, ...], ...] = option("dynamic", choices=("dynamic", *FIXED_TREES))
    """Shape of the draft: "dynamic" (EAGLE-2: grown by confidence), the name of a published fixed tree, or a list of
    nodes, each a list of ranks, such as [[0], [1], [0, 0]]."""
    total_tokens: int | Auto = option(AUTO, least=2, most=MAX_DRAFT)
    """Nodes of a dynamic tree, its root included. With `depth`, "auto" chooses a chain of 2 or 3, a tree of 12 or 59
    or no draft, whatever is fastest on this machine, which changes no picture."""
    depth: int | Auto = option(AUTO, least=1, most=MAX_DRAFT)
    """Levels drafted below the root; of a fixed tree, at most its own."""
    tree_top_k: int = option(10, least=1, most=MAX_DRAFT)
    """Nodes expanded per level of a dynamic tree, and children of each."""
    children: str = option("coupled", choices=CHILDREN)
    """Children of a node: "coupled", chosen with the target's own random number of their place, so that a seed keeps
    plain decoding's picture; "top" for the likeliest tokens; "sampled" for draws without replacement (fixed trees
    only)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.children == "sampled" and self.tree == "dynamic":
            raise UserError(f"{self.name}.children: sampled children need a fixed tree; name one of {FIXED_TREES}")
        if self.total_tokens != AUTO and self.depth != AUTO and self.depth >= self.total_tokens:
            raise UserError(
                f"{self.name}.depth must be below total_tokens ({self.total_tokens}), got {self.depth}: every level "
                f"needs a node"
            )

    def resolved(self, num_tokens: int) -> Self:
        if self._is_measured or (self.tree != "dynamic" and self.depth != AUTO):
            return self
        if self.tree != "dynamic":
            return replace(self, depth=min(self._fixed_tree().max_depth, num_tokens - 1))
        depth = None if self.depth == AUTO else self.depth
        nodes = max(_TOTAL_TOKENS, (depth or 0) + 1) if self.total_tokens == AUTO else self.total_tokens
        return replace(self, total_tokens=nodes, depth=depth or min(_DEPTH, nodes - 1, num_tokens - 1))

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        from specdecode.drafters.draft_size import DraftSize
        from specdecode.drafters.tree_shapes import StaticTree

        shape, settled = self._shape(), self.resolved(num_tokens)
        if isinstance(shape, StaticTree):
            depths: Sequence[int] = range(1, shape.max_depth + 1) if settled.depth == AUTO else (settled.depth,)
            if max(depths) > shape.max_depth:
                raise UserError(f"{self.name}.depth must be at most {shape.max_depth} with this tree, got {self.depth}")
            sizes = [DraftSize(sum(at <= depth for at in shape.depths), depth) for depth in depths]
        else:
            total, levels, room = settled.total_tokens, settled.depth, max(1, num_tokens - 1)
            sizes = []
            for nodes, depth in _ACCEPTED_BY_TREE:
                nodes = total if isinstance(total, int) else max(nodes, levels + 1 if isinstance(levels, int) else 0)
                depth = levels if isinstance(levels, int) else min(depth, room, nodes - 1)
                sizes.append(DraftSize(nodes, depth))
            sizes = [*dict.fromkeys(sizes)]
        return self._fitting(sizes, "depth", num_tokens)

    @property
    def _is_measured(self) -> bool:
        """Whether measured seconds may choose the size, because the draft does not change a seed's picture."""
        return self.exact and self.children != "sampled"

    def _shape(self) -> DynamicTree | StaticTree:
        from specdecode.drafters.tree_shapes import DynamicTree

        return DynamicTree(self.tree_top_k) if self.tree == "dynamic" else self._fixed_tree()

    def _fixed_tree(self) -> StaticTree:
        try:
            return fixed_tree(self.tree)
        except ValueError as error:
            raise UserError(f"{self.name}.tree: {error}") from error

    def _players(self, components: Components) -> Method:
        return Method(self._drafter(components), self._verifier(components), self._schedule(components))

    def _drafter(self, components: Components, **reuse: Any) -> EagleDrafter:
        sizes = self.sizes(components.num_tokens)
        return eagle_drafter(components, self.drafter, self._shape(), sizes, self.children, **reuse)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """A dynamic tree, or a chain of drawn tokens."""
        # On flat distributions a few drawn tokens are accepted more often than many likely ones.
        if not {"tree", "children"} & space.fixed.keys() and space.choice("children", CHILDREN) == "sampled":
            length = space.integer("depth", 1, 8, log=True)
            return {"tree": [[0] * depth for depth in range(1, length + 1)], "depth": length, "children": "sampled"}
        return {
            "total_tokens": space.size("total_tokens", 4, 64, measured=cls.exact),
            "depth": space.size("depth", 1, 6, measured=cls.exact),
            "tree_top_k": space.integer("tree_top_k", 2, 12),
        }


def eagle_drafter(
    components: Components,
    folder: str | None,
    shape: DynamicTree | StaticTree,
    sizes: Sequence[DraftSize],
    children: str,
    **reuse: Any,
) -> EagleDrafter:
    """The drafter with a model's draft head.

    Args:
        folder: the head's; None for the model's own.
        sizes: more than one only where measured seconds may choose.
        reuse: options of `EagleDrafter` for skipped steps.
    """
    from specdecode.drafters.draft_size import DraftSize
    from specdecode.drafters.eagle import EagleDrafter
    from specdecode.drafters.tree_shapes import DynamicTree

    largest = DraftSize(max(size.total_tokens for size in sizes), max(size.depth for size in sizes))
    head = components.load_draft_head(folder, EagleDrafter.most_new_pairs(shape, largest))
    expanded = shape.top_k if isinstance(shape, DynamicTree) else 1
    expected: float | list[float] = head.acceptance_rates.get(children) or _RATE
    lengths = [_ACCEPTED_BY_TREE.get((size.total_tokens, size.depth), 0.0) for size in sizes]
    if children == "coupled" and isinstance(shape, DynamicTree) and all(lengths):
        expected = lengths
    sizer = components.draft_sizer(
        sizes, f"{head.kind}-{children}-{shape}", lambda: head.draft_once(expanded), expected
    )
    return EagleDrafter(head.network, shape, sizer, children, **reuse)  # type: ignore[arg-type]
