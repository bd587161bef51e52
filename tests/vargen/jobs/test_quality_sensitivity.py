"""With the shipped CLIP, each way of spoiling pictures moves the figure that should notice it, the right way."""

from typing import Any

import pytest
import torch
from torch import Tensor

from metrics.extractors import CLIPFeatures
from metrics.frechet import GaussianStatistics
from metrics.protocol import Protocol
from metrics.quality import Reference, score_pictures
from scenes.cases import PromptCase, sample_prompts
from scenes.rendering.renderer import SceneRenderer
from scenes.training.judge import gaussian_blur
from vargen.base.resources import shipped_clip

COUNT = 160
PROTOCOL = Protocol("scenes", extractor="clip", manifold_extractor="clip", resizer="none")


def render(cases: list[PromptCase]) -> Tensor:
    return SceneRenderer(128)([case.scene for case in cases]).images


class World:
    """Renders of one set of scenes as pictures, of another as the reference."""

    def __init__(self) -> None:
        self.clip = CLIPFeatures(shipped_clip())
        self.cases, others = sample_prompts(COUNT, seed=0), sample_prompts(COUNT, seed=100_000)
        self.images = render(self.cases)
        features = self.features(render(others))
        self.reference = Reference(GaussianStatistics.of(features), features)
        self.texts = [case.caption.text for case in self.cases]
        self.clean = self.score(self.images)

    def features(self, images: Tensor) -> Tensor:
        return self.clip((images.clamp(0, 1) * 255).round().to(torch.uint8))

    def score(self, images: Tensor, texts: list[str] | None = None) -> dict[str, float]:
        captions = self.clip.encode_text(texts or self.texts)
        scores: dict[str, Any] = score_pictures(PROTOCOL, {"clip": self.features(images)}, self.reference, captions, 0)
        return {name: figure["value"] for name, figure in scores.items()}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_renders_are_close_to_renders(world):
    assert world.clean["precision"] > 0.75 and world.clean["recall"] > 0.75


@pytest.mark.parametrize("strength", [0.2, 0.4])
def test_noise_is_noticed(world, strength):
    noise = torch.randn(world.images.shape, generator=torch.Generator().manual_seed(0))
    noisy = world.score(world.images + strength * noise)
    assert noisy["frechet_distance"] > 1.3 * world.clean["frechet_distance"]
    assert noisy["clip_score"] < world.clean["clip_score"]
    assert noisy["precision"] < world.clean["precision"]


def test_blur_is_noticed_and_more_of_it_more(world):
    little, much = (world.score(gaussian_blur(world.images, sigma)) for sigma in (1.5, 4.0))
    distances = [each["frechet_distance"] for each in (world.clean, little, much)]
    assert distances == sorted(distances) and distances[2] > 2 * distances[0]
    assert much["clip_score"] < world.clean["clip_score"]


def test_dropped_modes_cost_recall_and_diversity(world):
    few = world.images[: COUNT // 8].repeat(8, 1, 1, 1)
    dropped = world.score(few)
    assert dropped["recall"] < 0.5 * world.clean["recall"]
    assert dropped["frechet_distance"] > 1.3 * world.clean["frechet_distance"]
    assert dropped["diversity"] < world.clean["diversity"]


def test_swapped_captions_are_noticed_by_the_clip_score_alone(world):
    swapped = world.score(world.images, world.texts[1:] + world.texts[:1])
    assert swapped["clip_score"] < 0.7 * world.clean["clip_score"]
    for name in ("frechet_distance", "precision", "recall", "diversity"):
        assert swapped[name] == world.clean[name]


def test_one_wrong_attribute_is_noticed_by_the_clip_score(world):
    """What a generator gets wrong. In captions that name one colour, another in its place must score lower."""
    colours = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "white")
    images, right, wrong = [], [], []
    for case, image in zip(world.cases, world.images, strict=True):
        named = [colour for colour in colours if f" {colour} " in f" {case.caption.text} "]
        if len(named) == 1:
            other = colours[(colours.index(named[0]) + 3) % len(colours)]
            images.append(image)
            right.append(case.caption.text)
            wrong.append(case.caption.text.replace(named[0], other))
    assert len(images) > 30
    features = world.features(torch.stack(images))
    better = (features * world.clip.encode_text(right)).sum(1) > (features * world.clip.encode_text(wrong)).sum(1)
    assert better.double().mean() > 0.8
