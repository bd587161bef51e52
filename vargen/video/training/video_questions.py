"""Numbered questions about rendered videos or a user's own, and a Video-LLM's answers, which a draft head learns from.

Belongs here: sources of videos as protocols, from a number to the processor's inputs, and asking the model. Does not
belong here: keeping the answers (`answers.py`), the target's hidden states (`video_states.py`), and any renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vargen.training.answers import FILLER, keep_answers
from vargen.video.models.architectures.base import Architecture
from vargen.video.models.frames import VideoFrames
from vargen.video.models.generation_settings import stop_tokens
from vargen.video.pipelines.answering import sized_inputs


@dataclass(frozen=True)
class VideoBatch:
    """Videos and their frames.

    Attributes:
        videos: the truth of each, in the form of their source.
        frames: [B, F, 3, size, size] float in [0, 1].
    """

    videos: Sequence[Any]
    frames: Tensor


class VideoSource(Protocol):
    """Gives the videos of consecutive seeds."""

    def __call__(self, first_seed: int, count: int, split: str) -> VideoBatch: ...


@dataclass
class AskedVideo:
    """A question about a video, which is read when it is needed.

    Args:
        read: gives the frames that the model is shown. Raises UserError if they cannot be read.
        question: asked about it.
        path: of a user's video.
    """

    read: Callable[[], VideoFrames]
    question: str
    path: Path = Path()
    truth: Any = field(default=None, init=False)
    """Nothing to judge an answer by."""

    @cached_property
    def frames(self) -> VideoFrames:
        """The frames, read at the first use. Raises UserError if they cannot be read."""
        return self.read()

    def forget(self) -> None:
        """Free the memory of the frames."""
        self.__dict__.pop("frames", None)


def render(source: VideoSource, seed: int, split: str) -> VideoFrames:
    """The video of a seed."""
    return VideoFrames.from_frames(source(seed, 1, split).frames[0])


@dataclass(frozen=True)
class Questions:
    """Questions about videos of any size and length.

    Args:
        processor, architecture: of the target.
        videos: with their questions.
        described: plain values that decide which questions these are.
        split: "train" or "heldout".
        batch_size: questions that are answered at once.
        max_pixels: the most pixels of a frame; None for the processor's own limit.
    """

    processor: Any
    architecture: Architecture
    videos: Sequence[AskedVideo]
    described: dict[str, Any]
    split: str
    batch_size: int
    max_pixels: int | None = None

    def inputs(self, number: int) -> dict[str, Tensor]:
        """The processor's inputs for a question. Raises UserError for a video that cannot be read or does not fit."""
        asked = self.videos[number]
        try:
            return sized_inputs(self.processor, self.architecture, asked.frames, asked.question, self.max_pixels)
        finally:
            asked.forget()


def generate_answers(
    model: Any, questions: Questions, count: int, folder: Path, settings: dict[str, Any], max_new_tokens: int
) -> list[list[int]]:
    """The target's greedy answers to the first questions, at most `max_new_tokens` tokens each; see `keep_answers`."""
    settings = {**settings, "max_new_tokens": max_new_tokens}
    return keep_answers(
        lambda first, inputs: generate_batch(model, inputs, max_new_tokens), questions, count, folder, settings
    )


def generate_batch(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """Greedy answers by transformers' own loop: [B, n] int32, padded with -1.

    Questions of one shape are answered together, others in turn: some architectures answer differently after padding.
    """
    shapes = [tuple(value.shape for value in each.values()) for each in inputs]
    answers: list[Tensor] = [torch.empty(0, dtype=torch.int32)] * len(inputs)
    for shape in dict.fromkeys(shapes):
        rows = [row for row, own in enumerate(shapes) if own == shape]
        together = _generate_together(model, [inputs[row] for row in rows], max_new_tokens)
        for row, answer in zip(rows, together, strict=True):
            answers[row] = answer
    return pad_sequence(answers, batch_first=True, padding_value=FILLER)


def _generate_together(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """`generate_batch` for questions of one shape."""
    device = model.get_input_embeddings().weight.device
    batch = {name: torch.cat([each[name] for each in inputs]).to(device) for name in inputs[0]}
    length = batch["input_ids"].shape[1]
    tokens = model.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)[:, length:]
    ends = torch.tensor(stop_tokens(model), device=device)
    is_end = torch.isin(tokens, ends)
    behind = is_end.cumsum(1) - is_end.long() > 0
    return tokens.masked_fill(behind, FILLER).to("cpu", torch.int32)
