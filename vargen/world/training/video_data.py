"""Videos of the scene world as training samples: pixels, what stands where in them, and conversations about them.

Belongs here: rendering, cutting into patches, and numbering words. Does not belong here: any model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vargen.training.video_source import VideoBatch
from vargen.video.frames import CAPTION_PROMPTS
from vargen.world.captions.languages import find_language, language_of
from vargen.world.scenes.renderer import SceneRenderer
from vargen.world.scenes.video import VideoScene
from vargen.world.training.grounding import cell_attributes

IGNORED = -100
"""Label of a token that is not to be predicted."""

PLACES = ("step", "column", "row")
"""What is told of where a visual token stands: in time, and in the frame."""


class RenderedVideoSource:
    """Videos from `vargen.world.scenes`, of those that are told in plain or in written captions, rendered on `device`.

    Raises:
        UserError: an unknown language, or too few frames for it.
    """

    def __init__(self, image_size: int, num_frames: int, device: torch.device, captions: str = "plain") -> None:
        self.num_frames = num_frames
        self.language = find_language(captions, num_frames)
        self.renderer = SceneRenderer(image_size, device=device)

    @torch.no_grad()
    def __call__(self, first_seed: int, count: int, split: str) -> VideoBatch:
        videos = [self.language.sample(seed, self.num_frames, split) for seed in range(first_seed, first_seed + count)]
        images = self.renderer([frame for video in videos for frame in video.frames]).images
        return VideoBatch(videos, images.unflatten(0, (count, self.num_frames)))


def qwen_patches(frames: Tensor, patch_size: int) -> tuple[Tensor, Tensor]:
    """What `Qwen2VLVideoProcessor` makes of frames that have the right size already, for a whole batch at once.

    Args:
        frames: [B, F, 3, size, size] float in [0, 1], F even.

    Returns:
        `pixel_values_videos` [B * patches, 3 * 2 * patch_size^2] and `video_grid_thw` [B, 3] int64.
    """
    batch_size, num_frames, channels, _, size = frames.shape
    across = size // (2 * patch_size)
    parts = (frames * 2 - 1).view(
        *(batch_size, num_frames // 2, 2, channels), across, 2, patch_size, across, 2, patch_size
    )
    patches = parts.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(-1, channels * 2 * patch_size**2)
    grid = torch.tensor([[num_frames // 2, 2 * across, 2 * across]]).expand(batch_size, 3)
    return patches, grid.contiguous()


def grounding_targets(videos: Sequence[VideoScene], steps: Sequence[int], grid_size: int) -> dict[str, Tensor]:
    """Which object each visual token shows.

    Args:
        videos: B videos.
        steps: numbers of the frames that the visual tokens show, S of them.
        grid_size: visual tokens across a frame.

    Returns:
        By attribute, [B, S * grid_size^2] int64 classes, see `vargen.world.training.grounding.cell_attributes`.
    """
    cells = cell_attributes([video.frames[step] for video in videos for step in steps], grid_size)
    return {name: target.view(len(videos), -1) for name, target in cells.items()}


def place_targets(num_steps: int, grid_size: int) -> dict[str, Tensor]:
    """By name, [num_steps * grid_size^2] int64: where each visual token stands."""
    axes = torch.meshgrid(*(torch.arange(size) for size in (num_steps, grid_size, grid_size)), indexing="ij")
    step, row, column = (axis.flatten() for axis in axes)
    return {"step": step, "column": column, "row": row}


class Conversations:
    """Numbered conversations about videos, as the processor's chat template lays them out.

    Args:
        tokenizer: of the processor.
        num_visual_tokens: of every video.
    """

    def __init__(self, tokenizer: Any, num_visual_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.num_visual_tokens = num_visual_tokens
        self._known: dict[str, list[int]] = {}

    def prompt(self, question: str) -> list[int]:
        """Everything before the answer to the first question, visual tokens included."""
        video = "<|vision_start|>" + "<|video_pad|>" * self.num_visual_tokens + "<|vision_end|>"
        return self._ids(f"<|im_start|>user {video}{question}<|im_end|><|im_start|>assistant ")

    def sample(self, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """Token ids and labels of a conversation; only answers and their ends are labelled."""
        ids: list[int] = []
        labels: list[int] = []
        for number, (question, answer) in enumerate(turns):
            asked = (
                self._ids(f"<|im_start|>user {question}<|im_end|><|im_start|>assistant ")
                if number
                else self.prompt(question)
            )
            answered = self._ids(f"{answer}<|im_end|>")
            ids += asked + answered
            labels += [IGNORED] * len(asked) + answered
        return ids, labels

    def about(self, video: VideoScene, seed: int, question_share: float) -> tuple[list[int], list[int]]:
        """A caption, or a few short questions in random order, by the share of the latter."""
        rng = random.Random(f"conversation-{video.seed}-{seed}")
        language = language_of(video)
        if rng.random() >= question_share:
            return self.sample([(rng.choice(CAPTION_PROMPTS), language.compose(video, seed).text)])
        questions = language.questions(video)
        return self.sample(rng.sample(questions, min(len(questions), 4)))

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[text] = self.tokenizer(text, add_special_tokens=False).input_ids
        return self._known[text]


def pad(samples: Sequence[tuple[list[int], list[int]]], padding: int) -> tuple[Tensor, Tensor]:
    """Token ids and labels [B, L] int64, filled up on the right with `padding` and `IGNORED`."""
    length = max(len(ids) for ids, _ in samples)
    ids = torch.full((len(samples), length), padding)
    labels = torch.full((len(samples), length), IGNORED)
    for row, (each_ids, each_labels) in enumerate(samples):
        ids[row, : len(each_ids)] = torch.tensor(each_ids)
        labels[row, : len(each_labels)] = torch.tensor(each_labels)
    return ids, labels
