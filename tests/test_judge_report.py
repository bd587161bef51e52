"""Judging prompts: which prompts, which pictures, and that the figures are those of the pictures given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import judge_report as evaluation
import pytest
import torch
from diffusers import VQModel
from judge_report import SHEET_PROMPTS, draw_prompt_sheet, evaluate_judge, evaluate_prompts
from PIL import Image
from scene_truth import reading_from_scene
from torch import Tensor

from scenes.captions.picture_caption_parser import parse_caption
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.network import SceneJudge
from scenes.judge.picture_reading import Reading
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import is_heldout_combination
from scenes.training.judge import reconstruct
from vargen.base.errors import UserError
from vargen.models.llamagen.vq import vq_config


@pytest.fixture(scope="module")
def vqvae() -> VQModel:
    torch.manual_seed(0)
    return VQModel(
        **vq_config((8, 8, 8, 8), layers_per_block=1, latent_channels=8, num_vq_embeddings=16, norm_num_groups=2)
    ).eval()


class DrawingPipeline:
    """Draws the scene behind each prompt it knows, but the wrong one for prompts listed in `mistaken`."""

    def __init__(self, cases: list[PromptCase], vqvae: VQModel, mistaken: tuple[int, ...] = ()) -> None:
        self.vqvae = vqvae
        self.image_size = 64
        self.renderer = SceneRenderer(64)
        texts = [case.caption.text for case in cases]
        self.scenes = {
            text: cases[(index + 1) % len(cases) if index in mistaken else index].scene
            for index, text in enumerate(texts)
        }
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **arguments: Any) -> SimpleNamespace:
        self.calls.append(arguments)
        scenes = [self.scenes.get(text, next(iter(self.scenes.values()))) for text in arguments["prompt"]]
        return SimpleNamespace(images=self.renderer(scenes).images)


@pytest.fixture
def truthful_judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[SceneJudge]:
    """A judge that recognises any render or reconstruction of the scenes in hand by its nearest picture."""
    known: dict[str, Any] = {}

    def read(judge: SceneJudge, images: Tensor) -> list[Reading]:
        if not known:
            known["cases"] = sample_prompts(12)
            known["images"] = SceneRenderer(64)([case.scene for case in known["cases"]]).images.flatten(1)
        nearest = torch.cdist(images.flatten(1), known["images"]).argmin(1)
        return [reading_from_scene(known["cases"][index].scene) for index in nearest.tolist()]

    monkeypatch.setattr(evaluation, "read_images", read)
    yield SceneJudge(64, (4, 4, 4, 4))


def test_prompts_repeat_are_held_out_and_can_be_of_one_object() -> None:
    cases = sample_prompts(40, seed=3)
    assert cases == sample_prompts(40, seed=3) and cases != sample_prompts(40, seed=4)
    assert all(is_heldout_combination(case.scene) for case in cases)
    single = sample_prompts(20, split="all", num_objects=1)
    assert all(len(case.scene.objects) == len(case.caption.claims.objects) == 1 for case in single)
    assert not all(is_heldout_combination(case.scene) for case in single)


def test_true_pictures_are_right_and_false_ones_are_counted(vqvae: VQModel, truthful_judge: SceneJudge) -> None:
    cases = sample_prompts(12)
    pipeline = DrawingPipeline(cases, vqvae, mistaken=(2, 7, 8))
    report = evaluate_prompts(
        pipeline,
        truthful_judge,
        cases,
        batch_size=5,
        seed=100,
        guidance_scale=2.5,
    )
    wrong = [index for index, verdict in enumerate(report.verdicts) if not verdict.right]
    assert wrong == [2, 7, 8]
    assert report.tallies["generated"].share("prompt").accuracy == pytest.approx(9 / 12)
    assert report.tallies["renders"].share("prompt").accuracy == 1.0
    assert report.tallies["reconstructions"].share("prompt").total == 12
    assert report.seconds > 0
    assert {call["guidance_scale"] for call in pipeline.calls} == {2.5}
    seeds = [generator.initial_seed() for call in pipeline.calls for generator in call["generator"]]
    assert seeds == list(range(100, 112))
    with pytest.raises(UserError, match="batch_size"):
        evaluate_prompts(pipeline, truthful_judge, cases, batch_size=0)


def test_the_judge_alone_is_asked_for_everything(truthful_judge: SceneJudge) -> None:
    tallies = evaluate_judge(truthful_judge, None, 12, batch_size=5)
    assert set(tallies) == {"renders"}
    for kind in ("count", "shape", "colour", "material", "size", "relation", "ground", "sky", "prompt"):
        assert tallies["renders"].share(kind).accuracy == 1.0
    assert tallies["renders"].share("sky").total == 12


def test_reconstructions_are_in_range_and_do_not_depend_on_the_batch(vqvae: VQModel) -> None:
    images = SceneRenderer(64)([case.scene for case in sample_prompts(3)]).images
    whole, pieces = reconstruct(vqvae, images), reconstruct(vqvae, images, batch_size=2)
    assert torch.allclose(whole, pieces, atol=1e-5)
    assert whole.shape == images.shape and whole.min() >= 0 and whole.max() <= 1


def test_the_sheet_shows_every_prompt_of_the_world(vqvae: VQModel, tmp_path: Path) -> None:
    assert len(SHEET_PROMPTS) == 16
    for prompt in SHEET_PROMPTS:
        assert parse_caption(prompt).objects
    pipeline = DrawingPipeline(sample_prompts(1), vqvae)
    draw_prompt_sheet(pipeline, tmp_path / "docs" / "sheet.png", seed=5)
    (call,) = pipeline.calls
    assert call["prompt"] == list(SHEET_PROMPTS)
    assert [generator.initial_seed() for generator in call["generator"]] == list(range(5, 21))
    with Image.open(tmp_path / "docs" / "sheet.png") as sheet:
        assert sheet.width > 4 * 64
