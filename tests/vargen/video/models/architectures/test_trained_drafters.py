"""Drafters are trained for any architecture, on videos of different lengths."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vargen.video.models.architectures.catalogue import ARCHITECTURES
from vargen.video.models.request import prepare_request
from vargen.video.models.target import VideoTarget
from vargen.video.training.video_drafter import VideoDrafterTask, VideoDrafterTrainingConfig
from vargen.video.training.video_questions import generate_answers
from vargen.video.training.video_states import TeacherForcing


@pytest.mark.parametrize(
    ("name", "kind"), zip(ARCHITECTURES, ("sparrow", "flash", "msd", "vispec", "eagle"), strict=True)
)
def test_any_target_trains_a_drafter(name, kind, models, inputs_of, tmp_path):
    model = models(name)
    asked: Any = SimpleNamespace(
        inputs=lambda number: inputs_of(name, number, frames=4 + 2 * (number % 2)),
        described={}, split="train", batch_size=4,
    )  # fmt: skip
    answers = generate_answers(model, asked, 4, tmp_path / "answers", settings={}, max_new_tokens=8)
    config = VideoDrafterTrainingConfig(
        str(tmp_path), kind=kind, batch_size=4, evaluation_size=4, num_decoded_videos=1, max_new_tokens=8,
        autocast=False,
    )  # fmt: skip
    layer = config.new_video_head(model).config.visual_layer
    reader = TeacherForcing(model, asked, answers, layer, torch.float32, 2**30)
    parts = reader.batches([0, 1, 2, 3])
    assert [len(learned) for _, learned in parts] == [2, 2]
    request = prepare_request(model, asked.inputs(1))
    target = VideoTarget(model, request)
    target.prefill()
    own = parts[1][0].features[0, : request.length]
    torch.testing.assert_close(own, target.prompts[0].hidden_states, rtol=1e-3, atol=1e-3)
    task = VideoDrafterTask(config, model, reader, reader)
    optimizer = torch.optim.Adam(task.drafter.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        loss, _ = task.loss(0, 0.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert 0 <= task.evaluate()["agreement_1"] <= 1
