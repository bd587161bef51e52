"""Training a vertical branch on a tiny model's own pictures: it sees what drawing sees, learns, and resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cheap_training import PICTURE_STEPS

from scenes.cases import scene_prompts
from vargen.base.errors import UserError
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.vertical_branch import VerticalBranch
from vargen.models.model_folder import check_component_folder
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.runs.files import read_jsonl
from vargen.training.pictures import Lessons
from vargen.training.teachers import teacher_of
from vargen.training.vertical import VerticalTask, VerticalTrainingConfig, train_vertical

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]
SIDE = 4


@pytest.fixture
def config(tmp_path: Path, tiny_model_folder: Path) -> VerticalTrainingConfig:
    return VerticalTrainingConfig(
        output=str(tmp_path / "vertical"),
        model=str(tiny_model_folder),
        sample_every=1000,
        num_threads=1,
        **PICTURE_STEPS,
    )


def test_it_learns_and_its_export_draws_diagonals(config: VerticalTrainingConfig, tiny_model_folder: Path) -> None:
    untrained = train_vertical(replace(config, steps=1, learning_rate=1e-9), scene_prompts).evaluation
    result = train_vertical(replace(config, output=config.output + "-longer"), scene_prompts)
    assert result.finished
    assert result.evaluation["guided_loss"] < untrained["guided_loss"] - 0.02
    for name in ("overlap", "overlap_first"):
        assert untrained[name] < result.evaluation[name] <= 1
    assert result.evaluation["overlap_alone"] == untrained["overlap_alone"]  # the model stays as it is
    export = Path(config.output + "-longer") / "export"
    check_component_folder(export, VerticalBranch)

    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    pipeline.set_progress_bar_config(disable=True)
    method = resolve_method("diagonal", {"vertical_branch": str(export)})
    alone, together = (
        pipeline(PROMPTS[:count], generator=[torch.Generator().manual_seed(row) for row in range(count)], method=method)
        for count in (1, 3)
    )
    assert alone.trace.target_passes == together.trace.target_passes == 2 * SIDE - 1
    assert torch.equal(alone.tokens[0], together.tokens[0])


@pytest.mark.parametrize("name", ["tiny_pipeline", "identity_pipeline"])
def test_training_sees_what_drawing_sees(
    request: pytest.FixtureRequest, config: VerticalTrainingConfig, name: str, tmp_path: Path
) -> None:
    """Under teacher forcing with greedily drawn tokens, the mixture's likeliest tokens are these tokens."""
    pipeline: LlamaGenPipeline = request.getfixturevalue(name)
    branch = VerticalBranch.beside(pipeline.transformer)
    generator = torch.Generator().manual_seed(1)
    for parameter in branch.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5, generator=generator)
    branch.save_pretrained(tmp_path / "branch")
    method = resolve_method("diagonal", {"vertical_branch": str(tmp_path / "branch")})
    tokens = pipeline(PROMPTS, method=method, temperature=0, output_type="latent").tokens
    lessons = Lessons(teacher_of(pipeline), PROMPTS, tokens, PROMPTS, tokens, {})
    task = VerticalTask(replace(config, initial_weights=str(tmp_path / "branch")), lessons)
    with torch.no_grad():
        mixture, alone, in_raster = (task.teacher.guided(each) for each in task.mixed(PROMPTS, tokens))
    assert torch.equal(mixture.argmax(-1), tokens[:, SIDE:])
    plain = pipeline(PROMPTS, method="ar", temperature=0, output_type="latent").tokens
    with torch.no_grad():
        _, _, in_raster = (task.teacher.guided(each) for each in task.mixed(PROMPTS, plain))
    assert torch.equal(in_raster.argmax(-1), plain[:, SIDE:])
    assert alone.shape == mixture.shape == (3, SIDE * (SIDE - 1), 24)


def test_the_second_stage_trains_the_model_and_exports_a_model_of_its_own(
    config: VerticalTrainingConfig, tiny_model_folder: Path
) -> None:
    before = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    first = Path(config.output + "-first")
    alone = train_vertical(replace(config, output=str(first)), scene_prompts).evaluation
    together = train_vertical(
        replace(config, model_rate=0.5, initial_weights=str(first / "export")), scene_prompts
    ).evaluation
    assert together["overlap_alone"] != alone["overlap_alone"]
    losses = [
        [each["guided"] for each in read_jsonl(folder / "log.jsonl") if "guided" in each]
        for folder in (first, Path(config.output))
    ]
    assert losses[1][-1] < losses[0][-1] - 0.1
    export = Path(config.output) / "export"
    pipeline = LlamaGenPipeline.from_pretrained(export)
    pipeline.set_progress_bar_config(disable=True)
    assert pipeline.config["default_guidance_scale"] == before.config["default_guidance_scale"]
    old, new = before.transformer.state_dict(), pipeline.transformer.state_dict()
    changed = {
        name.split(".")[0] for name, value in new.items() if not torch.equal(value, old[name].bfloat16().float())
    }
    assert changed == {"transformer_blocks", "norm_out"}
    assert pipeline(PROMPTS, method="diagonal", output_type="latent").trace.target_passes == 2 * SIDE - 1
    with pytest.raises(UserError, match="model_learns"):
        train_vertical(config, scene_prompts)


def test_the_second_stage_sees_what_its_model_draws(
    config: VerticalTrainingConfig, identity_pipeline: LlamaGenPipeline, tmp_path: Path
) -> None:
    identity_pipeline.transformer.to(torch.bfloat16).float()  # as the export, which is in bfloat16
    teacher = teacher_of(identity_pipeline)
    identity_pipeline.register_modules(drafter=teacher.new_head(None, ()))
    lessons = Lessons(teacher, PROMPTS, torch.zeros(3, SIDE**2).long(), [], torch.zeros(0), {})
    task = VerticalTask(replace(config, model_rate=0.2), lessons)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in task.module.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5, generator=generator)
                parameter.copy_(parameter.bfloat16())
    task.export(tmp_path / "export")
    pipeline = LlamaGenPipeline.from_pretrained(tmp_path / "export")
    assert pipeline.drafter is None  # it would no longer fit
    tokens = pipeline(PROMPTS, method="diagonal", temperature=0, output_type="latent").tokens
    with torch.no_grad():
        mixture, _, _ = (task.teacher.guided(each) for each in task.mixed(PROMPTS, tokens))
    likeliest = mixture.argmax(-1)
    assert torch.equal(likeliest, tokens[:, SIDE:]) and len(likeliest.unique()) > 1


def test_a_resumed_run_ends_with_the_same_weights(config: VerticalTrainingConfig, tmp_path: Path) -> None:
    config = replace(config, steps=6, feature_noise=0.1)
    train_vertical(replace(config, output=str(tmp_path / "a")), scene_prompts)
    loss = VerticalTask.loss

    def interrupted(self: VerticalTask, step: int, progress: float) -> object:
        if step == 3:
            raise KeyboardInterrupt
        return loss(self, step, progress)

    stopping = replace(config, output=str(tmp_path / "b"), checkpoint_seconds=1e-9)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(VerticalTask, "loss", interrupted)
        train_vertical(stopping, scene_prompts)
    train_vertical(stopping, scene_prompts)
    left, right = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["module"] for name in "ab")
    assert all(torch.equal(value, right[name]) for name, value in left.items())
    with pytest.raises(UserError, match="gate_size"):
        train_vertical(replace(stopping, gate_size=8), scene_prompts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate_size": 0}, "gate_size: 0 must be above zero"),
        ({"guided_loss_weight": 0.0, "token_loss_weight": 0.0}, "leaves no loss at all"),
        ({"guided_loss_weight": -1.0}, "guided_loss_weight"),
        ({"num_images": 8}, "must exceed evaluation_size"),
        ({"model_rate": 1.5}, "model_rate: 1.5 must lie between 0 and 1"),
    ],
)
def test_wrong_fields_are_named(config: VerticalTrainingConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(config, **change)


def test_models_that_cannot_have_a_branch_are_refused(
    config: VerticalTrainingConfig, tiny_pipeline: LlamaGenPipeline, tiny_class_model_folder: Path
) -> None:
    with pytest.raises(UserError, match="not text-conditional"):
        train_vertical(replace(config, model=str(tiny_class_model_folder)), scene_prompts)
    lessons = Lessons(teacher_of(tiny_pipeline), PROMPTS, torch.zeros(3, 16).long(), [], torch.zeros(0, 16).long(), {})
    with pytest.raises(UserError, match="feature_layer: 2 must be at least 1 and below 2, the model's layers"):
        VerticalTask(replace(config, feature_layer=2), lessons)
    with pytest.raises(UserError, match="model must be a LlamaGen"):
        VerticalTask(config, replace(lessons, teacher=object()))  # type: ignore[arg-type]
