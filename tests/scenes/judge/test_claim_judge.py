"""Rankers on pictures whose truth is known."""

from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image, ImageFilter
from refusals import refused

from scenes.captions.picture_captions import compose_caption
from scenes.judge import claim_judge
from scenes.judge.claim_judge import ClaimJudge, JudgeRanker
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import sample_scene
from vargen.base.resources import shipped_clip
from vargen.drawing.sheet import to_pil
from vargen.jobs.cases import fitting_judge
from vargen.jobs.ranking import ClipScorer, best

SCENES = [sample_scene(seed, "heldout") for seed in range(3_000_000_100, 3_000_000_112)]
IMAGES = to_pil(SceneRenderer(128)(SCENES).images)
PROMPTS = [compose_caption(scene, 0).text for scene in SCENES]


def test_rankers_find_the_picture_that_a_sentence_is_about():
    for ranker in (JudgeRanker(128), ClipScorer(shipped_clip())):
        ranker.check(PROMPTS)
        chosen = [best(ranker.score(IMAGES, [prompt] * len(IMAGES))) for prompt in PROMPTS]
        assert sum(place == number for number, place in enumerate(chosen)) >= 9, (type(ranker).__name__, chosen)


def test_larger_pictures_are_read_at_the_size_of_the_judge():
    larger = to_pil(SceneRenderer(256)(SCENES[:4]).images)
    for prompt in PROMPTS[:4]:
        at_128 = JudgeRanker(128).score(IMAGES[:4], [prompt] * 4)
        assert JudgeRanker(256).score(larger, [prompt] * 4) == pytest.approx(at_128, abs=0.2)
    refused("the judge reads pictures of 128 pixels or more, the model makes 64", JudgeRanker, 64)


def test_a_model_of_the_scene_world_has_a_judge_unless_its_pictures_are_too_small():
    for side, has_one in ((64, False), (128, True), (256, True)):
        model: Any = SimpleNamespace(draws_scenes=True, image_size=side)
        assert (fitting_judge(model, ClaimJudge) is not None) == has_one


def test_of_pictures_that_are_right_the_plainest_comes_first():
    number = next(number for number, scene in enumerate(SCENES) if len(scene.objects) == 1)
    item = SCENES[number].objects[0]
    faint = Image.blend(IMAGES[number], IMAGES[number].filter(ImageFilter.GaussianBlur(25)), 0.4)
    plain, doubtful = JudgeRanker(128).score([IMAGES[number], faint], [f"a {item.colour} {item.shape}"] * 2)
    assert plain > doubtful > plain - 0.5 / 3


def test_a_score_is_the_share_of_right_claims_less_half_a_claim_of_doubt(monkeypatch):
    """The least sure of the objects that were found decides, and as many objects are expected as are named."""
    seen = SimpleNamespace(objects=[SimpleNamespace(confidence=c, certainty=s) for c, s in ((1.0, 0.8), (0.5, 0.9))])
    checks = [SimpleNamespace(right=right) for right in (True, True, False, True)]
    expected: list[int] = []

    def judged(reading: object, claims: object, object_count: int) -> SimpleNamespace:
        expected.append(object_count)
        return SimpleNamespace(match=[0, 1, None], checks=checks)

    ranker = JudgeRanker(128)
    monkeypatch.setattr(claim_judge, "read_images", lambda *_: [seen])
    monkeypatch.setattr(claim_judge, "judge_claims", judged)
    (score,) = ranker.score(IMAGES[:1], ["a red cube left of a blue sphere"])
    assert score == pytest.approx((3 - (1 - 0.45) / 2) / 4) and expected == [2]
