"""Training of the judge: targets, loss, harder pictures, and a run from start to export."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from diffusers import VQModel
from refusals import refused
from vqgans import vq_config

from scenes.judge.network import STRIDE, SceneJudge, load_judge
from scenes.rendering.scene import ATTRIBUTE_VALUES, SETTING_VALUES, object_boxes, sample_scene
from scenes.training import judge as judge_training
from scenes.training.data import RenderedSceneSource, SceneBatch
from vargen.runs.files import read_jsonl

CPU = torch.device("cpu")


def small_config(folder: Path, **changes: object) -> judge_training.JudgeTrainingConfig:
    values: dict = {
        "output": str(folder), "image_size": 64, "block_out_channels": (8, 16, 16, 16), "batch_size": 6, "steps": 3,
        "warmup_steps": 5, "learning_rate": 4e-3, "evaluation_size": 4, "log_every": 1, "evaluate_every": 3,
        "sample_every": 3, "num_threads": 1, "autocast": False,
    }  # fmt: skip
    return judge_training.JudgeTrainingConfig(**(values | changes))


def test_centres_lie_in_the_boxes_of_their_objects():
    scenes = [sample_scene(seed, "all") for seed in range(40)]
    targets = judge_training.build_targets(scenes, 32)
    assert (targets.heat == 1).sum() == len(targets.picture) == sum(len(scene.objects) for scene in scenes)
    boxes = torch.cat([object_boxes(scene, 128) for scene in scenes]) / STRIDE
    middle = torch.stack([targets.column, targets.row], dim=-1) + 0.5
    # Half a cell of slack: a centre is known to the cell.
    assert (middle > boxes[:, :2] - 0.5).all() and (middle < boxes[:, 2:] + 0.5).all()
    sideways = (boxes[:, 0] + boxes[:, 2]) / 2 - middle[:, 0]
    assert sideways.abs().max() < 1.0
    colours = [item.colour for scene in scenes for item in scene.objects]
    assert [ATTRIBUTE_VALUES["colour"][i] for i in targets.attributes["colour"]] == colours


def test_heat_is_a_bump_around_each_centre():
    scene = next(s for s in map(sample_scene, range(99)) if len(s.objects) == 2)
    targets = judge_training.build_targets([scene], 32)
    for row, column in ((3, 4), (17, 12), (20, 31)):
        distances = [(row - r) ** 2 + (column - c) ** 2 for r, c in zip(targets.row, targets.column, strict=True)]
        expected = max(math.exp(-distance / 2) for distance in distances)
        assert targets.heat[0, row, column].item() == pytest.approx(expected, abs=1e-6)


def test_centre_loss_by_its_formula():
    torch.manual_seed(0)
    logits, heat = torch.randn(1, 3, 3), torch.rand(1, 3, 3)
    heat[0, 0, 0] = heat[0, 2, 1] = 1.0
    total = 0.0
    for logit, truth in zip(logits.flatten().tolist(), heat.flatten().tolist(), strict=True):
        p = 1 / (1 + math.exp(-logit))
        total -= (1 - p) ** 2 * math.log(p) if truth == 1 else (1 - truth) ** 4 * p**2 * math.log(1 - p)
    assert judge_training.centre_loss(logits, heat).item() == pytest.approx(total / 2, rel=1e-5)


def slow_loss(output: object, targets: judge_training.JudgeTargets, name: str) -> float:
    """Weighted mean over the cells around every centre, one at a time."""
    values, total, weights = getattr(output, name), 0.0, 0.0
    grid = values.shape[-1]
    for n, picture in enumerate(targets.picture.tolist()):
        for i in (-1, 0, 1):
            for j in (-1, 0, 1):
                row, column = targets.row[n].item() + i, targets.column[n].item() + j
                if 0 <= row < grid and 0 <= column < grid:
                    weight = math.exp(-(i * i + j * j) / 2)
                    weights += weight
                    if name == "depth":
                        error = (values[picture, row, column] - targets.depth[n]).abs()
                    else:
                        error = F.cross_entropy(values[picture, :, row, column], targets.attributes[name][n])
                    total += weight * error.item()
    return total / weights


def test_object_losses_by_a_slow_loop():
    torch.manual_seed(0)
    scenes = [sample_scene(seed) for seed in range(4)]
    targets = judge_training.build_targets(scenes, 16)
    targets.column[0] = 0  # a centre at the border, whose cells outside do not count
    output = SceneJudge(64, (4, 4, 4, 4))(torch.rand(4, 3, 64, 64))
    _, parts = judge_training.judge_loss(output, targets)
    for name in (*ATTRIBUTE_VALUES, "depth"):
        assert parts[name].item() == pytest.approx(slow_loss(output, targets, name), rel=1e-5)
    assert set(parts) == {"centre", "screen_x", "depth", *ATTRIBUTE_VALUES, *SETTING_VALUES}


def test_blur_keeps_the_mean_and_spreads_a_point():
    image = torch.zeros(1, 3, 31, 31)
    image[:, :, 15, 15] = 1.0
    blurred = judge_training.gaussian_blur(image, 1.5)
    assert blurred.sum().item() == pytest.approx(3.0, rel=1e-5)
    offsets = torch.arange(31) - 15.0
    assert (blurred[0, 0].sum(0) * offsets.square()).sum().sqrt().item() == pytest.approx(1.5, rel=0.05)


def test_degraded_pictures_repeat_and_keep_their_content():
    images = RenderedSceneSource(64, CPU)(0, 8, "train").images * 0.5 + 0.5
    seeds = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))
    first, again, other = (judge_training.degrade(images, 0.5, generator) for generator in seeds)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == images.shape and first.min() >= 0 and first.max() <= 1
    difference = (first - images).abs().mean()
    assert 0.005 < difference < 0.1
    sharp = judge_training.degrade(images, 0.0, torch.Generator().manual_seed(1))
    assert (sharp - images).abs().mean() < difference


def test_a_run_lowers_the_loss_exports_and_goes_on(tmp_path):
    source = RenderedSceneSource(64, CPU)

    def one_batch(first_seed: int, count: int, split: str) -> SceneBatch:
        return source(0, count, split)

    config = small_config(tmp_path, steps=80, degraded_share=0.0, evaluate_every=80, sample_every=80)
    result = judge_training.train_judge(config, one_batch)
    assert result.finished and result.step == 80
    assert set(result.evaluation) >= {"shape", "degraded_colour", "relation", "count", "prompt"}
    losses = [entry["loss"] for entry in read_jsonl(tmp_path / "log.jsonl") if "loss" in entry]
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])
    judge = load_judge(tmp_path / "export")
    assert tuple(judge.config.block_out_channels) == (8, 16, 16, 16)
    assert (tmp_path / "samples" / "0000080.png").is_file()
    assert judge_training.train_judge(small_config(tmp_path, steps=81), one_batch).step == 81


def test_batches_are_a_function_of_the_step_with_reconstructions_too(tmp_path, monkeypatch):
    torch.manual_seed(0)
    vqvae = VQModel(**vq_config((8, 8), layers_per_block=1, latent_channels=8, num_vq_embeddings=16, norm_num_groups=2))
    vqvae.save_pretrained(tmp_path / "vqvae")
    monkeypatch.setattr(judge_training, "_RECONSTRUCTIONS", 5)
    config = small_config(tmp_path, vqvae=str(tmp_path / "vqvae"), batch_size=8)
    task = judge_training.JudgeTask(config, RenderedSceneSource(64, CPU), CPU)
    images, scenes = task._batch(7)
    again, same_scenes = task._batch(7)
    assert torch.equal(images, again) and scenes == same_scenes and len(images) == len(scenes) == 8
    assert task.bank is not None
    for image, scene in zip(images[6:], scenes[6:], strict=True):
        stored = [index for index, other in enumerate(task.bank.scenes) if other == scene]
        assert torch.allclose(image, task.bank.images[stored[0]].float() / 255)
    assert set(task.heldout) == {"", "degraded_", "reconstructed_"}


def test_bad_settings_are_named(tmp_path):
    for changes, name in (({"image_size": 40}, "image_size"), ({"block_out_channels": (8, 8)}, "block_out_channels")):
        refused(name, small_config, tmp_path, **changes)
    refused("vqvae", judge_training.train_judge, small_config(tmp_path, vqvae=str(tmp_path / "none")))
