"""ComfyUI's nodes by its documented contract. What they refuse: tests/hostile/test_nodes.py.

ComfyUI is no package of an index: its own loader runs where VARGEN_COMFYUI names a checkout, and
VARGEN_COMFYUI_PYTHON a Python with its requirements and vargen. Its documentation says what it does with a folder of
`custom_nodes`: it imports `__init__.py` under a name of its own, takes classes from NODE_CLASS_MAPPINGS, asks
INPUT_TYPES for widgets and their defaults, and calls the method that FUNCTION names.
"""
# ruff: noqa: F401, F811  # fixtures of comfy_nodes are for the tests below

import importlib.util
import json
import os
import socket
import sys
import tomllib
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from background import process, wait_for
from comfy_nodes import INTEGRATIONS, execute, model, nodes
from refusals import refused

from vargen import LlamaGenPipeline


def test_the_registry_finds_what_it_asks_for():
    project = tomllib.loads((INTEGRATIONS / "comfyui" / "pyproject.toml").read_text())
    assert "comfyui" not in project["project"]["name"] and project["project"]["version"].count(".") == 2
    assert {"PublisherId", "DisplayName", "Icon"} == {*project["tool"]["comfy"]}
    assert project["project"]["urls"]["Repository"].startswith("https://")


def test_nodes_load_draw_trace_and_compare(nodes, model, _saved_tiny_pipelines):
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


def test_a_node_moves_the_progress_bar_and_obeys_stop(nodes, model, monkeypatch):
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


EXAMPLE = INTEGRATIONS / "comfyui" / "examples" / "draw_and_trace.json"


def test_the_example_workflow_fits_the_nodes(nodes):
    workflow = json.loads(EXAMPLE.read_text())
    for step in workflow.values():
        if (node := nodes.get(step["class_type"])) is None:
            continue  # ComfyUI's own
        asked = {name: kind for part in node.INPUT_TYPES().values() for name, (kind, *_) in part.items()}
        assert {*node.INPUT_TYPES()["required"]} <= {*step["inputs"]} <= {*asked}
        for name, value in step["inputs"].items():
            if isinstance(value, list):
                assert nodes[workflow[value[0]]["class_type"]].RETURN_TYPES[value[1]] == asked[name]


def test_sampling_and_a_negative_prompt_reach_the_pipeline(nodes, model):
    draw = lambda **given: execute(nodes["VargenDraw"], model=model, prompt="a red cube", **given)[0]  # noqa: E731
    assert not torch.equal(draw(), draw(negative_prompt="a blue cone"))
    assert torch.equal(draw(temperature=0.0, seed=1), draw(temperature=0.0, seed=2)), "greedy"
    assert torch.equal(draw(top_k=1), draw(top_p=1e-9)), "the likeliest token alone"


def test_a_node_goes_on_from_a_picture_and_fills_a_mask(nodes, model):
    image, mask = torch.rand(1, 8, 8, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 8, 8)
    mask[:, 4:] = 1
    draw = lambda **given: execute(nodes["VargenDraw"], model=model, prompt="a red cube", **given)[0]  # noqa: E731
    rows, filled = draw(image=image, start_rows=2, count=2), draw(image=image, mask=mask, count=2)
    assert torch.equal(rows, filled) and torch.allclose(rows[:, :4], image[:, :4], atol=1e-6)
    for given, said in (({"mask": mask}, "mask_image needs image"), ({"image": image[[0, 0]]}, "got a batch of 2")):
        refused(said, draw, **given)


@pytest.mark.skipif("VARGEN_COMFYUI" not in os.environ, reason="VARGEN_COMFYUI names no checkout of ComfyUI")
def test_comfyuis_own_server_runs_the_example(tmp_path):
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "vargen").symlink_to(INTEGRATIONS / "comfyui")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [os.environ.get("VARGEN_COMFYUI_PYTHON", sys.executable), f"{os.environ['VARGEN_COMFYUI']}/main.py"]
    command += ["--cpu", "--port", place.rpartition(":")[2], "--base-directory", str(tmp_path), "--disable-auto-launch"]

    def ask(path, body=None):
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(place + path, content, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))

    def has_nodes():
        with suppress(OSError):  # it does not listen yet
            return "VargenDraw" in ask("/object_info")

    with process(command, tmp_path / "log") as server:
        wait_for(has_nodes, server, tmp_path / "log", every=1)
        number = ask("/prompt", {"prompt": json.loads(EXAMPLE.read_text())})["prompt_id"]
        done = wait_for(lambda: ask(f"/history/{number}").get(number), server, tmp_path / "log", every=1)
        assert done["status"]["status_str"] == "success", done["status"]
        assert len([*Path(tmp_path, "output").glob("vargen*.png")]) == 2
