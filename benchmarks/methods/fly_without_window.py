"""FLy where entropy alone decides, the ablation of its paper.

cd benchmarks/methods; vargen bench --task video --methods fly-0.1.yaml,fly_without_window:FlyWithoutWindow
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from specdecode.verifiers.windowed import WindowedVerifier
from vargen.video.methods.fly import FlyConfig


@dataclass(frozen=True)
class FlyWithoutWindow(FlyConfig):
    """FLy without its window: a mismatch is forgiven wherever the target is unsure."""

    name: ClassVar[str] = "fly-without-window"
    summary: ClassVar[str] = "FLy without its window: a mismatch is forgiven wherever the target is unsure"

    threshold: float = 0.1

    def _verifier(self, components: Any, target: Any) -> WindowedVerifier:
        return WindowedVerifier(self.threshold, None)
