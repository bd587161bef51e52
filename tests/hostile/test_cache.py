"""What is kept outside the folders that a user names: each place is known, and whole whoever writes or is killed."""

import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import called, source_calls

from scenes.shipped import WEIGHTS
from specdecode.drafters.draft_size import DraftSize, StepCosts
from specdecode.kernels import build
from vargen.base.resources import cache_folder
from vargen.cli import main
from vargen.models import draft_sizes
from vargen.runs.batches import BatchStore

ASK = {
    "specdecode/kernels/build.py": "kernels",
    "vargen/models/draft_sizes.py": "step_costs",
    "vargen/jobs/measuring.py": "references",
    "vargen/jobs/feature_distance.py": "references",
    "vargen/pipelines/compilation.py": "compiled",  # torch writes there, each file by a rename
}
"""Modules that ask for the cache, and their folder in it."""
TEMPORARY = {"specdecode/kernels/build.py", "metrics/provenance.py", "vargen/demo/app.py", "vargen/demo/compare.py"}
"""Modules that make temporary files or folders, whose names nobody else has."""


def _modules_that_call(name: str) -> set[str]:
    """Modules that call a function, or one of a module, of this name."""
    return {path for path, node in source_calls() if called(node).startswith(name)}


def test_every_place_outside_a_users_folders_is_known():
    assert _modules_that_call("cache_folder") == {*ASK}
    assert _modules_that_call("tempfile") == TEMPORARY


COMMANDS = [
    ["generate", "a red cube", "a blue cone", "--output", "out"],
    ["evaluate", "--given_images", "out/images", "--reference", "ref", "--prompts_file", "c.txt", "--output", "e",
     "--protocol", "p.yaml", "--bootstrap", "0", "--clip", str(WEIGHTS / "clip")],
]  # fmt: skip


def test_commands_write_nowhere_else(tmp_path, finished_run, _saved_tiny_pipelines, monkeypatch):
    """As Python's own hooks see it, in a process of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "p.yaml").write_text("extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n")
    (tmp_path / "c.txt").write_text("a red cube\na blue cone\n")
    (finished_run / "images").rename(tmp_path / "ref")
    written: set[str] = set()

    def work() -> None:
        def hook(event: str, given: tuple[Any, ...]) -> None:
            is_written = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
            if event in ("os.mkdir", "os.rename") or is_written:
                place = given[1] if event == "os.rename" else given[0]
                if isinstance(place, str | os.PathLike):
                    written.add(os.path.realpath(place))

        sys.addaudithook(hook)
        model = ["--model", str(_saved_tiny_pipelines["text"]), "--quiet"]
        assert main([*COMMANDS[0], *model]) == 0
        assert main([*COMMANDS[1], "--quiet"]) == 0
        (tmp_path / "written").write_text("\n".join(written))

    assert _ended(_forked(work)) == 0
    places = {Path(line) for line in (tmp_path / "written").read_text().splitlines()}
    others = {"matplotlib", "__pycache__", "dev"}  # of matplotlib and Python themselves
    places = {place for place in places if not others & {*place.parts}}
    assert {place.relative_to(tmp_path.resolve()).parts[0] for place in places} <= {"out", "e", "cache", "written"}
    assert {"references"} <= {each.name for each in (tmp_path / "cache").iterdir()} <= {*ASK.values()}


def _write_costs(number: int) -> None:
    costs = StepCosts((1, 2), (1.0, 1.0 + number), 0.1)
    draft_sizes._write("key", costs, {DraftSize(nodes, 2): float(number) for nodes in range(3, 200)})


def _read_costs() -> set[float]:
    found = draft_sizes._read("key")
    assert found is not None
    return {found[0].target_seconds[1] - 1, *found[1].values()}


def _features() -> BatchStore:
    return BatchStore(cache_folder() / "references" / "key", 2, 2)


def _write_features(number: int) -> None:
    _features().write(0, {"features": np.full((2, 5000), number)}, {"number": number})


def _read_features() -> set[float]:
    arrays, record = _features().read(0)
    return {record["number"], *np.unique(arrays["features"]).tolist()}


def _library() -> Path:
    return build.cache_folder() / "kernels" / "few_rows-key.so"


def _write_library(number: int) -> None:
    compiler = cache_folder().parent / f"compiler-{number}"
    compiler.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nfor each in 1 2 3; do echo {number} >> "$2"; done\n'
    )
    compiler.chmod(0o755)
    build._build(str(compiler), (compiler,), _library())


def _read_library() -> set[float]:
    lines = _library().read_text().split()
    assert len(lines) == 3
    return {*map(float, lines)}


KEPT: dict[str, tuple[Callable[[int], None], Callable[[], set[float]], int]] = {
    "step_costs": (_write_costs, _read_costs, 60),
    "references": (_write_features, _read_features, 60),
    "kernels": (_write_library, _read_library, 5),
}
"""Of every folder of the cache that is written here: a writer of a number, a reader, and how often to write."""


def _write_often(write: Callable[[int], None], number: int, times: int) -> None:
    for _ in range(times):
        write(number)


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _ended(child: int) -> int:
    return os.waitpid(child, 0)[1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_kept_is_all_tried():
    assert {*KEPT} == {*ASK.values()} - {"compiled"}


@pytest.mark.parametrize("kept", KEPT)
def test_two_writers_at_once_leave_one_whole_file(kept, cache):
    write, read, times = KEPT[kept]
    write(1)
    children = [_forked(functools.partial(_write_often, write, number, times)) for number in (2, 3)]
    while children:
        found = read()
        assert len(found) == 1 and found <= {1, 2, 3}, "whole at every moment"
        ended, status = os.waitpid(children[0], os.WNOHANG)
        if ended:
            children.remove(ended)
            assert status == 0
        time.sleep(0.001)
    assert len(found := read()) == 1 and found <= {2, 3}
    assert len([path for path in (cache / kept).rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("kept", KEPT)
def test_a_writer_that_is_killed_leaves_what_was_there(kept, cache, monkeypatch):
    """And the next one clears up behind it."""
    write, read, _ = KEPT[kept]
    write(1)

    def work() -> None:
        monkeypatch.setattr(os, "replace", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
        write(2)

    assert _ended(_forked(work)) == signal.SIGKILL and read() == {1}
    assert len([*(cache / kept).rglob("*")]) > 1, "something is left"
    monkeypatch.setattr(build.time, "time", lambda now=time.time: now() + 1e6)
    draft_sizes._remove_leftovers_once.cache_clear()  # as in another process
    write(3)
    assert read() == {3} and len([path for path in (cache / kept).rglob("*") if path.is_file()]) == 1
