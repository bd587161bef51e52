"""How much of a model's context a video takes, said before anybody waits for it, and refused where it is too much.

Belongs here: counting tokens and the memory of their keys and values, from a configuration and a processor's output.
Does not belong here: how frames are chosen (`frames.py`), running a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vargen.base.errors import UserError
from vargen.video.models.architectures.catalogue import find_architecture


@dataclass(frozen=True)
class ContextUse:
    """What a prompt about a video takes.

    Args:
        num_frames: that the model is shown.
        visual_tokens, prompt_tokens: of the prompt, the former among the latter.
        limit: tokens that the model reads at once.
        num_axes: of its positions.
        bytes_per_token: of keys and values of all layers.
    """

    num_frames: int
    visual_tokens: int
    prompt_tokens: int
    limit: int
    num_axes: int
    bytes_per_token: int

    @classmethod
    def of(cls, config: Any, inputs: Mapping[str, Tensor], num_frames: int, bytes_per_number: int) -> ContextUse:
        """The use of a request that a processor has made.

        Args:
            config: transformers' configuration of the model.
            inputs: with `input_ids` [1, T].
            num_frames: that were given to the processor.
            bytes_per_number: of the model's precision.
        """
        architecture, text = find_architecture(config.model_type), config.get_text_config()
        heads = int(text.num_attention_heads)
        head_dim = getattr(text, "head_dim", None) or int(text.hidden_size) // heads
        numbers = 2 * int(text.num_hidden_layers) * int(getattr(text, "num_key_value_heads", None) or heads) * head_dim
        return cls(
            num_frames=num_frames,
            visual_tokens=int(architecture.is_visual(config, inputs["input_ids"]).sum()),
            prompt_tokens=int(inputs["input_ids"].shape[1]),
            limit=int(text.max_position_embeddings),
            num_axes=architecture.num_axes,
            bytes_per_token=numbers * bytes_per_number,
        )

    def __str__(self) -> str:
        size = self.prompt_tokens * self.bytes_per_token
        told = f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.1f} MiB"
        frames = "1 frame" if self.num_frames == 1 else f"{self.num_frames:,} frames"
        return f"{frames}, {self.visual_tokens:,} visual tokens; keys and values of the prompt take {told}"

    def check(self, max_new_tokens: int) -> None:
        """Refuse a prompt and an answer that are longer than the model's context.

        Where positions have three axes a video takes fewer positions than tokens, so there the answer need not fit in.

        Raises:
            UserError: what is too long, and the setting that mends it.
        """
        answer = max_new_tokens if self.num_axes == 1 else 0
        if self.prompt_tokens + answer <= self.limit:
            return
        beside = self.prompt_tokens - self.visual_tokens
        frames = self.num_frames * max(0, self.limit - beside - max_new_tokens) // max(1, self.visual_tokens)
        remedy = f"give num_frames {frames} or fewer, a lower fps" if frames else "give fewer frames (num_frames, fps)"
        also = "" if self.num_axes == 1 else ", or max_pixels"
        raise UserError(
            f"video: {self.num_frames:,} frames are {self.visual_tokens:,} visual tokens, more than the context of "
            f"{self.limit:,} tokens leaves beside question and answer; {remedy}{also}"
        )
