"""GSD: Jacobi decoding accepted by groups of tokens that look alike. The rule is `specdecode.verifiers.grouped`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.methods.base import Components, SearchSpace
from vargen.methods.jacobi import WindowConfig

if TYPE_CHECKING:
    from specdecode.roles import Verifier


@dataclass(frozen=True)
class GroupedConfig(WindowConfig):
    """Jacobi decoding, accepted by the ratio of whole groups of look-alike tokens (GSD).

    Args:
        group_size: tokens in a group, at most; 1 is exact.
        max_probability_difference: how much a member's probability may differ from the draft token's.
        max_distance: squared distance of a member's code from the draft token's, at most.
    """

    name: ClassVar[str] = "gsd"
    summary: ClassVar[str] = "Jacobi decoding accepted by groups of look-alike tokens (GSD)"
    exact: ClassVar[bool] = False

    group_size: int = 15
    max_probability_difference: float = 0.15
    max_distance: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("group_size", 1, whole=True)
        self._number("max_probability_difference", 0, 1)
        self._number("max_distance", 0)

    def _verifier(self, components: Components) -> Verifier:
        from specdecode.verifiers.grouped import GroupedVerifier

        return GroupedVerifier(
            components.codebook(),
            self.group_size,
            max_probability_difference=self.max_probability_difference,
            max_distance=self.max_distance,
        )

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The window, and what makes a group."""
        return {
            **super().search(space),
            "group_size": space.integer("group_size", 1, 63),
            "max_probability_difference": space.number("max_probability_difference", 0.01, 0.5),
            "max_distance": space.number("max_distance", 0.05, 2.0),
        }
