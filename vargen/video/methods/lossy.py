"""FastV and SparseVLM: plain decoding with visual tokens dropped. They are baselines that change the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.base.errors import UserError
from vargen.video.methods.base import VideoComponents, VideoMethod, VideoMethodConfig


@dataclass(frozen=True)
class FastVConfig(VideoMethodConfig):
    """FastV (arXiv 2403.06764): plain decoding with part of the video dropped early. Loses quality.

    Args:
        layer: K, the decoder layer after which visual tokens are dropped.
        drop_ratio: R, the share that is dropped.
    """

    name: ClassVar[str] = "fastv"
    summary: ClassVar[str] = "FastV: plain decoding; most visual tokens are dropped after an early layer"
    exact: ClassVar[bool] = False

    layer: int = 2
    drop_ratio: float = 0.5

    def __post_init__(self) -> None:
        self._number("layer", 1, whole=True)
        self._number("drop_ratio", 0, 1)
        if self.drop_ratio == 1:
            raise UserError(f"{self.name}.drop_ratio must be below 1: something has to be left")

    def _players(self, components: VideoComponents) -> VideoMethod:
        return VideoMethod(target=components.fastv_target(1 - self.drop_ratio, self.layer))


@dataclass(frozen=True)
class SparseVLMConfig(VideoMethodConfig):
    """SparseVLM (arXiv 2410.04417): plain decoding; visual tokens are dropped step by step, some recycled.

    Args:
        keep_ratio: share of visual tokens that is left in the end.
    """

    name: ClassVar[str] = "sparsevlm"
    summary: ClassVar[str] = "SparseVLM: plain decoding; visual tokens are dropped layer by layer, some merged"
    exact: ClassVar[bool] = False

    keep_ratio: float = 0.25

    def __post_init__(self) -> None:
        self._share("keep_ratio")

    def _players(self, components: VideoComponents) -> VideoMethod:
        return VideoMethod(target=components.sparsevlm_target(self.keep_ratio))
