"""Ten kills and more of every long command that writes, one just before every rename: the next start finishes the same
work, and leaves nothing else. And two processes on one folder: the second ends at once.

What SIGKILL leaves is what lies there when every thread stands still: a forked process stops itself where it would have
changed its folder, and the folder is copied. Real kills, at any moment: the tests of the commands.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import arguments_of, check_refused
from PIL import Image

from metrics import extractors
from metrics.speculation import MEASURED
from scenes.shipped import WEIGHTS
from scenes.world import SceneWorld
from vargen.cli import main
from vargen.jobs import evaluated_pictures, tuning
from vargen.jobs.training import recipes
from vargen.pipelines import loading
from vargen.runs.files import own_folder


class _Reader:
    """A judge of the tiny model's pictures that finds everything right."""

    image_size = 8
    kinds = ("shape",)

    def __call__(self, pictures: torch.Tensor, cases: Sequence[Any]) -> torch.Tensor:
        return torch.ones(len(cases), 1, 2, dtype=torch.int64)


@pytest.fixture(scope="module", autouse=True)
def _judged_and_loaded_once() -> Iterator[None]:
    """What reads folders and never writes is done once for all runs: a pipeline and CLIP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SceneWorld, "judge", lambda _: _Reader())
        patch.setattr(tuning, "_PATIENCE", 2)
        for module, name in (
            (loading, "load_pipeline"),
            (evaluated_pictures, "load_pipeline"),
            (extractors, "CLIPFeatures"),
        ):
            patch.setattr(module, name, _once(getattr(module, name)))
        yield


def _once(load: Callable[..., Any]) -> Callable[..., Any]:
    loaded: dict[str, Any] = {}

    def given(source: Any, *arguments: Any) -> Any:
        if str(source) not in loaded:
            loaded[str(source)] = load(source, *arguments)
        return loaded[str(source)]

    return given


def changes(work: Path, command: list[str], kept: Path) -> list[str]:
    """What a command does to a folder, in order: files opened to be written, renames, removals, new folders.

    It runs in a forked process, which stops as a whole just before each change; `kept` then gets a copy of the folder,
    under the number of the change, from 0.
    """
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # a forked process has no other ones
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)

            def note(event: str, arguments: tuple[Any, ...]) -> None:
                if event not in _CHANGES or not str(arguments[0]).startswith(str(work)):
                    return
                if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                    return
                os.write(told, f"{event}\n".encode())
                os.kill(os.getpid(), signal.SIGSTOP)

            sys.addaudithook(note)
            main(command)
        finally:
            os._exit(0)
    count = 0
    while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        shutil.copytree(work, kept / str(count), symlinks=True)
        os.kill(child, signal.SIGCONT)
        count += 1
    os.close(told)
    with open(heard) as file:
        done = file.read().splitlines()
    assert len(done) == count
    return done


_CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect")


def pixels(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): Image.open(path).tobytes() for path in sorted(folder.rglob("*.png"))}


def generated(work: Path) -> object:
    lines = (work / "out" / "result.jsonl").read_text().splitlines()
    records = [{**json.loads(line), "seconds": None, "batch_size": None} for line in lines]
    return pixels(work / "out" / "images"), len(pixels(work / "out" / "traces")), records


def evaluated(work: Path) -> object:
    tokens = [np.load(path)["tokens"].tolist() for path in sorted(work.glob("out/ar/batches/*.npz"))]
    scores = json.loads((work / "out" / "scores.json").read_text())
    rows = scores if isinstance(scores, list) else scores["methods"]
    return (
        pixels(work / "out" / "ar" / "images"),
        tokens,
        [counted({**row, **row["decoding"], "reference": "of this folder"}) for row in rows],
    )


def counted(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what it says is measured; no setting of these methods follows the clock."""
    assert row["follows_the_clock"] == []
    return {name: value for name, value in row.items() if name not in (*MEASURED, "decoding", "provenance")}


def benched(work: Path) -> object:
    rows = json.loads((work / "out" / "results.json").read_text())
    return pixels(work / "out" / "images"), [counted(row) for row in rows]


def tuned(work: Path) -> object:
    found = json.loads((work / "out" / "pareto.json").read_text())
    return found["best"], found["front"], (work / "out" / "best.yaml").read_text()


def trained(work: Path) -> object:
    from safetensors.torch import load_file

    weights = load_file(work / "out" / "export" / "diffusion_pytorch_model.safetensors")
    step = torch.load(work / "out" / "checkpoint.pt", weights_only=True)["step"]
    return {name: value.float().numpy().tobytes() for name, value in weights.items()}, step


COMMANDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "generate": (
        "generate 'a red cube' 'a blue cone' --method pjd --method_options.opens_after 2 --trace_image true "
        "--model {model} --quiet --output {work}/out",
        generated,
    ),
    "evaluate": (
        "evaluate --methods ar --model {model} --protocol {work}/p.yaml --prompts_file {work}/c.txt --quiet "
        "--reference {work}/ref --output {work}/out --batch_size 2 --bootstrap 0 --clip {clip}",
        evaluated,
    ),
    "bench": (
        "bench --methods ar,zipar --method_options.zipar.window 2 --model {model} --num_prompts 2 --warm_up 0 "
        "--judge false --quiet --save_images --output {work}/out",
        benched,
    ),
    "tune": (
        "tune --method sjd --method_options.window 2 --method_options.initial_guess random --method_options.branches 2 "
        "--method_options.branch_depth 1 --method_options.keep_overlap 0.8 "
        "--speed pass_reduction --num_prompts 2 --batch_size 2 --model {model} --quiet --output {work}/out",
        tuned,
    ),
    "train": (
        "train judge --output {work}/out --steps 2 --batch_size 2 --evaluation_size 2 --warmup_steps 1 "
        "--image_size 32 --log_every 1 --max_seconds null --num_threads 1 --autocast false --checkpoint_seconds 0.001",
        trained,
    ),
}


@pytest.fixture
def prepared(tmp_path: Path, _saved_tiny_pipelines: dict[str, Path], _finished_run: Path) -> Callable[[str], Any]:
    """`prepared(name)`: a folder to work in and its command line."""

    def prepare(command: str, name: str) -> tuple[Path, list[str]]:
        work = tmp_path / name
        work.mkdir()
        (work / "p.yaml").write_text("extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n")
        (work / "c.txt").write_text("a red cube\na blue cone\n")
        clip = WEIGHTS / "clip"
        places = {"work": work, "model": _saved_tiny_pipelines["text"], "clip": clip}
        (work / "ref").symlink_to(_finished_run / "images")
        return work, arguments_of(COMMANDS[command][0], places)

    return prepare


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a kill needs fork, and a place to tell what was done")
@pytest.mark.parametrize("command", COMMANDS)
def test_ten_kills_and_one_before_every_rename_lose_and_leave_nothing(command, prepared, tmp_path):
    work, arguments = prepared(command, "work")
    kept = tmp_path / "kept"
    done = changes(work, arguments, kept)
    made = COMMANDS[command][1]
    wanted = made(work)
    renames = [number for number, change in enumerate(done) if change == "os.rename"]
    assert len(renames) >= {"generate": 5, "evaluate": 6, "bench": 3, "tune": 3, "train": 3}[command]
    others = sorted(set(range(len(done))) - set(renames))
    missing = max(10 - len(renames), 2)
    moments = renames + [others[len(others) * number // missing] for number in range(missing)]
    assert len(set(moments)) >= 10
    for moment in moments:
        shutil.rmtree(work)
        (kept / str(moment)).rename(work)
        assert main(arguments) == 0
        assert made(work) == wanted, f"killed before change {moment}, {done[moment]}"
        assert not [path for path in work.rglob(".*")], f"left by a kill before change {moment}, {done[moment]}"


NEEDED = {"drafter-text": "--model nowhere", "lora": "--pictures nowhere"}
"""What a recipe cannot do without."""


@pytest.mark.parametrize(
    "command",
    [
        *(COMMANDS[name][0] for name in ("generate", "evaluate", "tune")),
        "scenes --num_scenes 1 --quiet --output {work}/out",
        "convert llamagen --transformer a.pt --vqvae b.pt --image_size 256 --output {work}/out",
        "convert anole --checkpoint a --output {work}/out",
        "convert vqgan --checkpoint a.ckpt --output {work}/out",
        "convert lantern-drafter --drafter a --output {work}/out",
        "judge {work}/out",
        "bench --methods ar --model {model} --num_prompts 1 --judge false --quiet --output {work}/out",
        "bench --task video --methods ar --quiet --output {work}/out",
        *(f"train {name} {NEEDED.get(name, '')} --output {{work}}/out" for name in recipes()),
    ],
)
def test_a_second_process_on_a_folder_ends_at_once(command, tmp_path, _saved_tiny_pipelines, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.jsonl").touch()
    (tmp_path / "p.yaml").write_text("extractor: clip\nclip_score: null\n")
    places = {"work": tmp_path, "model": _saved_tiny_pipelines["text"], "clip": "none"}
    with own_folder(tmp_path / "out"):
        check_refused(arguments_of(command, places), "another run is writing to", capsys, tmp_path)
