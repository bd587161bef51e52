"""Qwen2.5-VL (arXiv 2502.13923): as Qwen2-VL, with positions in time that are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from vargen.video.models.architectures.qwen2_vl import Qwen2VL


class Qwen25VL(Qwen2VL):
    """`Qwen2_5_VLForConditionalGeneration`."""

    model_type: ClassVar[str] = "qwen2_5_vl"
    title: ClassVar[str] = "Qwen2.5-VL"
    layers: ClassVar[Mapping[str, str]] = {"qwen2_5_vl_text": "qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VL"}
    needs: ClassVar[tuple[str, ...]] = (*Qwen2VL.needs, "second_per_grid_ts")
