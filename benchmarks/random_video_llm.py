"""A Video-LLM of random weights, and a video for it: what benchmarks use that need sizes, and no answers.

The Qwen2.5-VL architecture, a class of transformers. What its vision tower would make is drawn at random.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

VOCAB, VIDEO = 1000, 991


def build_model(layers: int, heads: int, key_value_heads: int, head_dim: int, intermediate_size: int) -> Any:
    """In float32, in evaluation mode. `head_dim` is divisible by 16."""
    torch.manual_seed(0)
    width, eighth = heads * head_dim, head_dim // 8
    text = {
        "vocab_size": VOCAB, "hidden_size": width, "intermediate_size": intermediate_size, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": key_value_heads, "max_position_embeddings": 65_536,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6,
            "mrope_section": [eighth, 3 * eighth // 2, 3 * eighth // 2],
        },
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": width,
        "patch_size": 4, "fullatt_block_indexes": [0],
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=990, video_token_id=VIDEO, vision_start_token_id=992
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval().requires_grad_(False)


def video_inputs(visual_tokens: int) -> dict[str, Tensor]:
    """What a processor would give for a video of so many visual tokens, a multiple of 100, and a question."""
    ids = torch.tensor([[1, 2, 992, *[VIDEO] * visual_tokens, *range(3, 20)]])
    return {
        "input_ids": ids,
        "mm_token_type_ids": 2 * (ids == VIDEO).int(),
        "video_grid_thw": torch.tensor([[visual_tokens // 100, 20, 20]]),
        "second_per_grid_ts": torch.tensor([1.0]),
        "pixel_values_videos": torch.zeros(1),
    }
