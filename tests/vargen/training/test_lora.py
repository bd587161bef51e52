"""Adapters of every family learn from captioned pictures, and exact methods draw with them what plain decoding does."""

import json
from dataclasses import replace
from pathlib import Path

import family_pipelines
import numpy as np
import pytest
import torch
from PIL import Image
from process_jobs import ProcessJob
from refusals import refused
from resumed import stop_and_go_on

from vargen import LlamaGenPipeline
from vargen.cli import main
from vargen.training.captioned import captioned_pictures
from vargen.training.lora import LoraTask, LoraTrainingConfig, train_lora
from vargen.training.teachers import teacher_of

peft = pytest.importorskip("peft", reason="adapters need the extra lora")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve pictures of two kinds, in several shapes and formats."""
    folder, random = tmp_path / "pictures", np.random.default_rng(0)
    folder.mkdir()
    for number in range(12):
        pixels = random.integers(0, 256, (24, 16, 3) if number % 3 else (16, 16, 3), np.uint8)
        pixels[..., number % 2] = 255
        name = f"{number:02d}.{'png' if number % 2 else 'jpg'}"
        Image.fromarray(pixels).save(folder / name)
        (folder / f"{number:02d}.txt").write_text("a red cube" if number % 2 else "two cones on sand")
    return folder


@pytest.fixture
def config(tmp_path: Path, tiny_model_folder: Path, pictures: Path) -> LoraTrainingConfig:
    return LoraTrainingConfig(
        output=str(tmp_path / "lora"), model=str(tiny_model_folder), pictures=str(pictures), batch_size=8, steps=60,
        evaluation_size=4, warmup_steps=2, learning_rate=2e-2, rank=4, ema_decay=0.5, log_every=10,
        evaluate_every=1000, num_threads=1, autocast=False,
    )  # fmt: skip


def test_it_learns_and_exact_methods_stay_exact(config, tiny_model_folder):
    before = train_lora(replace(config, steps=1)).evaluation
    result = train_lora(replace(config, output=config.output + "-longer", steps=100))
    assert result.evaluation["loss"] < before["loss"] - 0.1
    assert result.evaluation["loss_without_caption"] < before["loss_without_caption"] - 0.1
    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    pipeline.set_progress_bar_config(disable=True)

    def drawn(method: str, **settings: float) -> torch.Tensor:
        generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        prompts = ["a red cube", "two cones on sand"]
        return pipeline(prompts, generator=generators, method=method, output_type="latent", **settings).tokens

    plain = drawn("ar")
    pipeline.load_lora_weights(Path(config.output + "-longer") / "export")
    adapted = drawn("ar")
    assert not torch.equal(adapted, plain)
    assert torch.equal(drawn("jacobi"), adapted)
    assert torch.equal(drawn("scd", temperature=0), drawn("ar", temperature=0))


def test_captions_of_which_nothing_is_read_are_told(config):
    (Path(config.pictures) / "00.txt").write_text("\U0001f600")
    with pytest.warns(UserWarning, match="nothing of the prompt '\U0001f600' is read"):
        train_lora(replace(config, steps=1))


def test_a_resumed_run_ends_with_the_same_weights_and_codes_are_made_once(config, tmp_path, monkeypatch):
    stopped = stop_and_go_on(LoraTask, train_lora, replace(config, steps=6), tmp_path, 3)
    monkeypatch.setattr(LlamaGenPipeline, "tokens_of", lambda *_: pytest.fail("codes are kept"))
    kept = replace(config, output=str(stopped))
    assert train_lora(replace(kept, steps=7)).step == 7
    refused("rank", train_lora, replace(kept, steps=8, rank=3))
    (Path(config.pictures) / "00.txt").write_text("a blue cube")
    refused("holds pictures with other prompts at number 1", train_lora, replace(kept, steps=8))


def test_processes_learn_together_what_one_learns_alone(config, tmp_path):
    """Two processes average their gradients; a process that resumes reads what the first one wrote."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    given = {"rank": 4, "steps": 4, "batch_size": 8, "evaluation_size": 4, "autocast": "false", "num_threads": 1}
    for steps in (2, 4):
        asked = {**given, "steps": steps, "model": config.model, "pictures": config.pictures}
        command = ["train", "lora", *(word for name, value in asked.items() for word in (f"--{name}", str(value)))]
        assert main([*command, "--output", str(alone)]) == 0
        # `accelerate launch --cpu` would start one process, whatever number it is given
        assert ProcessJob([*command, "--output", str(together)], 2).wait() == [0, 0]
    states = [torch.load(each / "checkpoint.pt", weights_only=True) for each in (alone, together)]
    assert states[0]["step"] == states[1]["step"] == 4
    for name, value in states[0]["module"].items():
        torch.testing.assert_close(states[1]["module"][name], value, rtol=1e-3, atol=1e-5)
    lines = (together / "log.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines if "event" in line]
    assert events.count("start") == events.count("resume") == 1, "the first process alone writes"


@pytest.mark.parametrize("family", ["janus", "emu3", "lumina_mgpt", "emu3_5", "anole"])
def test_losses_are_those_of_plain_decoding(family):
    """The oracle feeds token by token to the target that draws, one row of guidance at a time."""
    pipeline = family_pipelines.build(family)
    teacher = teacher_of(pipeline)
    target = pipeline.target_of(["a dog", "two red cats"], 1)
    generator, count = torch.Generator().manual_seed(0), target.max_new_tokens
    codes = torch.randint(4, (2, count), generator=generator)
    forced = getattr(target, "forced_tokens", torch.full_like(codes, -1))
    codes = torch.where(forced >= 0, forced.expand_as(codes), codes)
    rows = target.rows_per_sequence
    target.combine = lambda output, *_: output  # type: ignore[method-assign]
    target.combine_at = lambda output, _: output  # type: ignore[method-assign]
    target._with_ends_of_rows = lambda output, _: output  # type: ignore[attr-defined]
    logits, one = [target.prefill().logits[:, -1:]], torch.ones(2, dtype=torch.int64)
    for place in range(count - 1):
        fed = codes[:, place : place + 1]
        logits.append(target.forward(fed, torch.ones(2, 1, 1).bool(), torch.zeros(2, 1).long()).logits)
        target.commit(None, one)
    each = torch.cat(logits, 1).view(rows, 2, count, -1)
    for dropped in ([False, False], [True, False], [True, True]):
        losses = teacher.token_losses(["a dog", "two red cats"], codes, torch.tensor(dropped))
        wanted = torch.stack([each[-1 if is_dropped else 0, row] for row, is_dropped in enumerate(dropped)])
        expected = torch.nn.functional.cross_entropy(wanted.float().mT, codes, reduction="none")
        torch.testing.assert_close(losses, expected[forced.expand_as(codes) < 0], rtol=1e-3, atol=1e-4)


def test_pictures_stand_in_a_table_a_data_set_or_beside_their_texts(pictures, tmp_path):
    datasets = pytest.importorskip("datasets", reason="data sets need the extra data")
    beside = [*captioned_pictures(str(pictures))]
    files = sorted(each for each in pictures.iterdir() if each.suffix != ".txt")
    columns = {"image": [str(each) for each in files], "text": [each.caption for each in beside]}
    table = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    table.save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "table.parquet")
    lines = [json.dumps({"file_name": each.name, "text": "a cube"}) for each in files]
    (pictures / "metadata.jsonl").write_text("\n".join(lines))
    for source in (tmp_path / "saved", tmp_path / "table.parquet", pictures):
        for picture, first in zip(captioned_pictures(str(source)), beside, strict=True):
            assert picture.caption == ("a cube" if source == pictures else first.caption)
            assert picture.square().size == (16, 16) and picture.square() == first.square()
    files[3].unlink()
    refused("line 4: there is no picture of this caption", list, captioned_pictures(str(pictures)))


def test_what_does_not_fit_is_refused(config):
    for changed, message in (
        ({"pictures": ""}, "pictures: '' must name pictures with captions"),
        ({"target_modules": ["nobody"]}, r"target_modules: \['nobody'\] are no linear layers"),
        ({"evaluation_size": 12}, r"must hold more than evaluation_size \(12\)"),
    ):
        refused(message, lambda changed=changed: train_lora(replace(config, steps=1, **changed)))
