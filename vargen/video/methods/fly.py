"""FLy (arXiv 2511.22972) for answers about videos. The rule is `specdecode.verifiers.windowed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.video.methods.base import VideoComponents
from vargen.video.methods.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from specdecode.roles import Target, Verifier


@dataclass(frozen=True)
class FlyConfig(SpeculativeConfig):
    """FLy (arXiv 2511.22972): a mismatch is forgiven where the target is unsure and agrees again right after.

    Args:
        threshold: least entropy, see `specdecode.verifiers.windowed`.
        window: tokens that must agree after it; null: only the entropy decides.
        mode: "paper" or "release".
    """

    name: ClassVar[str] = "fly"
    summary: ClassVar[str] = "FLy: forgives a mismatch where the target is unsure and agrees again right after"
    exact: ClassVar[bool] = False

    draft_length: int = 10
    keep_ratio: float = 0.1
    threshold: float = 0.3
    window: int | None = 4
    mode: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("threshold", 0)
        if self.window is not None:
            self._number("window", 1, MAX_DRAFT, whole=True)
        self._one_of("mode", ("paper", "release"))

    def _verifier(self, components: VideoComponents, target: Target) -> Verifier:
        from specdecode.verifiers.windowed import WindowedVerifier

        return WindowedVerifier(self.threshold, self.window, self.mode)
