"""ComfyUI's nodes by its documented contract, and the recipes for clusters on a local Ray.

ComfyUI is no package of an index, so its own loader is not run here. Its documentation says what it does with a folder
of `custom_nodes`: it imports `__init__.py` under a name of its own, takes classes from NODE_CLASS_MAPPINGS, asks
INPUT_TYPES for widgets and their defaults, and calls the method that FUNCTION names.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vargen import LlamaGenPipeline
from vargen.base.errors import UserError

INTEGRATIONS = Path(__file__).parents[3] / "integrations"


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, Any]]:
    """Imported as ComfyUI does: from a file, under the folder's path with dots replaced."""
    folder = INTEGRATIONS / "comfyui"
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.NODE_CLASS_MAPPINGS) == set(module.NODE_DISPLAY_NAME_MAPPINGS)
    yield module.NODE_CLASS_MAPPINGS
    for imported in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[imported]


def execute(node: type, **given: Any) -> tuple[Any, ...]:
    """As ComfyUI's executor: widgets that are not connected have their defaults, and results are as many as types."""
    asked = {name: kind for part in node.INPUT_TYPES().values() for name, kind in part.items()}  # type: ignore[attr-defined]
    assert {*given} <= {*asked}
    for name, (kind, *options) in asked.items():
        if name not in given and (options or isinstance(kind, list)):
            given[name] = options[0]["default"] if options else kind[0]
    result = getattr(node(), node.FUNCTION)(**given)  # type: ignore[attr-defined]
    assert isinstance(result, tuple) and len(result) == len(node.RETURN_TYPES)  # type: ignore[attr-defined]
    return result


@pytest.fixture(scope="module")
def model(nodes: dict[str, Any], _saved_tiny_pipelines: dict[str, Path]) -> Any:
    return execute(nodes["VargenLoadModel"], model=str(_saved_tiny_pipelines["text"]))[0]


def test_the_registry_finds_what_it_asks_for() -> None:
    project = tomllib.loads((INTEGRATIONS / "comfyui" / "pyproject.toml").read_text())
    assert "comfyui" not in project["project"]["name"] and project["project"]["version"].count(".") == 2
    assert {"PublisherId", "DisplayName", "Icon"} == {*project["tool"]["comfy"]}
    assert project["project"]["urls"]["Repository"].startswith("https://")


def test_nodes_load_draw_trace_and_compare(
    nodes: dict[str, Any], model: Any, _saved_tiny_pipelines: dict[str, Path]
) -> None:
    prompt = "a red cube"
    images, drawn, passes = execute(nodes["VargenDraw"], model=model, prompt=prompt, seed=7, count=2)
    assert images.dtype == torch.float32 and images.shape == (2, 8, 8, 3) and 0 <= images.min() <= images.max() <= 1
    pipeline = LlamaGenPipeline.from_pretrained(_saved_tiny_pipelines["text"])
    for number in range(2):
        generator = torch.Generator().manual_seed(7 + number)
        alone = pipeline(prompt, generator=generator, output_type="np").images
        assert np.array_equal(images[number], alone[0])
    assert 1 < passes <= 16
    (traces,) = execute(nodes["VargenTrace"], drawn=drawn)
    assert len(traces) == 2 and all(each.ndim == 4 and each.shape[3] == 3 and each.shape[1] > 8 for each in traces)
    both, report = execute(nodes["VargenCompare"], model=model, prompt=prompt, seed=7)
    assert torch.equal(both[0], both[1]) and torch.equal(both[1], images[0])
    assert report.startswith("ar: 16 forward passes") and report.endswith("the same tokens")


@pytest.mark.parametrize(
    ("node", "given", "message"),
    [
        ("VargenLoadModel", {"model": "/nowhere"}, "nowhere"),
        ("VargenLoadModel", {"model": "a\0b"}, "model"),
        ("VargenLoadModel", {"device": "tpu"}, "device 'tpu'"),
        ("VargenLoadModel", {"dtype": "int8"}, "dtype"),
        ("VargenDraw", {"prompt": " "}, "prompt is empty"),
        ("VargenDraw", {"prompt": "x" * 1_000_000}, "prompt has 1,000,000 characters"),
        ("VargenDraw", {"prompt": "a\0b"}, "prompt holds a zero character"),
        ("VargenDraw", {"method": "teleport"}, "teleport"),
        ("VargenDraw", {"guidance_scale": float("nan")}, "guidance_scale"),
        ("VargenDraw", {"guidance_scale": 1e9}, "guidance_scale"),
        ("VargenDraw", {"count": 0}, "num_images_per_prompt"),
        ("VargenCompare", {"second_method": "eagle"}, "drafter"),
    ],
)
def test_what_a_node_cannot_do_is_one_line(
    nodes: dict[str, Any], model: Any, node: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        execute(nodes[node], **({} if node == "VargenLoadModel" else {"model": model}), **given)
    assert "\n" not in str(caught.value)


def test_a_node_moves_the_progress_bar_and_obeys_stop(
    nodes: dict[str, Any], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ComfyUI's own modules are played by two that have the functions which the node calls."""
    shown: list[int] = []

    class Stop(Exception):
        pass

    def stop_at_five() -> None:
        if len(shown) == 5:
            raise Stop

    bar = SimpleNamespace(update_absolute=lambda value, total: shown.append(value))
    parts = {
        "comfy": {},
        "comfy.model_management": {"throw_exception_if_processing_interrupted": stop_at_five},
        "comfy.utils": {"ProgressBar": lambda total: bar},
    }
    for name, held in parts.items():
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        module.__path__ = []
        for key, value in held.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            setattr(sys.modules["comfy"], name.split(".")[1], module)
    with pytest.raises(Stop):
        execute(nodes["VargenDraw"], model=model, method="ar")
    assert shown == [1, 2, 3, 4, 5]
