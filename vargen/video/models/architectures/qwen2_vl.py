"""Qwen2-VL (arXiv 2409.12191): positions of three axes, time, height and width; frames of any shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.video.models.architectures.base import Architecture, VideoFeatures

if TYPE_CHECKING:
    from torch import Tensor

_OF_POSITIONS = ("mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts", "attention_mask")


class Qwen2VL(Architecture):
    """`Qwen2VLForConditionalGeneration`.

    What is generated goes on from the prompt's last token, as in training and in transformers' `generate`. (The offset
    that comes with the positions goes on from the greatest, which in a long video is that of its last moment.)
    """

    model_type: ClassVar[str] = "qwen2_vl"
    title: ClassVar[str] = "Qwen2-VL"
    layers: ClassVar[Mapping[str, str]] = {"qwen2_vl_text": "qwen2_vl.modeling_qwen2_vl.Qwen2VL"}
    num_axes: ClassVar[int] = 3
    resizes: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("mm_token_type_ids", "video_grid_thw")

    def encode(self, model: Any, inputs: Mapping[str, Tensor]) -> VideoFeatures:
        return VideoFeatures(self._joined(self._output(model, inputs).pooler_output))

    def positions(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        told = {name: inputs[name] for name in _OF_POSITIONS if name in inputs}
        positions, _ = model.model.get_rope_index(inputs["input_ids"], **told)
        positions = positions[-self.num_axes :]
        return positions, int(positions[:, 0, -1].max()) + 1

    def _output(self, model: Any, inputs: Mapping[str, Tensor]) -> Any:
        return model.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"], return_dict=True)

    def _joined(self, parts: Any) -> Tensor:
        """[m, dim] of what comes video by video."""
        import torch

        return torch.cat(list(parts), dim=0)
