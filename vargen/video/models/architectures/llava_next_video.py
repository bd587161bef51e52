"""LLaVA-NeXT-Video: frames of one size, pooled, and nothing between or after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.video.models.architectures.base import Architecture, VideoFeatures

if TYPE_CHECKING:
    from torch import Tensor


class LlavaNextVideo(Architecture):
    """`LlavaNextVideoForConditionalGeneration`."""

    model_type: ClassVar[str] = "llava_next_video"
    title: ClassVar[str] = "LLaVA-NeXT-Video"
    layers: ClassVar[Mapping[str, str]] = {
        "llama": "llama.modeling_llama.Llama",
        "mistral": "mistral.modeling_mistral.Mistral",
        "qwen2": "qwen2.modeling_qwen2.Qwen2",
    }

    def encode(self, model: Any, inputs: Mapping[str, Tensor]) -> VideoFeatures:
        import torch

        output = model.model.get_video_features(inputs["pixel_values_videos"], return_dict=True)
        # One video after the other; each [m, dim] or, in some releases, [frames, tokens, dim].
        return VideoFeatures(torch.cat([each.reshape(-1, each.shape[-1]) for each in output.pooler_output]))
