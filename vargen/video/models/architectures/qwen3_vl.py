"""Qwen3-VL (arXiv 2511.21631): a span of visual tokens for each step of time, between timestamps, and DeepStack.

Features of a frame from the vision tower's middle layers are added to the hidden states of its visual tokens after the
first decoder layers; a model without it says something else. Queries and keys are normalised before they are turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.video.models.architectures.base import VideoFeatures
from vargen.video.models.architectures.qwen2_vl import Qwen2VL

if TYPE_CHECKING:
    from torch import Tensor


class Qwen3VL(Qwen2VL):
    """`Qwen3VLForConditionalGeneration`."""

    model_type: ClassVar[str] = "qwen3_vl"
    title: ClassVar[str] = "Qwen3-VL"
    layers: ClassVar[Mapping[str, str]] = {"qwen3_vl_text": "qwen3_vl.modeling_qwen3_vl.Qwen3VLText"}

    def frame_size(self, video_processor: Any, max_pixels: int, num_frames: int) -> dict[str, int]:
        """See `Architecture`. This one's processor counts the pixels of all frames together, and limits them itself."""
        most = min(max_pixels * num_frames, int(video_processor.size["longest_edge"]))
        return super().frame_size(video_processor, most, num_frames)

    def encode(self, model: Any, inputs: Mapping[str, Tensor]) -> VideoFeatures:
        output = self._output(model, inputs)
        stacked = tuple(self._joined(parts) for parts in output.deepstack_features)
        return VideoFeatures(self._joined(output.pooler_output), stacked)
