"""What `LlamaGenPipeline` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import PIL.Image
import torch
from diffusers.utils import BaseOutput

from specdecode.trace import DecodeTrace


@dataclass
class LlamaGenPipelineOutput(BaseOutput):
    """Pictures, the tokens they are made of, and what they cost.

    Args:
        images: as `output_type` asks: "pil" a list of B images, "np" float32 [B, H, W, 3] in [0, 1], "pt" float32
            [B, 3, H, W] in [0, 1], "latent" int64 [B, grid, grid] codes. Images of one prompt follow each other.
        tokens: int64 [B, grid * grid] codes in raster order, whatever `output_type` is.
        trace: target passes (the prefill is one), and seconds by phase: "encode_prompt", "prefill", "decode" and
            "decode_images".
    """

    images: list[PIL.Image.Image] | np.ndarray | torch.Tensor
    tokens: torch.Tensor
    trace: DecodeTrace
