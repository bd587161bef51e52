"""Videos of the scene world as training samples: pixels, what stands where in them, and conversations about them.

Belongs here: rendering, cutting into patches, and numbering words. Does not belong here: any model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scenes.captions.story_captions import compose_written_caption, compose_written_questions
from scenes.rendering import camera
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import COLOURS, GROUNDS, SHAPES, SKIES
from scenes.rendering.story import Story, check_story_length, sample_story
from scenes.rendering.video import KINDS, LIGHTS
from scenes.training.grounding import GROUNDING, cell_attributes, cell_owners, told_by_owner
from vargen.video.models.frames import CAPTION_PROMPTS
from vargen.video.training.video_questions import VideoBatch

IGNORED = -100
"""Label of a token that is not to be predicted."""

VIDEO_GROUNDING = {**GROUNDING, "event": KINDS, "surface": (*GROUNDS, *SKIES), "light": LIGHTS}
"""What the grounding heads predict of what a visual token shows. Without `surface` and `light`, tokens without an
object became alike, and captions still guessed ground and sky after 34,000 videos."""

PLACES = ("step", "column", "row")
"""What the grounding heads predict of a visual token's position in time and frame."""

_NAME = re.compile(f"({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})")


class RenderedVideoSource:
    """Videos of `scenes.rendering.story`, rendered on `device`. Raises UserError for too few frames."""

    def __init__(self, image_size: int, num_frames: int, device: torch.device) -> None:
        check_story_length(num_frames)
        self.num_frames = num_frames
        self.renderer = SceneRenderer(image_size, device=device)

    @torch.no_grad()
    def __call__(self, first_seed: int, count: int, split: str) -> VideoBatch:
        videos = [sample_story(seed, self.num_frames, split) for seed in range(first_seed, first_seed + count)]
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


def grounding_targets(videos: Sequence[Story], steps: Sequence[int], grid_size: int) -> dict[str, Tensor]:
    """What each visual token shows.

    Args:
        videos: B videos.
        steps: numbers of the frames that the visual tokens show, S of them.
        grid_size: visual tokens across a frame.

    Returns:
        Classes int64 [B, S * grid_size^2] by name, 0 or one more than the place in `VIDEO_GROUNDING`: attributes and
        event of the object that a token shows, the ground or sky where it shows none, and the light everywhere.
    """
    scenes = [video.frames[step] for video in videos for step in steps]
    owners = cell_owners(scenes, grid_size)
    happenings = [happening for video in videos for happening in _happenings(video, steps)]
    surfaces, events, lights = (VIDEO_GROUNDING[name] for name in ("surface", "event", "light"))
    kinds = [
        [1 + events.index(here[name]) if (name := (item.colour, item.shape)) in here else 0 for item in scene.objects]
        for scene, here in zip(scenes, happenings, strict=True)
    ]
    behind = torch.empty_like(owners)
    num_sky = round(camera.horizon(grid_size))
    behind[:, :num_sky] = torch.tensor([1 + surfaces.index(scene.sky) for scene in scenes])[:, None, None]
    behind[:, num_sky:] = torch.tensor([1 + surfaces.index(scene.ground) for scene in scenes])[:, None, None]
    light = torch.tensor([1 + lights.index(video.light) for video in videos for _ in steps])
    told = {
        **cell_attributes(scenes, grid_size, owners),
        "event": told_by_owner(owners, kinds),
        "surface": behind * (owners == 0),
        "light": light[:, None, None].expand_as(owners).contiguous(),
    }
    return {name: target.view(len(videos), -1) for name, target in told.items()}


def _happenings(video: Story, steps: Sequence[int]) -> list[dict[tuple[str, str], str]]:
    """The event of each object in each frame, by the object's colour and shape before and after."""
    happenings: list[dict[tuple[str, str], str]] = [{} for _ in steps]
    colours = [item.colour for item in video.objects]
    for event in video.events:
        shape, before = video.objects[event.subject].shape, colours[event.subject]
        after = colours[event.subject] = event.colour or before
        for here, step in zip(happenings, steps, strict=True):
            # A token of two frames shows the later one, and what ended in the earlier one still.
            if event.first < step <= event.last + 1:
                here |= {(before, shape): event.kind, (after, shape): event.kind}
    return happenings


def place_targets(num_steps: int, grid_size: int) -> dict[str, Tensor]:
    """Where each visual token stands, int64 [num_steps * grid_size^2] by name."""
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
            turn = f"<|im_start|>user {question}<|im_end|><|im_start|>assistant "
            asked = self._ids(turn) if number else self.prompt(question)
            answered = self._ids(f"{answer}<|im_end|>")
            ids += asked + answered
            labels += [IGNORED] * len(asked) + answered
        return ids, labels

    def about(self, video: Story, seed: int, question_share: float) -> tuple[list[int], list[int], tuple[int, int]]:
        """A caption, or a few short questions in random order, by the share of the latter; and colour and shape of the
        object that the first of these names, as classes, zeros where it names none."""
        rng = random.Random(f"conversation-{video.seed}-{seed}")
        if rng.random() >= question_share:
            caption = compose_written_caption(video, seed)
            return *self.sample([(rng.choice(CAPTION_PROMPTS), caption.text)]), (0, 0)
        questions = compose_written_questions(video)
        asked = rng.sample(questions, min(len(questions), 4))
        named = _NAME.search(asked[0][0])
        found = (1 + COLOURS.index(named[1]), 1 + SHAPES.index(named[2])) if named else (0, 0)
        return *self.sample(asked), found

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
