"""Training a drafter on a tiny model's own pictures: what it learns, and that nothing is lost by a kill."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cheap_training import PICTURE_STEPS
from recorded import recorded
from refusals import refused
from resumed import stop_and_go_on

from scenes.cases import scene_prompts
from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.checkpoints.model_folder import check_component_folder
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.training.drafter import (
    DrafterTrainingConfig,
    PictureDrafterTask,
    soft_cross_entropy,
    total_variation,
    train_drafter,
)
from vargen.training.pictures import Lessons, gather_lessons
from vargen.training.teachers import guided_features, teacher_of


@pytest.fixture
def config(tmp_path: Path, tiny_model_folder: Path) -> DrafterTrainingConfig:
    return DrafterTrainingConfig(
        output=str(tmp_path / "drafter"), model=str(tiny_model_folder), log_every=10, sample_every=1000, num_threads=1,
        **PICTURE_STEPS,
    )  # fmt: skip


def test_it_learns_and_its_export_drafts_for_the_model(config, tiny_model_folder):
    result = train_drafter(replace(config, steps=1), scene_prompts)
    untrained = result.evaluation
    result = train_drafter(replace(config, output=config.output + "-longer"), scene_prompts)
    assert result.finished
    assert result.evaluation["guided_loss"] < untrained["guided_loss"] - 0.05
    assert result.evaluation["overlap"] > untrained["overlap"]
    assert 0 <= result.evaluation["accepted_top1"] <= result.evaluation["accepted_top10"] <= 1
    export = Path(config.output + "-longer") / "export"
    check_component_folder(export, EagleHead)
    told = EagleHead.from_pretrained(export).config
    for name, rate in (("accepted_top1", told.acceptance_rate), ("overlap", told.sampled_acceptance_rate)):
        assert rate == round(sum(result.evaluation[name + end] for end in ("", "_2", "_3", "_4")) / 4, 3)

    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    pipeline.set_progress_bar_config(disable=True)
    options = {"drafter": str(export), "total_tokens": 8, "depth": 3, "tree_top_k": 4}
    generators = [[torch.Generator().manual_seed(seed) for seed in (1, 2)] for _ in range(2)]
    prompts = ["a red cube", "two cones on sand"]
    plain = pipeline(prompts, generator=generators[0], method="ar")
    fast = pipeline(prompts, generator=generators[1], method=resolve_method("eagle", options))
    assert torch.equal(plain.tokens, fast.tokens)
    assert fast.trace.target_passes < plain.trace.target_passes


def test_a_run_does_not_go_on_under_another_guidance(config, tiny_model_folder):
    train_drafter(replace(config, steps=1), scene_prompts)
    index = tiny_model_folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"default_guidance_scale": 2.0}))
    refused("guidance_scale", train_drafter, replace(config, steps=2), scene_prompts)


def test_a_resumed_run_ends_with_the_same_weights(config, tmp_path):
    train = partial(train_drafter, sample_prompts=scene_prompts)
    stop_and_go_on(PictureDrafterTask, train, replace(config, steps=6), tmp_path, 3)


@pytest.mark.parametrize("name", ["tiny_pipeline", "identity_pipeline"])
@torch.no_grad()
def test_features_are_those_that_decoding_sees(request, name):
    """Hidden states of one teacher-forced pass against those of decoding with a cache, both halves."""
    pipeline: LlamaGenPipeline = request.getfixturevalue(name)
    prompts = ["a red cube", "a small shiny blue sphere left of a large green cone"]
    embeds, mask = pipeline.encode_prompt(prompts)
    condition = pipeline.transformer.embed_condition(caption_embeds=embeds)
    target: Any = LlamaGenTarget(pipeline.transformer, condition, mask, guidance_scale=3.0)
    seen = recorded(target)
    streams = RandomStreams.from_seeds([1, 2])
    tokens = decode(target, max_new_tokens=16, sampling=SamplingConfig(), streams=streams).tokens
    features, _, length = guided_features(pipeline, prompts, tokens)
    assert features.shape == (4, length + 15, 16)
    for part, rows in (("hidden_states", slice(0, 2)), ("unconditional_hidden_states", slice(2, 4))):
        decoded = torch.cat([getattr(output, part) for output in seen], dim=1)
        valid = torch.cat((mask, torch.ones(2, 15, dtype=torch.bool)), dim=1)
        torch.testing.assert_close(features[rows][valid], decoded[valid], rtol=1e-4, atol=1e-4)


def test_soft_cross_entropy_is_the_mean_surprise():
    torch.manual_seed(0)
    logits, teacher = torch.randn(3, 4), torch.randn(3, 4)
    expected = torch.nn.functional.cross_entropy(logits, teacher.softmax(-1))
    torch.testing.assert_close(soft_cross_entropy(logits, teacher), expected)


def test_wrong_fields_and_class_conditional_models_are_named(config, tiny_pipeline, tiny_class_model_folder):
    for change in ({"num_images": 8}, {"feature_layers": [2, 1]}, {"feature_layers": []}):
        refused(*change, replace, config, **change)
    refused("which is 2", build_task, replace(config, feature_layers=[1, 3]), tiny_pipeline)
    refused("not text-conditional", train_drafter, replace(config, model=str(tiny_class_model_folder)), scene_prompts)


def test_the_family_of_the_target_can_be_named(config, tmp_path):
    kind = {"model_type": "chameleon", "vocab_size": 65536, "architectures": ["ChameleonForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(kind))
    (tmp_path / "prompts.txt").write_text("a dog")
    asked = replace(config, model=str(tmp_path), prompts_file=str(tmp_path / "prompts.txt"))
    refused("fits several: lumina_mgpt or anole", train_drafter, asked, scene_prompts)
    told = "vocabulary_map|weights|cannot be read|safetensors"
    refused(told, train_drafter, replace(asked, family="anole"), scene_prompts)


def test_a_drafter_has_the_rotary_rows_of_its_target(config, tiny_pipeline, identity_pipeline):
    for pipeline, condition_rotary in ((tiny_pipeline, "zero"), (identity_pipeline, "identity")):
        drafter = build_task(config, pipeline).drafter
        assert drafter.config.condition_rotary == condition_rotary
        assert drafter.rotary_rows(torch.tensor([[-1]])).any() == (condition_rotary == "identity")
        assert drafter.config.position_scale == pipeline.transformer.config.position_scale


def build_task(config: DrafterTrainingConfig, pipeline: LlamaGenPipeline) -> PictureDrafterTask:
    prompts = scene_prompts(0, 12)
    codes = torch.randint(24, (12, 16), generator=torch.Generator().manual_seed(0))
    lessons = Lessons(teacher_of(pipeline), prompts[4:], codes[4:], prompts[:4], codes[:4], {})
    return PictureDrafterTask(replace(config, evaluation_size=4, batch_size=4), lessons)


def test_what_is_missed_is_one_minus_the_overlap():
    logits = torch.tensor([[0.5, 0.25, 0.25], [1.0, 1e-9, 1e-9]]).log()
    teacher = torch.tensor([[0.25, 0.25, 0.5], [1e-9, 1.0, 1e-9]]).log()
    assert total_variation(logits, teacher).item() == pytest.approx((0.25 + 1.0) / 2, abs=1e-6)


@pytest.mark.parametrize("layers", [None, [2]], ids=["three depths", "the last alone"])
def test_a_new_drafter_starts_from_the_last_state(config, tiny_pipeline, layers):
    """The other depths have no say before training, and have one afterwards."""
    task = build_task(replace(config, feature_layers=layers), tiny_pipeline)
    prompts, codes = list(task.lessons.prompts[:2]), task.lessons.codes[:2]
    states, _, _ = task.teacher.features(prompts, codes, task.drafter.feature_layers)
    assert states.shape[2] == 16 * (1 if layers else 2)  # of 2 layers of the tiny model: the first and the last
    torch.testing.assert_close(task.drafter.fused(states), states[..., -16:])
    loss, _ = task.loss(0, 0.0)
    loss.backward()
    assert layers or task.drafter.fuse.weight.grad[:, :16].abs().max() > 0


@torch.no_grad()
def test_the_accepted_length_is_what_chains_of_drawn_tokens_get(config, tiny_pipeline, monkeypatch):
    """Chain by chain and level by level, from guesses that are anything."""
    task = build_task(replace(config, autocast=False), tiny_pipeline)
    torch.manual_seed(1)
    guesses = [torch.randn(8, 15, 16) for _ in range(4)]
    monkeypatch.setattr(task, "_guesses", lambda *_: guesses)
    ((prompts, codes),) = task.lessons.heldout(4)
    states, _, length = task.teacher.features(prompts, codes, task.drafter.feature_layers)
    truth = task.teacher.guided(task.teacher.logits(states[:, length:, -16:])).softmax(-1)  # [4, 15, V]
    drafted = [task.teacher.guided(task.teacher.logits(guess)).softmax(-1) for guess in guesses]
    reach: dict[int, list[float]] = {level: [] for level in range(5)}
    for row in range(4):
        for root in range(15):
            alive = 1.0
            for level in range(min(4, 15 - root)):
                p, q = truth[row, root + level], drafted[level][row, root + level]
                reach[level + 1].append(alive * torch.minimum(p, q).sum().item())
                reach[0].append(alive) if level == 3 else None
                if root + level + 1 < 16:
                    token = codes[row, root + level + 1]
                    alive *= min(1.0, (q[token] / p[token]).item())
    measured = task.evaluate()
    means = [sum(reach[level]) / len(reach[level]) for level in range(1, 5)]
    assert measured["accepted_length"] == pytest.approx(sum(means), rel=1e-4)
    assert measured["overlap"] == pytest.approx(means[0], rel=1e-4)
    assert measured["overlap_4"] == pytest.approx(sum(reach[4]) / sum(reach[0]), rel=1e-4)
    monkeypatch.setattr(task, "_guesses", lambda *_: [states[:, length:, -16:]] * 4)
    assert task.evaluate()["accepted_length"] == pytest.approx(4, rel=1e-4), "a perfect drafter"


def test_pictures_of_a_store_are_learned_from_too(config):
    prompts, codes = ["a red cube", "a cone"], torch.full((2, 16), 7)

    def stored(folder: str, count: int, vqvae: Any) -> tuple[list[str], torch.Tensor]:
        assert (folder, count, vqvae.quantize.n_e) == ("store", 5, 24)
        return prompts, codes

    changed = replace(config, codes="store", num_stored_images=5)
    without, lessons = (gather_lessons(each, scene_prompts, stored) for each in (config, changed))
    assert lessons.prompts[-2:] == prompts and torch.equal(lessons.codes[-2:], codes)
    assert len(lessons.codes) == len(lessons.prompts) == 24 - 8 + 2
    assert torch.equal(lessons.heldout_codes, without.heldout_codes), "what is kept apart are the target's own"


def test_a_run_starts_from_another_drafter(config, tmp_path):
    first = train_drafter(replace(config, steps=10), scene_prompts)
    folder = str(Path(config.output) / "export")
    again = replace(config, output=str(tmp_path / "again"), initial_weights=folder, steps=1, learning_rate=1e-9)
    overlap = train_drafter(again, scene_prompts).evaluation["overlap"]
    assert overlap == pytest.approx(first.evaluation["overlap"], abs=2e-3)
    assert train_drafter(replace(again, steps=2), scene_prompts).step == 2
    other = replace(again, output=str(tmp_path / "other"), intermediate_size=40)
    told = "initial_weights: the drafter in .* has another shape than the target and inter"
    refused(told, train_drafter, other, scene_prompts)
    nowhere = replace(other, initial_weights=str(tmp_path / "nowhere"))
    refused("nowhere is not a folder; name one with the files of EagleHead", train_drafter, nowhere, scene_prompts)
