"""Training of a draft model on its target's answers: what it learns from, and what stays as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from noise_videos import FIRST_SEEDS, NoiseVideos, save_target, short_run
from refusals import refused
from small_video_llms import ARCHITECTURES
from tiny_video_llms import states_behind
from torch import Tensor

from vargen.training.run import RunResult
from vargen.video.models.request import keep_spread, keep_visual, prepare_request
from vargen.video.pipelines.answering import VideoAnswerer
from vargen.video.training.video_answers import open_target, rendered_questions, teachers
from vargen.video.training.video_draft_model import (
    VideoDraftModelTask,
    VideoDraftModelTrainingConfig,
    train_video_draft_model,
)


def build(folder: Path, architecture: str, layers: int, seed: int) -> Path:
    torch.manual_seed(seed)
    return save_target(folder, architecture, layers)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A target and a smaller model of each architecture."""
    made = {}
    for name in ARCHITECTURES:
        place = tmp_path_factory.mktemp(name)
        made[name] = build(place / "target", name, 2, 0), build(place / "draft", name, 1, 1)
    return made


@pytest.fixture(scope="module")
def pair(pairs: dict[str, tuple[Path, Path]]) -> tuple[Path, Path]:
    return pairs["qwen2_5_vl"]


def config_of(pair: tuple[Path, Path], folder: Path, **changes: Any) -> VideoDraftModelTrainingConfig:
    own = {"draft_model": str(pair[1]), "kept_shares": (0.5, 1.0), "learning_rate": 3e-3, "ema_decay": 0.0}
    values = {**short_run(pair[0], folder), **own}
    return VideoDraftModelTrainingConfig(**{**values, **changes})


def task_of(config: VideoDraftModelTrainingConfig) -> VideoDraftModelTask:
    answerer, fingerprint = open_target(config, config.draft_model)
    ask = rendered_questions(config, NoiseVideos(), FIRST_SEEDS)
    draft: Any = answerer.draft_model
    return VideoDraftModelTask(
        config, answerer.model, draft.load(), draft.found.folder, *teachers(config, answerer, fingerprint, ask)
    )


def run(config: VideoDraftModelTrainingConfig) -> RunResult:
    return train_video_draft_model(config, rendered_questions(config, NoiseVideos(), FIRST_SEEDS))


def alone(model: Any, inputs: dict[str, Tensor], answer: list[int], share: float, seed: int) -> Tensor:
    """[n, V] log probabilities at an answer's tokens, of one request by itself, in transformers' own words."""
    request = prepare_request(model, inputs)
    if share < 1:
        request = keep_visual(request, keep_spread(request, share, "random", seed))
    return model.lm_head(states_behind(model, request, answer)[request.length - 1 : -1]).log_softmax(-1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_batch_compares_what_each_answer_gives_alone(pairs, tmp_path, architecture, share):
    task = task_of(config_of(pairs[architecture], tmp_path))
    teacher, numbers = task.training, [4, 0, 1]
    said, wanted, answer = task._compare(teacher, numbers, share, "random", 7)
    assert answer.tolist() == [token for number in numbers for token in teacher.answers[number]]
    asked = [(teacher.questions.inputs(number), list(teacher.answers[number])) for number in numbers]
    drafted = [alone(task.draft_model, *each, share, 7 + row) for row, each in enumerate(asked)]
    torch.testing.assert_close(said, torch.cat(drafted), rtol=1e-4, atol=1e-4)
    targets = [alone(task.target, *each, 1.0, 0) for each in asked]
    torch.testing.assert_close(wanted, torch.cat(targets), rtol=1e-4, atol=1e-4)


def test_training_brings_it_to_the_targets_words_and_leaves_its_tower(pair, tmp_path):
    config = config_of(pair, tmp_path / "run", steps=60, kept_shares=(0.5,), evaluation_size=2)
    task = task_of(config)
    before = float(task.loss(0, 0.0)[0].detach())
    assert run(config).finished
    after = task_of(config_of((pair[0], tmp_path / "run" / "export"), tmp_path / "again", kept_shares=(0.5,)))
    assert float(after.loss(0, 0.0)[0].detach()) < 0.7 * before
    first, last = (VideoAnswerer.from_pretrained(str(each)).model for each in (pair[1], tmp_path / "run" / "export"))
    changed = {
        name
        for (name, old), new in zip(first.named_parameters(), last.parameters(), strict=True)
        if not torch.equal(old.bfloat16(), new.bfloat16())
    }
    assert any("language_model.layers" in name for name in changed)
    assert not any("visual" in name for name in changed)


def test_a_run_goes_on_where_it_was_and_no_other_does(pair, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steady = {"optimizer": "muon", "decay_start": 0.9}
    run(config_of(pair, whole, steps=3, **steady))
    run(config_of(pair, parts, steps=2, **steady))
    run(config_of(pair, parts, steps=3, **steady))
    one, other = (VideoAnswerer.from_pretrained(str(each / "export")).model.state_dict() for each in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    other = config_of((pair[0], whole / "export"), parts, steps=4, **steady)
    refused("output: .* a run with another draft_model", run, other)


def test_states_that_find_no_memory_are_worked_out_again(pair, tmp_path):
    roomy, tight = (task_of(config_of(pair, tmp_path, memory_gib=each)) for each in (4.0, 0.0))
    for step in range(2):
        torch.testing.assert_close(roomy.loss(step, 0.0)[0], tight.loss(step, 0.0)[0])
    assert not tight._shown
    assert roomy._shown


def test_a_model_whose_later_layers_read_the_video_is_refused(pair, tmp_path, monkeypatch):
    task = task_of(config_of(pair, tmp_path))
    monkeypatch.setattr(
        "vargen.video.training.video_draft_model.prepare_request",
        lambda model, inputs: replace(prepare_request(model, inputs), deepstack=(torch.zeros(1, 1),)),
    )
    refused(r"draft_model: .* cannot be trained here", task.loss, 0, 0.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "somewhere", "draft_model": None}, "draft_model.*must name"),
        ({"kept_shares": ()}, "kept_shares"),
        ({"compile": True}, "compile"),
        ({"num_frames": 2}, "num_frames"),
    ],
)
def test_bad_settings_are_named(changes, named):
    refused(named, VideoDraftModelTrainingConfig, **{"output": "x", **changes})
