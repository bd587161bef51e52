"""The protocol of an architecture, and the parts that all of them have alike.

Belongs here: the questions, answered as most of transformers' Video-LLMs do. Does not belong here: any of them (one
file each, beside this one), and the list (`catalogue.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class VideoFeatures:
    """What a vision tower makes of a video with m visual tokens.

    Attributes:
        embeds: [m, dim], in the order of the prompt's visual tokens; they take the place of these tokens' embeddings.
        deepstack: [m, dim] each: what is added to the hidden states of these tokens after the first decoder layer, the
            second, and so on (DeepStack, arXiv 2406.04334); empty where the architecture has none.
    """

    embeds: Tensor
    deepstack: tuple[Tensor, ...] = ()


class Architecture:
    """An architecture with plain positions, whose video is one span of the prompt, as transformers lays it out."""

    model_type: ClassVar[str]
    """In config.json."""
    title: ClassVar[str]
    """What people call it."""
    layers: ClassVar[Mapping[str, str]]
    """The module of transformers and the beginning of the names of its classes, by the type of the text model:
    `PREFIXDecoderLayer`, `PREFIXRotaryEmbedding`; the configuration is `AutoConfig`'s."""
    num_axes: ClassVar[int] = 1
    """A: axes of positions, 3 for M-RoPE (time, height, width)."""
    num_separators: ClassVar[int] = 0
    """Visual tokens at the end that show nothing."""
    resizes: ClassVar[bool] = False
    """Whether frames keep their shape, so that the number of their pixels can be chosen."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What the processor must give beside token ids and pixels; without it the model silently takes something else."""

    def decoder(self, model: Any) -> Any:
        """The text model without its head, with `layers`: what `TransformersTarget` calls so."""
        return model.model.language_model

    def output_head(self, model: Any) -> Any:
        """The layer that gives logits of hidden states."""
        return model.lm_head

    def is_visual(self, config: Any, input_ids: Tensor) -> Tensor:
        """bool like `input_ids`: tokens that stand for the video, in one span or several."""
        return input_ids == config.video_token_id

    def frame_size(self, video_processor: Any, max_pixels: int, num_frames: int) -> dict[str, int]:
        """A video processor's `size` for frames of at most so many pixels each.

        Raises:
            UserError: frames have one size whatever they show.
        """
        if not self.resizes:
            raise UserError(f"max_pixels cannot be used with {self.title}, whose frames have one size; leave it out")
        fewest = int(video_processor.size["shortest_edge"])
        return {"shortest_edge": min(fewest, max_pixels), "longest_edge": max_pixels}

    def encode(self, model: Any, inputs: Mapping[str, Tensor]) -> VideoFeatures:
        """What the vision tower makes of the video in a processor's inputs."""
        raise NotImplementedError

    def positions(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """[A, 1, T] int64 of the prompt's tokens, and the position of the first generated one, as `generate` has it."""
        import torch

        input_ids = inputs["input_ids"]
        length = input_ids.shape[1]
        return torch.arange(length, device=input_ids.device)[None, None], length
