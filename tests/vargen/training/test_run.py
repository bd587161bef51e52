"""The loop, on a task that trains a line in microseconds."""

import dataclasses
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from line_task import Killed, LineTask, killed_at
from refusals import refused
from torch import Tensor

from vargen.runs.files import read_jsonl
from vargen.training.config import CHECKPOINT_NAME, RunConfig
from vargen.training.run import train


def make_config(folder: Path, **changes: object) -> RunConfig:
    config = RunConfig(
        output=str(folder), steps=40, learning_rate=0.15, warmup_steps=3, ema_decay=0.9, autocast=False,
        checkpoint_seconds=1e9, log_every=5, evaluate_every=15, sample_every=20,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]


def exported(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "export" / "weights.pt", weights_only=True)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def trained(folder: Path, **changes: object) -> LineTask:
    task = LineTask()
    train(make_config(folder, **changes), task)
    return task


@pytest.mark.parametrize("step", [1, 17, 39])
def test_a_killed_run_ends_with_the_very_weights_of_an_undisturbed_one(tmp_path, step):
    undisturbed = trained(tmp_path / "a")
    with pytest.raises(Killed):
        train(make_config(tmp_path / "b", checkpoint_seconds=1e-9), killed_at(step))
    resumed = LineTask()
    result = train(make_config(tmp_path / "b"), resumed)
    assert resumed.steps == list(range(step, 40))  # every step was saved, so none is repeated and none is lost
    assert result.finished and result.step == 40
    assert same(undisturbed.module.state_dict(), resumed.module.state_dict())
    assert same(undisturbed.extra_modules.state_dict(), resumed.extra_modules.state_dict())
    assert same(exported(tmp_path / "a"), exported(tmp_path / "b"))


def test_without_recent_checkpoint_the_run_repeats_from_the_last_one(tmp_path):
    with pytest.raises(Killed):
        train(make_config(tmp_path), killed_at(9))
    assert trained(tmp_path).steps == list(range(40))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_after_the_step(tmp_path, number):
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def interrupt(step: int) -> None:
        if step == 12:
            os.kill(os.getpid(), number)

    interrupted = LineTask(interrupt)
    result = train(make_config(tmp_path / "b"), interrupted)
    assert (result.step, result.finished, result.stopped_by) == (13, False, number)
    assert not (tmp_path / "b" / "export").exists()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    resumed, undisturbed = trained(tmp_path / "b"), trained(tmp_path / "a")
    assert resumed.steps[0] == 13
    assert same(undisturbed.module.state_dict(), resumed.module.state_dict())


def test_evaluations_and_samples_do_not_disturb_training(tmp_path):
    often = trained(tmp_path / "a", evaluate_every=1, sample_every=1)
    seldom = trained(tmp_path / "b", evaluate_every=1000, sample_every=1000)
    assert same(often.module.state_dict(), seldom.module.state_dict())
    assert len(often.samples) == 40 and seldom.samples == ["0000040.png"]


def test_the_averaged_weights_are_exported_and_the_last_ones_stay(tmp_path):
    averaged, plain = trained(tmp_path / "a"), trained(tmp_path / "b", ema_decay=0.0)
    assert same(averaged.module.state_dict(), plain.module.state_dict())
    assert same(exported(tmp_path / "b"), plain.module.state_dict())
    assert not same(exported(tmp_path / "a"), plain.module.state_dict())


def test_the_log_tells_the_run(tmp_path):
    result = train(make_config(tmp_path), LineTask())
    records = read_jsonl(tmp_path / "log.jsonl")
    assert records[0]["event"] == "start" and records[0]["learning_rate"] == 0.15
    entries = [record for record in records if "event" not in record]
    assert [entry["step"] for entry in entries] == list(range(5, 41, 5))
    for entry in entries:
        assert {"loss", "progress", "gradient_norm", "lr", "samples_per_second", "elapsed", "eta"} <= entry.keys()
    assert entries[0]["progress"] == pytest.approx(sum(range(5)) / 5 / 40)  # the mean over its steps
    assert entries[-1]["loss"] < entries[0]["loss"] and entries[-1]["eta"] == 0
    evaluations = [record for record in records if record.get("event") == "evaluation"]
    assert [record["step"] for record in evaluations] == [15, 30, 40]
    assert evaluations[-1]["error"] == result.evaluation["error"] < 0.4


def test_a_time_limit_ends_the_run_and_counts_time_before_a_resume(tmp_path):
    def stop(step: int) -> None:
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    first = train(make_config(tmp_path, steps=10**9), LineTask(stop))
    assert not first.finished and first.elapsed > 0
    task = LineTask()
    second = train(make_config(tmp_path, steps=10**9, max_seconds=first.elapsed), task)
    assert second.finished and task.steps == []  # already at its end: judged and exported, nothing more
    assert second.elapsed == first.elapsed and (tmp_path / "export" / "weights.pt").exists()
    third = train(make_config(tmp_path, steps=10**9, max_seconds=first.elapsed + 0.05), LineTask())
    assert third.finished and third.step > second.step


def test_a_run_of_another_shape_or_optimizer_names_the_field(tmp_path):
    train(make_config(tmp_path, steps=1), LineTask(), {"model.dim": 3})
    told = r"checkpoint\.pt holds a run with another model\.dim \(3, now 4\)"
    refused(told, train, make_config(tmp_path, steps=2), LineTask(), {"model.dim": 4})
    told = r'another optimizer \("adamw", now "muon"\); change it back or choose another'
    refused(told, train, make_config(tmp_path, steps=2, optimizer="muon"), LineTask(), {"model.dim": 3})


@dataclasses.dataclass
class StartedConfig(RunConfig):
    """Of a trainer that takes initial weights."""

    initial_weights: str = ""


def test_a_run_goes_on_only_with_the_weights_that_it_began_with(tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    moved = weights.rename(tmp_path / "moved")

    def run(name: str, steps: int, initial_weights: Path | str) -> int:
        plain = make_config(tmp_path / name, steps=steps).to_dict()
        return train(StartedConfig(**plain, initial_weights=str(initial_weights)), LineTask()).step

    told = r"^output: .* already holds a run that did not begin with initial_weights '.*'; choose another"
    run("with", 1, moved)
    assert run("with", 2, moved.rename(weights)) == 2, "the content counts, not the place"
    assert run("with", 3, "") == 3
    assert run("with", 4, weights) == 4, "left out once, they are still known"
    (weights / "config.json").write_text("{ }")
    run("without", 1, "")
    for name, named in (("with", weights), ("with", tmp_path / "gone"), ("without", weights)):
        before = (tmp_path / name / CHECKPOINT_NAME).read_bytes()
        refused(told, run, name, 5, named)
        assert (tmp_path / name / CHECKPOINT_NAME).read_bytes() == before


class DivergingTask(LineTask):
    """A line whose loss, or the gradient alone, is not finite at the sixth step."""

    def __init__(self, loss_factor: float, gradient_factor: float) -> None:
        super().__init__()
        self.loss_factor, self.gradient_factor = loss_factor, gradient_factor

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        loss, parts = super().loss(step, progress)
        if step == 5:
            loss = loss * self.loss_factor
            loss.register_hook(lambda gradient: gradient * self.gradient_factor)
        return loss, parts


@pytest.mark.parametrize(
    ("factors", "named"),
    [((math.nan, 1.0), "loss nan"), ((math.inf, 1.0), "loss inf"), ((1.0, math.inf), "gradient_norm (inf|nan)")],
)
@pytest.mark.parametrize("saved_often", [True, False])
def test_a_run_whose_loss_is_not_finite_ends_and_its_checkpoint_stays(tmp_path, factors, named, saved_often):
    often = {"checkpoint_seconds": 1e-9, "log_every": 1} if saved_often else {}
    kept = "the checkpoint is of step 5" if saved_often else "there is no checkpoint yet"
    told = rf"^{named} is not finite at step 6; lower learning_rate \({kept}\)$"
    refused(told, train, make_config(tmp_path, **often), DivergingTask(*factors))
    assert not (tmp_path / "export").exists()
    lines = (tmp_path / "log.jsonl").read_text()
    assert "NaN" not in lines and "Infinity" not in lines
    if saved_often:
        resumed, undisturbed = trained(tmp_path), trained(tmp_path / "undisturbed")
        assert resumed.steps[0] == 5 and same(resumed.module.state_dict(), undisturbed.module.state_dict())


def test_a_bit_of_a_checkpoint_that_is_another_one_is_seen(tmp_path):
    """What else a checkpoint may be is in `tests/hostile/test_records.py`."""
    train(make_config(tmp_path, steps=1), LineTask())
    checkpoint = tmp_path / CHECKPOINT_NAME
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    refused(r"^output: .*checkpoint\.pt .*; remove it to start anew", train, make_config(tmp_path), LineTask())
