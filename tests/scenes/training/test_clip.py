"""Training of the CLIP: its loss, its hard negatives, and a run from start to a folder that scores pictures."""

import functools
import math
import random
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from refusals import refused
from torch import Tensor
from torch.nn.functional import normalize

from metrics.clip_score import clip_scores
from metrics.extractors import CLIPFeatures
from scenes.models.architectures import TowerConfig
from scenes.rendering.scene import sample_scene
from scenes.training.clip import ClipTrainingConfig, altered, contrastive_loss, train_clip
from scenes.training.data import RenderedSceneSource
from vargen.runs.files import read_jsonl


def small_config(folder: Path, **changes: object) -> ClipTrainingConfig:
    tower = TowerConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    values: dict = {
        "output": str(folder), "image_size": 32, "patch_size": 8, "vision": tower, "text": tower, "projection_dim": 8,
        "batch_size": 8, "steps": 3, "warmup_steps": 1, "evaluation_size": 32, "log_every": 1, "num_threads": 1,
        "autocast": False, "sample_every": 3,
    }  # fmt: skip
    return ClipTrainingConfig(**(values | changes))


def slow_loss(images: Tensor, texts: Tensor, negatives: Tensor, wrong: list[bool], scale: float) -> float:
    """The definition, one softmax at a time."""
    total = 0.0
    for i, image in enumerate(images):
        columns = [scale * float(image @ text) for text in texts]
        columns += [scale * float(image @ other) for other, is_wrong in zip(negatives, wrong, strict=True) if is_wrong]
        total += -columns[i] + math.log(sum(math.exp(each) for each in columns))
        rows = [scale * float(other @ texts[i]) for other in images]
        total += -rows[i] + math.log(sum(math.exp(each) for each in rows))
    return total / (2 * len(images))


def test_the_loss_is_clips_with_one_more_column_for_every_wrong_caption():
    generator = torch.Generator().manual_seed(0)
    images, texts, negatives = (normalize(torch.randn(5, 6, generator=generator), dim=-1) for _ in range(3))
    wrong = [True, False, True, True, False]
    ours = contrastive_loss(images, texts, negatives, torch.tensor(wrong), torch.tensor(4.0))
    assert float(ours) == pytest.approx(slow_loss(images, texts, negatives, wrong, 4.0), rel=1e-5)


def test_altered_scenes_differ_in_one_thing():
    for seed in range(200):
        scene = sample_scene(seed, "all")
        other = altered(scene, random.Random(seed))
        ours, theirs = asdict(scene), asdict(other)
        differences = [name for name in ("ground", "sky") if ours[name] != theirs[name]]
        for before, after in zip(ours["objects"], theirs["objects"], strict=True):
            differences += [name for name in before if before[name] != after[name]]
        assert len(differences) == 1, differences
        assert differences[0] in ("ground", "sky", "shape", "colour", "material", "size")


def test_a_run_leaves_a_clip_that_scores(tmp_path):
    result = train_clip(small_config(tmp_path / "run"))
    assert result.finished and set(result.evaluation) >= {"retrieval_among_32", "preferred_to_altered"}
    assert len(read_jsonl(tmp_path / "run" / "log.jsonl")) >= 4
    assert list((tmp_path / "run" / "samples").glob("*.png"))
    clip = CLIPFeatures(tmp_path / "run" / "export")
    batch = RenderedSceneSource(32, torch.device("cpu"))(5, 3, "all")
    pictures = ((batch.images * 0.5 + 0.5) * 255).round().to(torch.uint8)
    scores = clip_scores(clip(pictures), clip.encode_text(["a red cube"] * 3))
    assert scores.shape == (3,) and torch.isfinite(scores).all()


def test_it_learns_to_tell_captions_apart(tmp_path):
    """Not much, in a few seconds; but it must beat chance on scenes it has seen many times."""

    rendered = functools.cache(RenderedSceneSource(32, torch.device("cpu")))
    config = small_config(
        tmp_path, steps=60, batch_size=16, learning_rate=5e-3, evaluate_every=1000, sample_every=1000, ema_decay=0.0
    )
    train_clip(config, lambda _first_seed, count, split: rendered(0, count, split))
    losses = [line["loss"] for line in read_jsonl(tmp_path / "log.jsonl") if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("changes", "message"), [({"patch_size": 7}, "image_size"), ({"batch_size": 1}, "batch_size")])
def test_fields_that_do_not_fit_are_named(tmp_path, changes, message):
    refused(message, small_config, tmp_path, **changes)
