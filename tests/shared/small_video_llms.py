"""Small Video-LLMs with a processor of the scenes' words: of the world's own architecture, and LLaVA-OneVision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
)

from scenes.models import architectures
from scenes.models.architectures import VideoLLMConfig
from scenes.models.processor import IMAGE, VIDEO, build_processor

ARCHITECTURES = ("qwen2_5_vl", "llava_onevision")


def build_video_llm(config: VideoLLMConfig, architecture: str = "qwen2_5_vl") -> tuple[Any, Any]:
    """A model with fresh weights, and its processor."""
    if architecture == "qwen2_5_vl":
        processor = build_processor(config.image_size, config.patch_size)
        return architectures.build_model(config, processor.tokenizer), processor
    processor = build_llava_processor(config.image_size, config.patch_size)
    tokenizer = processor.tokenizer
    text = {
        **vars(config.text), "model_type": "qwen2", "vocab_size": len(tokenizer), "max_position_embeddings": 4096,
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", **vars(config.vision), "image_size": config.image_size,
        "patch_size": config.patch_size, "vision_use_head": False,
    }  # fmt: skip
    model = LlavaOnevisionForConditionalGeneration(
        LlavaOnevisionConfig(
            text_config=text,
            vision_config=vision,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=True,
            image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
            video_token_id=tokenizer.convert_tokens_to_ids(VIDEO),
        )
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, processor


def build_talkative(config: VideoLLMConfig, architecture: str, seed: int = 0) -> tuple[Any, Any]:
    """The same, whose layers outweigh its embeddings: tied to them, a fresh model repeats the last word."""
    torch.manual_seed(seed)
    model, processor = build_video_llm(config, architecture)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "embed_tokens" not in name:
                parameter.mul_(8)
    return model, processor


def save_both(folder: Path, model: Any, processor: Any) -> None:
    """Into one folder."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def build_llava_processor(image_size: int, patch_size: int) -> Any:
    """A processor that resizes every frame to a square of `image_size` pixels."""
    own = build_processor(image_size, patch_size)
    size = {"height": image_size, "width": image_size}
    shared: dict[str, Any] = {"size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(**shared),
        tokenizer=own.tokenizer,
        video_processor=LlavaOnevisionVideoProcessor(**shared, do_sample_frames=False),
        num_image_tokens=(image_size // patch_size) ** 2,
        vision_feature_select_strategy="full",
        image_token=IMAGE,
        video_token=VIDEO,
        chat_template=own.chat_template,
    )
