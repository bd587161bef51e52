"""`vargen train` from the outside: a minimal run, the same command again, and bad input in one line."""

import json
import os
import signal
from pathlib import Path

import pytest

from vargen.cli import main
from vargen.jobs.training import recipes
from vargen.runs.files import read_jsonl


def test_it_says_what_can_be_trained(capsys):
    assert main(["train"]) == 0
    out = capsys.readouterr().out
    assert all(name.replace("drafter-text", "drafter --task text") in out for name in recipes())


def judge_arguments(output: Path) -> list[str]:
    sizes = "--steps 2 --batch-size 2 --evaluation-size 2 --warmup-steps 1 --log-every 1 --max-seconds null"
    rest = "--num-threads 1 --autocast false --sample-every 1000 --evaluate-every 1000"
    return ["train", "judge", "--output", str(output), *sizes.split(), *rest.split()]


def test_a_run_leaves_an_export_and_a_log_and_is_over_the_second_time(tmp_path, capsys):
    output = tmp_path / "judge"
    arguments = judge_arguments(output)
    assert main(arguments) == 0
    assert "training of the judge is over" in capsys.readouterr().out
    assert (output / "export" / "config.json").is_file()
    log = read_jsonl(output / "log.jsonl")
    weights = (output / "export" / "diffusion_pytorch_model.safetensors").read_bytes()
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 2 and told["output"] == str(output) and told["stopped_by"] is None
    assert read_jsonl(output / "log.jsonl")[: len(log)] == log
    assert (output / "export" / "diffusion_pytorch_model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_was_stopped_says_so_by_its_exit_code(tmp_path, capsys, monkeypatch, number, code):
    from scenes.training.judge import JudgeTask

    loss = JudgeTask.loss

    def interrupted(self: JudgeTask, step: int, progress: float) -> object:
        os.kill(os.getpid(), number)
        return loss(self, step, progress)

    monkeypatch.setattr(JudgeTask, "loss", interrupted)
    assert main(judge_arguments(tmp_path / "judge")) == code
    assert "interrupted at step 1; the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "judge" / "export").exists()
    monkeypatch.undo()
    assert main(judge_arguments(tmp_path / "judge")) == 0
