"""Tiny random Video-LLMs of both architectures, and requests about random videos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

VOCAB, IMAGE, VIDEO, VISION_START, VISION_END, END = 300, 290, 291, 292, 293, 2
ARCHITECTURES = ("qwen2_5_vl", "llava_onevision")
FRAMES = 4


def sharpen(model: Any, factor: float = 4.0) -> Any:
    """Fresh weights are so small that greedy decoding repeats one token whatever it is shown."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(factor)
    return model.eval().requires_grad_(False)


def build_model(architecture: str, seed: int = 0, num_layers: int = 3) -> Any:
    torch.manual_seed(seed)
    text: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": END,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if architecture == "qwen2_5_vl":
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
        config: Any = Qwen2_5_VLConfig(
            text_config={**text, "rope_parameters": rope, "use_sliding_window": False},
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "patch_size": 4,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "window_size": 16,
                "fullatt_block_indexes": [1],
                "tokens_per_second": 2,
            },
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=VISION_START,
            vision_end_token_id=VISION_END,
        )
        return sharpen(Qwen2_5_VLForConditionalGeneration(config))
    config = LlavaOnevisionConfig(
        text_config={**text, "model_type": "qwen2"},
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "vision_use_head": False,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )
    return sharpen(LlavaOnevisionForConditionalGeneration(config))


def build_inputs(architecture: str, seed: int = 0, question_length: int = 6) -> dict[str, Tensor]:
    """What the processor of a model would give for a random video and question."""
    generator = torch.Generator().manual_seed(seed)
    question = torch.randint(3, 280, (question_length,), generator=generator).tolist()
    if architecture == "qwen2_5_vl":
        time, height, width = FRAMES, 8, 4
        count = time * height * width // 4
        video: dict[str, Tensor] = {
            "pixel_values_videos": torch.randn(time * height * width, 3 * 2 * 4 * 4, generator=generator),
            "video_grid_thw": torch.tensor([[time, height, width]]),
            "second_per_grid_ts": torch.tensor([1.0]),
        }
    else:
        count = FRAMES * 4 + 1
        video = {"pixel_values_videos": torch.randn(1, FRAMES, 3, 32, 32, generator=generator)}
    ids = torch.tensor([[5, 6, VISION_START, *[VIDEO] * count, VISION_END, *question]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **video}
    if architecture == "qwen2_5_vl":
        inputs["mm_token_type_ids"] = 2 * (ids == VIDEO).int()
    return inputs


@pytest.fixture(scope="session", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def models() -> Callable[..., Any]:
    """`models(architecture, seed, num_layers)`, each built once; they must stay as they are."""
    built: dict[tuple[Any, ...], Any] = {}

    def get(architecture: str, seed: int = 0, num_layers: int = 3) -> Any:
        key = (architecture, seed, num_layers)
        if key not in built:
            built[key] = build_model(architecture, seed, num_layers)
        return built[key]

    return get


@pytest.fixture(scope="session")
def inputs_of() -> Callable[..., dict[str, Tensor]]:
    """`inputs_of(architecture, seed, question_length)`."""
    return build_inputs
