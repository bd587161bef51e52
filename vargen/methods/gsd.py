"""GSD: Jacobi decoding accepted by groups of tokens that look alike. The rule is `specdecode.verifiers.grouped`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.options import option
from vargen.methods.base import LARGEST, Components, SearchSpace
from vargen.methods.jacobi import WindowConfig

if TYPE_CHECKING:
    from specdecode.roles import Verifier


@dataclass(frozen=True)
class GroupedConfig(WindowConfig):
    """Jacobi decoding, accepted by the ratio of whole groups of look-alike tokens (GSD)."""

    name: ClassVar[str] = "gsd"
    summary: ClassVar[str] = "Jacobi decoding accepted by groups of look-alike tokens (GSD)"
    exact: ClassVar[bool] = False

    group_size: int = option(15, least=1, most=LARGEST)
    """Tokens in a group, at most; 1 is exact."""

    def _verifier(self, components: Components) -> Verifier:
        from specdecode.verifiers.grouped import GroupedVerifier

        return GroupedVerifier(components.codebook(), self.group_size)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The window, and what makes a group."""
        return {**super().search(space), "group_size": space.integer("group_size", 1, 63)}
