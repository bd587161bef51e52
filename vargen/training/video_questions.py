"""Numbered questions about rendered videos or a user's own, whose answers a draft head learns from.

Belongs here: from a number to the processor's inputs for a video and a question. Does not belong here: answers
(`video_answers.py`), and sources of videos (`video_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from vargen.base.errors import UserError
from vargen.models.video_llms.architectures.base import Architecture
from vargen.models.video_llms.frames import CAPTION_PROMPTS, VideoFrames, processor_inputs
from vargen.pipelines.video.answering import sized_inputs
from vargen.training.video_source import AskedVideo, VideoSource


class Questions(Protocol):
    """Numbered questions.

    Attributes:
        split: "train" or "heldout".
        batch_size: questions that are answered at once.
        described: plain values that decide which questions these are.
    """

    @property
    def split(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def described(self) -> dict[str, Any]: ...

    def inputs(self, number: int) -> dict[str, Tensor]:
        """The processor's inputs for a question. Raises UserError if its video does not fit."""
        ...


@dataclass(frozen=True)
class VideoQuestions:
    """Questions about the videos of consecutive seeds, one question for each batch of videos.

    Args:
        processor: of the target.
        source: gives the videos.
        first_seed: of video 0.
        split: of the videos.
        batch_size: videos of one question; questions take turns.
        num_frames: frames of a video that are shown, evenly spread; None for all.
        settings: further values that decide the videos.
    """

    processor: Any
    source: VideoSource
    first_seed: int
    split: str
    batch_size: int
    num_frames: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def described(self) -> dict[str, Any]:
        """See `Questions`."""
        return {**self.settings, "first_seed": self.first_seed, "shown_frames": self.num_frames}

    def inputs(self, number: int) -> dict[str, Tensor]:
        """See `Questions`. Raises UserError if a video has fewer frames than must be shown."""
        frames = self.source(self.first_seed + number, 1, self.split).frames[0]
        if self.num_frames is not None:
            if self.num_frames > len(frames):
                raise UserError(
                    f"training_frames: {self.num_frames} must be at most num_frames, which is {len(frames)}"
                )
            frames = frames[(torch.arange(self.num_frames) * 2 + 1) * len(frames) // (2 * self.num_frames)]
        question = CAPTION_PROMPTS[number // self.batch_size % len(CAPTION_PROMPTS)]
        return processor_inputs(self.processor, VideoFrames.from_frames(frames), question)


@dataclass(frozen=True)
class ClipQuestions:
    """Questions about a user's own videos of any size and length.

    Args:
        processor: of the target.
        architecture: of the target.
        clips: videos with their questions.
        described: see `Questions`.
        split, batch_size: see `Questions`.
        max_pixels: the most pixels of a frame; None for the processor's own limit.
    """

    processor: Any
    architecture: Architecture
    clips: Sequence[AskedVideo]
    described: dict[str, Any]
    split: str
    batch_size: int
    max_pixels: int | None = None

    def inputs(self, number: int) -> dict[str, Tensor]:
        """See `Questions`. Raises UserError for a clip that cannot be read or does not fit."""
        clip = self.clips[number]
        try:
            return sized_inputs(self.processor, self.architecture, clip.frames, clip.question, self.max_pixels)
        finally:
            clip.forget()
