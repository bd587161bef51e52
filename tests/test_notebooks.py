"""Every notebook runs from top to bottom on small settings. Stored outputs are pictures and lines, without warnings."""

import ast
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

nbformat = pytest.importorskip("nbformat", reason='notebooks need the extra "dev"')
interactiveshell = pytest.importorskip("IPython.core.interactiveshell", reason='notebooks need the extra "dev"')

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SMALL: dict[str, dict[str, Any]] = {
    "answer_about_videos": {"METHODS": ["ar", "flash"]},
    "compare_loose_verification": {"METHODS": ["lvspec-paper"], "VIDEOS": 1, "TOKENS": 40},
    "generate_and_trace": {"PROMPTS": ["a large green cone on grass", "two cyan cubes on sand"]},
    "edit_a_picture": {"CANDIDATES": 2},
    "compare_methods": {"METHODS": ["ar", "likeness-balanced"], "PROMPTS": 1},
    "vvs_knobs": {"PROMPTS": 1, "INTERVALS": [2], "THRESHOLDS": [0.6]},
    "evaluate_and_plot": {"COUNT": 4, "METHODS": "likeness-fast", "PRESET": "small.yaml"},
}


def notebooks() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def test_every_notebook_has_small_settings():
    assert notebooks() == sorted(SMALL)


@pytest.mark.parametrize("name", notebooks())
def test_outputs_can_be_read_and_hold_no_noise(name):
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 250_000  # pictures of 256 colours
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    for output in outputs:
        assert output.output_type != "error" and output.get("name") != "stderr"
        assert not any(each in str(output) for each in ("Warning", "/tmp/", "/home/"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What a kernel runs cells by, in this process, which has imported torch already."""
    config = Config(HistoryManager={"enabled": False})
    folder = str(tmp_path_factory.mktemp("ipython"))
    made = interactiveshell.InteractiveShell.instance(
        config=config, ipython_dir=folder, user_module=types.ModuleType("of_notebooks")
    )
    yield made
    made.reset(new_session=False)
    interactiveshell.InteractiveShell.clear_instance()


@pytest.mark.parametrize("name", notebooks())
def test_the_notebook_runs(name, shell, tmp_path, monkeypatch):
    monkeypatch.setenv("VARGEN_KERNELS", "auto")  # the shipped models are large enough for them to pay
    scenes = (FOLDER.parent / "configs" / "evaluate" / "scenes.yaml").read_text()
    (tmp_path / "small.yaml").write_text(scenes.replace("reference_count: 5000", "reference_count: 30"))
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    parameters = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    assert len(parameters) == 1
    known = {
        target.id
        for node in ast.parse("".join(parameters[0]["source"])).body
        for target in getattr(node, "targets", [])
    }
    for setting, value in SMALL[name].items():
        assert setting in known, f"{name} has no setting {setting}"
        parameters[0]["source"].append(f"\n{setting} = {value!r}")
    shell.reset(new_session=False)  # no name is left of another
    monkeypatch.chdir(tmp_path)
    kinds: set[str] = set()
    for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        done = shell.run_cell(source)
        done.raise_error()
        kinds |= shell.display_formatter.format(done.result)[0].keys()
    assert "image/png" in kinds
