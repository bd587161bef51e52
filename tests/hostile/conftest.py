"""What hostile tests break: tiny models, and runs made with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_pipelines import (  # noqa: F401  # the fixtures are for the tests below
    _plots_without_lines,
    _saved_tiny_pipelines,
    tiny_class_model_folder,
    tiny_model_folder,
)

from vargen.cli import main


@pytest.fixture(autouse=True)
def _no_cache_of_this_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def _finished_run(_saved_tiny_pipelines: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("runs") / "run"
    model = str(_saved_tiny_pipelines["text"])
    assert main(["generate", "a red cube", "a blue cone", "--model", model, "--output", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def finished_run(_finished_run: Path, tmp_path: Path) -> Path:
    """The folder of a `vargen generate` run of two pictures, a copy of its own for every test."""
    return Path(shutil.copytree(_finished_run, tmp_path / "run"))
