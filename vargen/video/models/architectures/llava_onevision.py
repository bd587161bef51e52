"""LLaVA-OneVision (arXiv 2408.03326): frames of one size, and one new line after the whole video."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.video.models.architectures.base import Architecture, VideoFeatures

if TYPE_CHECKING:
    from torch import Tensor


class LlavaOnevision(Architecture):
    """`LlavaOnevisionForConditionalGeneration`."""

    model_type: ClassVar[str] = "llava_onevision"
    title: ClassVar[str] = "LLaVA-OneVision"
    layers: ClassVar[Mapping[str, str]] = {"qwen2": "qwen2.modeling_qwen2.Qwen2"}
    num_separators: ClassVar[int] = 1

    def encode(self, model: Any, inputs: Mapping[str, Tensor]) -> VideoFeatures:
        import torch

        output = model.model.get_video_features(inputs["pixel_values_videos"], return_dict=True)
        features = output.pooler_output.flatten(0, 1)  # of [1, m, dim]
        # Releases differ in whether the new line is among them.
        if len(features) == int(self.is_visual(model.config, inputs["input_ids"]).sum()) - 1:
            features = torch.cat((features, model.model.image_newline[None].to(features)))
        return VideoFeatures(features)
