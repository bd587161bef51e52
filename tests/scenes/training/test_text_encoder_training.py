"""Training of the text encoder: resumable, exported for a transformer, and able to learn whose colour is whose."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from resumed import stop_and_go_on
from transformers import AutoTokenizer, T5EncoderModel

from scenes.training.caption_reading import caption_reading_loss
from scenes.training.text_encoder import (
    TextEncoderConfig,
    TextEncoderTask,
    TextEncoderTrainingConfig,
    load_text_encoder,
    train_text_encoder,
)
from vargen.runs.files import read_jsonl
from vargen.training.run import prepare

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path) -> TextEncoderTrainingConfig:
    return TextEncoderTrainingConfig(
        output=str(tmp_path / "text_encoder"), batch_size=16, steps=6, warmup_steps=2, learning_rate=3e-3,
        evaluation_size=40, log_every=2, evaluate_every=100, autocast=False, shape=TextEncoderConfig(16, 8, 24, 1, 2),
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_same_weights(config, tmp_path, optimizer):
    stop_and_go_on(TextEncoderTask, train_text_encoder, replace(config, optimizer=optimizer), tmp_path, 3)


def test_length_groups_only_save_padding(config):
    prepare(config)
    task = TextEncoderTask(config, CPU)
    grouped, _ = task.loss(0, 0.0)
    scenes, captions = [], []
    seen = task._batch

    def remember(some_scenes, some_captions):
        scenes.extend(some_scenes)
        captions.extend(some_captions)
        return seen(some_scenes, some_captions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "_batch", remember)
        again, _ = task.loss(0, 0.0)
    assert torch.equal(grouped, again)
    assert len(captions) == config.batch_size
    lengths = [len(caption.text.split()) for caption in captions]
    assert lengths == sorted(lengths)
    input_ids, mask, truth = task._batch(scenes, captions)
    states = task.text_encoder(input_ids=input_ids, attention_mask=mask.long()).last_hidden_state
    for row, caption in enumerate(captions[:4]):
        alone = task.text_encoder(**task.tokenizer(caption.text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(states[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)
    whole_scene = caption_reading_loss(task.reader(states, mask), truth)[1]["scene"]
    torch.testing.assert_close(whole_scene, task.loss(0, 0.0)[1]["scene"])


def test_the_export_is_what_a_transformer_trains_on(config, tmp_path):
    result = train_text_encoder(config)
    assert {"loss", "scene", "shapes", "words", "words_right"} == result.evaluation.keys()
    folder = tmp_path / "text_encoder" / "export"
    assert isinstance(load_text_encoder(str(folder)), T5EncoderModel)
    assert AutoTokenizer.from_pretrained(folder / "tokenizer").decode([1]) == "</s>"
    saved = torch.load(tmp_path / "text_encoder" / "checkpoint.pt", weights_only=True)
    assert all(name.startswith("text_encoder.") for name in saved["module"]), "the reader must not be part of the model"


def test_it_learns_whose_colour_is_whose(config):
    """One batch for ever: the words' classes can be learned, and reach the mean of the states."""
    config = replace(config, steps=150, learning_rate=1e-2, shape=TextEncoderConfig(32, 16, 64, 2, 2))
    original = TextEncoderTask.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextEncoderTask, "loss", lambda self, step, progress: original(self, 0, progress))
        train_text_encoder(config)
    entries = [entry for entry in read_jsonl(Path(config.output) / "log.jsonl") if "event" not in entry]
    assert entries[0]["words_right"] < 0.5 < 0.9 < entries[-1]["words_right"]
    assert entries[-1]["shapes"] < 0.5 * entries[0]["shapes"]


def test_bad_values_are_named(config, tmp_path):
    refused("batch_size", replace, config, batch_size=6)
    refused(r"frozen_text_encoder: .* holds no text_encoder", load_text_encoder, str(tmp_path))
