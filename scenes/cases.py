"""Prompts, videos and reference pictures of this world, for the jobs of vargen.

Does not belong here: judging (`scenes.judge`), files (`scenes.dataset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import Tensor

from scenes.captions.picture_caption_parser import CaptionError, parse_caption
from scenes.captions.picture_captions import Caption, Claims, compose_caption
from scenes.rendering import camera
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import Scene, object_boxes, relation_between, sample_scene
from scenes.rendering.story import sample_story
from scenes.seeds import PROMPT_SEED, REFERENCE_SEED, VIDEO_SEED
from vargen.jobs.cases import BenchmarkCase
from vargen.runs.identity import digest
from vargen.video.jobs.cases import VideoCase
from vargen.video.models.frames import VideoFrames


@dataclass(frozen=True)
class PromptCase:
    """A scene and one of its captions."""

    scene: Scene
    caption: Caption

    @property
    def object_count(self) -> int | None:
        """How many objects the picture should show by common sense: all those named, if the scene has no others."""
        named = len(self.caption.claims.objects)
        return named if named == len(self.scene.objects) else None


def sample_prompts(
    count: int, seed: int = 0, split: str = "heldout", num_objects: int | None = None
) -> list[PromptCase]:
    """Captions of scenes that no training run has seen.

    Args:
        count: how many.
        seed: which ones; sets of different seeds may overlap, the same seed gives the same set.
        split: "heldout" for combinations that training never shows, "all" for any.
        num_objects: keep only scenes with so many objects, named by their captions one and all.
    """
    cases: list[PromptCase] = []
    scene_seed = PROMPT_SEED + seed
    while len(cases) < count:
        scene = sample_scene(scene_seed, split)
        case = PromptCase(scene, compose_caption(scene, scene_seed))
        if num_objects is None or case.object_count == len(scene.objects) == num_objects:
            cases.append(case)
        scene_seed += 1
    return cases


def scene_cases(count: int, seed: int = 0, split: str = "heldout") -> list[BenchmarkCase]:
    """Captions of scenes that training never showed, as `sample_prompts`, with what they claim."""
    return [
        BenchmarkCase(case.caption.text, claims=case.caption.claims, object_count=case.object_count, scene=case.scene)
        for case in sample_prompts(count, seed, split)
    ]


def renders(cases: Sequence[BenchmarkCase], side: int) -> list[Tensor]:
    """Pictures uint8 `[3, side, side]` of the scenes of composed captions."""
    return _levels([case.scene for case in cases], side)


def claims_within(case: BenchmarkCase, drawn: Tensor) -> Claims:
    """What a composed caption claims about the part bool `[H, W]` of its scene's picture: about objects whose middle
    lies there, about two such objects, and about ground and sky if the greater part of them lies there."""
    scene, claims, side = case.scene, case.claims, drawn.shape[-1]
    boxes = object_boxes(scene, side)
    middles = ((boxes[:, :2] + boxes[:, 2:]) / 2).long().clamp(0, side - 1).tolist()
    inside = [bool(drawn[row, column]) for column, row in middles]
    # The caption is true, so that each claimed object stands for one of the scene, in the claimed relations.
    match = max(
        (
            places
            for places in permutations(range(len(scene.objects)), len(claims.objects))
            if all(claim.matches(scene.objects[place]) for claim, place in zip(claims.objects, places, strict=True))
        ),
        key=lambda places: sum(
            each.relation in relation_between(scene.objects[places[each.subject]], scene.objects[places[each.object]])
            for each in claims.relations
        ),
    )
    kept = {number: place for place, number in enumerate(n for n, each in enumerate(match) if inside[each])}
    horizon = round(camera.horizon(side))
    return Claims(
        tuple(claims.objects[number] for number in kept),
        tuple(
            replace(each, subject=kept[each.subject], object=kept[each.object])
            for each in claims.relations
            if each.subject in kept and each.object in kept
        ),
        ground=claims.ground if drawn[horizon:].float().mean() > 0.5 else None,
        sky=claims.sky if drawn[:horizon].float().mean() > 0.5 else None,
    )


def _levels(scenes: Sequence[Scene], side: int) -> list[Tensor]:
    return list((SceneRenderer(side)(scenes).images.clamp(0, 1) * 255).round().to(torch.uint8))


def claims_of(prompt: str) -> Claims | None:
    """What a user's prompt claims about a scene; None where it describes no scene, so that it cannot be judged."""
    try:
        return parse_caption(prompt)
    except CaptionError:
        return None


def scene_video_cases(count: int, split: str, num_frames: int, image_size: int, seed: int = 0) -> list[VideoCase]:
    """Videos that training never showed. Raises UserError for too few frames."""
    renderer = SceneRenderer(image_size)
    videos = [sample_story(VIDEO_SEED + seed + number, num_frames, split) for number in range(count)]
    return [VideoCase(VideoFrames.from_frames(renderer(list(video.frames)).images), video) for video in videos]


@dataclass(frozen=True)
class RenderedReference:
    """Renders of held-out scenes.

    Args:
        count: how many.
        side: in pixels.
    """

    count: int
    side: int

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        """Pictures by number, uint8 `[3, side, side]`."""
        return _levels([sample_scene(REFERENCE_SEED + index, "heldout") for index in indices], self.side)

    def digest(self) -> str:
        """The same renders, the same digest."""
        return digest(["renders", self.count, self.side, REFERENCE_SEED])


def scene_prompts(first_seed: int, count: int, split: str = "train") -> list[str]:
    """Captions of consecutive scenes of the project's own world."""
    return [compose_caption(sample_scene(seed, split), seed).text for seed in range(first_seed, first_seed + count)]
