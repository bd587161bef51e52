"""FastV and SparseVLM, baselines that change what is said: settings. `lossy_targets` has their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.errors import UserError
from vargen.methods.video.base import VideoMethodConfig

if TYPE_CHECKING:
    from vargen.pipelines.video.players import Players
    from vargen.pipelines.video.prompt import Prompt


@dataclass(frozen=True)
class FastVConfig(VideoMethodConfig):
    """FastV (arXiv 2403.06764): plain decoding with part of the video dropped early. Loses quality.

    Args:
        layer: K, the decoder layer after which visual tokens are dropped.
        drop_ratio: R, share of them.
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

    def build(self, prompt: Prompt) -> Players:
        """The target that forgets, alone."""
        from vargen.models.video_llms.lossy_targets import FastVTarget
        from vargen.pipelines.video.players import Players

        share = 1 - self.drop_ratio
        return Players(FastVTarget(prompt.model, prompt.requests, share, self.layer, **prompt.sizes(1)))


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

    def build(self, prompt: Prompt) -> Players:
        """The target that forgets, alone."""
        from vargen.models.video_llms.lossy_targets import SparseVLMTarget, sparsevlm_stages
        from vargen.pipelines.video.players import Players

        stages = sparsevlm_stages(int(prompt.model.config.get_text_config().num_hidden_layers), self.keep_ratio)
        return Players(SparseVLMTarget(prompt.model, prompt.requests, stages, **prompt.sizes(1)))
