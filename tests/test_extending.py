"""The worked examples of docs/extending.md, as they are written: applied to a copy of the repository, and tested."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from warm import FRESH, python

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "extending.md"
_BLOCK = re.compile(r'^```(python|diff)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def run(*command: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True)
    assert not done.returncode, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def copy_repository(folder: Path) -> None:
    """The sources and tests, with weights and configs by link."""
    for name in ("metrics", "specdecode", "vargen", "scenes", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (folder / "scenes" / "weights").symlink_to(ROOT / "scenes" / "weights")
    (folder / "configs").symlink_to(ROOT / "configs")
    shutil.copy(ROOT / "pyproject.toml", folder)


def test_the_examples_work_as_written_and_touch_what_the_page_says(tmp_path):
    copy_repository(tmp_path)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "core.hooksPath=/dev/null")
    run("git", "init", "-q", folder=tmp_path)
    run("git", "add", "metrics", "specdecode", "vargen", "tests", folder=tmp_path)
    run(*git, "commit", "-qm", "before", folder=tmp_path)

    blocks = _BLOCK.findall(PAGE.read_text())
    for kind, name, text in blocks:
        if kind == "diff":
            (tmp_path / "change.diff").write_text(text)
            run("git", "apply", "--recount", "--unidiff-zero", "change.diff", folder=tmp_path)
            (tmp_path / "change.diff").unlink()
        else:
            assert name and not (tmp_path / name).exists(), name
            (tmp_path / name).write_text(text)

    run("git", "add", "-A", "metrics", "specdecode", "vargen", "tests", folder=tmp_path)
    changed = run("git", "diff", "--cached", "--name-status", folder=tmp_path).split()
    # The page's table: 4 times 2 new, 1 changed.
    assert changed.count("A") == 8 and changed.count("M") == 4, changed

    tests = [name for _, name, _ in blocks if name.startswith("tests/")]
    assert len(tests) == 4
    here = {"folder": tmp_path, "PYTHONPATH": str(tmp_path)}
    run(*python(FRESH, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests), **here)
    told = """
import torch
from vargen import AutoPicturePipeline
from vargen.cli import main

pipeline, passes = AutoPicturePipeline.from_pretrained(), []
for method in ("scd", {"name": "my_methods:CoupledGroupsConfig", "group_size": 3}):
    output = pipeline("a red cube on wood", method=method, generator=torch.Generator().manual_seed(1))
    passes.append(output.trace.target_passes)
print(*passes)
for task in ("image", "video"):
    main(["methods", "--task", task])
"""
    passes, _, shown = run(*python(FRESH, "-c", told), **here).partition("\n")
    coupled, grouped = map(int, passes.split())
    assert grouped < coupled < 256 and shown.count("\nprompt-lookup") == 2
