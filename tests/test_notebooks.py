"""Every notebook runs from top to bottom on small settings, and none is committed with outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason='notebooks need the extra "dev"')
jupyter_client = pytest.importorskip("jupyter_client", reason='notebooks need the extra "dev"')
nbclient = pytest.importorskip("nbclient", reason='notebooks need the extra "dev"')

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SMALL: dict[str, dict[str, Any]] = {
    "answer_about_videos": {"METHODS": ["ar", "flash"]},
    "compare_loose_verification": {"METHODS": ["lvspec-paper"], "VIDEOS": 1, "TOKENS": 40},
    "generate_and_trace": {"PROMPTS": ["a large green cone on grass", "two cyan cubes on sand"]},
    "compare_methods": {"METHODS": ["ar", "likeness-balanced"], "PROMPTS": 2},
    "evaluate_and_plot": {"COUNT": 4, "METHODS": "scd,likeness-fast", "PRESET": "small.yaml"},
}


def notebooks() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def test_every_notebook_has_small_settings() -> None:
    assert notebooks() == sorted(SMALL)


@pytest.mark.parametrize("name", notebooks())
def test_outputs_are_stripped(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One for all: starting another means importing torch anew."""
    manager = jupyter_client.KernelManager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VARGEN_KERNELS", "auto")  # the shipped models are large enough for them to pay
        patch.setenv("OMP_NUM_THREADS", "1")  # two threads that wait for each other are slower on a busy machine
        manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("name", notebooks())
def test_the_notebook_runs(name: str, kernel: Any, tmp_path: Path) -> None:
    scenes = (FOLDER.parent / "configs" / "evaluate" / "scenes.yaml").read_text()
    (tmp_path / "small.yaml").write_text(scenes.replace("reference_count: 5000", "reference_count: 60"))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    parameters = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(parameters) == 1
    known = {target.id for node in ast.parse(parameters[0].source).body for target in getattr(node, "targets", [])}
    for setting, value in SMALL[name].items():
        assert setting in known, f"{name} has no setting {setting}"
        parameters[0].source += f"\n{setting} = {value!r}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path}"))  # no name is left of another
    nbclient.NotebookClient(notebook, timeout=240, km=kernel).execute()
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert "image/png" in kinds
