"""FLy (arXiv 2511.22972) for answers about videos. The rule is `specdecode.verifiers.windowed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.options import option
from vargen.video.methods.base import VideoComponents
from vargen.video.methods.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from specdecode.roles import Target, Verifier


WINDOW = 4
"""Tokens that must agree after a mismatch, as in the paper."""


@dataclass(frozen=True)
class FlyConfig(SpeculativeConfig):
    """FLy (arXiv 2511.22972): a mismatch is forgiven where the target is unsure and agrees again right after."""

    name: ClassVar[str] = "fly"
    summary: ClassVar[str] = "FLy: forgives a mismatch where the target is unsure and agrees again right after"
    exact: ClassVar[bool] = False

    draft_length: int = 10
    keep_ratio: float = 0.1
    threshold: float = option(0.3, least=0.0)
    """Least entropy, see `specdecode.verifiers.windowed`."""

    def _verifier(self, components: VideoComponents, target: Target) -> Verifier:
        from specdecode.verifiers.windowed import WindowedVerifier

        return WindowedVerifier(self.threshold, WINDOW)
