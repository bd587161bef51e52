"""Small Video-LLMs with fresh weights: transformers' own class, sizes from a configuration.

Belongs here: turning sizes into transformers' configurations. Does not belong here: training, processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from scenes.models.processor import IMAGE, VIDEO, VISION_END, VISION_START
from vargen.base.options import Settings, check_options, option
from vargen.training.config import check


@dataclass
class TowerConfig:
    """Sizes of an encoder of pictures or captions, named as in transformers."""

    hidden_size: int = option(128, least=1)
    """Width of a block, a multiple of `num_attention_heads`."""
    intermediate_size: int = option(256, least=1)
    """Width inside the feed-forward part."""
    num_hidden_layers: int = option(4, least=1)
    """Number of blocks."""
    num_attention_heads: int = option(4, least=1)
    """Number of heads."""

    def __post_init__(self) -> None:
        check_options(self)
        width, heads = self.hidden_size, self.num_attention_heads
        check(width % heads == 0, "num_attention_heads", heads, f"must divide hidden_size {width}")


@dataclass
class TextModelConfig:
    """Sizes of the language model, named as in transformers."""

    hidden_size: int = option(192, least=1)
    """Width of a block, a multiple of twice `num_attention_heads`."""
    intermediate_size: int = option(384, least=1)
    """Width inside the feed-forward part."""
    num_hidden_layers: int = option(8, least=1)
    """Number of blocks."""
    num_attention_heads: int = option(6, least=1)
    """Number of heads of the queries."""
    num_key_value_heads: int = option(2, least=1)
    """Number of heads of the keys and values."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass
class VideoLLMConfig(Settings):
    """A Video-LLM.

    Raises:
        ValueError: sizes that do not divide.
    """

    image_size: int = option(96, least=1)
    """Side of a frame in pixels."""
    patch_size: int = option(8, least=1)
    """Side of a patch; four patches make one visual token."""
    num_frames: int = option(8, least=4)
    """Frames of a video in training."""
    text: TextModelConfig = option(TextModelConfig)
    """Sizes of the language model."""
    vision: TowerConfig = option(TowerConfig)
    """Sizes of the vision tower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % (2 * self.patch_size):
            raise ValueError(f"image_size: {self.image_size} must be a multiple of twice patch_size {self.patch_size}")
        if self.num_frames % 2:
            raise ValueError(f"num_frames: {self.num_frames} must be an even number")
        for name, tower in (("text", self.text), ("vision", self.vision)):
            if tower.hidden_size % (2 * tower.num_attention_heads):
                raise ValueError(
                    f"{name}.hidden_size: {tower.hidden_size} must be a multiple of twice {name}.num_attention_heads "
                    f"{tower.num_attention_heads}"
                )

    @property
    def grid_size(self) -> int:
        """Visual tokens across a frame."""
        return self.image_size // (2 * self.patch_size)


def build_model(config: VideoLLMConfig, tokenizer: PreTrainedTokenizerBase) -> Any:
    """A model with fresh weights.

    Args:
        config: its sizes.
        tokenizer: of `build_processor`; decides the vocabulary and the special tokens.
    """
    tokens = {"image": IMAGE, "video": VIDEO, "vision_start": VISION_START, "vision_end": VISION_END}
    ids: dict[str, Any] = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(each) for name, each in tokens.items()}
    text: dict[str, Any] = {
        **vars(config.text),
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    half = config.text.hidden_size // config.text.num_attention_heads // 2
    across = (3 * half) // 8  # shares of time, height and width as in the published models: 2 / 3 / 3 of 8
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [half - 2 * across, across, across]}
    vision = {
        "depth": config.vision.num_hidden_layers,
        "hidden_size": config.vision.hidden_size,
        "intermediate_size": config.vision.intermediate_size,
        "num_heads": config.vision.num_attention_heads,
        "out_hidden_size": config.text.hidden_size,
        "patch_size": config.patch_size,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": config.image_size,  # the vision tower attends to whole frames
        "fullatt_block_indexes": [],
        "tokens_per_second": 2,
    }
    model: Any = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={**text, "rope_parameters": rope, "use_sliding_window": False},
            vision_config=vision,
            tie_word_embeddings=True,
            **ids,
        )
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = None
    return model
