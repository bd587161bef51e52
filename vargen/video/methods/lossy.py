"""FastV and SparseVLM: plain decoding with visual tokens dropped. They are baselines that change the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.base.options import option
from vargen.video.methods.base import VideoComponents, VideoMethod, VideoMethodConfig


@dataclass(frozen=True)
class FastVConfig(VideoMethodConfig):
    """FastV (arXiv 2403.06764): plain decoding with part of the video dropped early. Loses quality."""

    name: ClassVar[str] = "fastv"
    summary: ClassVar[str] = "FastV: plain decoding; most visual tokens are dropped after an early layer"
    exact: ClassVar[bool] = False

    layer: int = option(2, least=1)
    """K, the decoder layer after which visual tokens are dropped."""
    drop_ratio: float = option(0.5, least=0.0, below=1.0)
    """R, the share that is dropped."""

    def _players(self, components: VideoComponents) -> VideoMethod:
        return VideoMethod(target=components.fastv_target(1 - self.drop_ratio, self.layer))


@dataclass(frozen=True)
class SparseVLMConfig(VideoMethodConfig):
    """SparseVLM (arXiv 2410.04417): plain decoding; visual tokens are dropped step by step, some recycled."""

    name: ClassVar[str] = "sparsevlm"
    summary: ClassVar[str] = "SparseVLM: plain decoding; visual tokens are dropped layer by layer, some merged"
    exact: ClassVar[bool] = False

    keep_ratio: float = option(0.25, above=0.0, most=1.0)
    """Share of visual tokens that is left in the end."""

    def _players(self, components: VideoComponents) -> VideoMethod:
        return VideoMethod(target=components.sparsevlm_target(self.keep_ratio))
