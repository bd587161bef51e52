"""A CLIP of `metrics.extractors` as torchmetrics' CLIPScore takes one, so that tests can hold the two together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from metrics.extractors import CLIPFeatures, _unit
from metrics.images import to_image


def torchmetrics_clip(clip: CLIPFeatures) -> tuple[Any, Any]:
    """Model and processor as `torchmetrics.multimodal.CLIPScore(lambda: torchmetrics_clip(clip))` takes them.

    torchmetrics 1.9 reads features as tensors, which transformers has not returned since version 5.
    """
    return _TensorCLIP(clip), _CLIPInputs(clip)


class _TensorCLIP(nn.Module):
    def __init__(self, clip: CLIPFeatures) -> None:
        super().__init__()
        self.model = clip.model
        self.config = clip.model.config

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        return _unit(self.model.get_image_features(pixel_values=pixel_values))

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return _unit(self.model.get_text_features(input_ids=input_ids, attention_mask=attention_mask))


class _CLIPInputs:
    def __init__(self, clip: CLIPFeatures) -> None:
        self.clip = clip

    def __call__(self, images: Any = None, text: Any = None, **_: Any) -> Any:
        if images is not None:
            pictures = [to_image(picture) for picture in images]
            return self.clip.image_processor(pictures, return_tensors="pt")
        length = self.clip.model.config.text_config.max_position_embeddings
        return self.clip.tokenizer(text, padding=True, truncation=True, max_length=length, return_tensors="pt")
