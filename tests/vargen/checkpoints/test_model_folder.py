"""Model folders from strangers: what they name is from a closed list, and what is damaged ends in one line."""

import json
import sys
from typing import Any

import pytest
import torch
from refusals import refused
from safetensors.torch import save_file

from vargen.checkpoints.model_folder import read_tensor_shapes
from vargen.pipelines.llamagen import LlamaGenPipeline


@pytest.mark.parametrize(
    "named",
    [
        ["antigravity", "X"],
        ["planted", "Model"],
        ["os", "system"],
        ["torch.nn", "Linear"],
        ["vargen.commands.generate", "GenerateConfig"],
        ["vargen.models.llamagen.transformer", "annotations"],
        ["vargen.models.nothing", "Model"],
        ["diffusers", "DiffusionPipeline"],
        ["diffusers", "StableDiffusionPipeline"],
        ["diffusers.pipelines", "Model"],
        ["transformers", "pipeline"],
        ["transformers", "Trainer"],
    ],
)
def test_a_folder_names_no_classes_but_those_of_models(tiny_model_folder, tmp_path, monkeypatch, named):
    planted = tmp_path / "planted.py"
    planted.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Model: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as under `python -m`
    (tiny_model_folder / "extra").mkdir()
    path = tiny_model_folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"extra": named}))
    refused(".".join(named) + ", which is not a component", LlamaGenPipeline.from_pretrained, tiny_model_folder)
    assert not (tmp_path / "executed").exists() and not {"antigravity", "planted"} & sys.modules.keys()


def test_headers_are_read_and_every_damage_to_them_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(3, 2, dtype=torch.bfloat16), "b": torch.zeros(()), "c": torch.zeros(0, 4)}, path)
    assert read_tensor_shapes(path) == {"a": (3, 2), "b": (), "c": (0, 4)}
    whole = path.read_bytes()

    def header(value: Any, data: bytes = b"1234") -> bytes:
        text = json.dumps(value).encode()
        return len(text).to_bytes(8, "little") + text + data

    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert (path.write_bytes(header({"a": one})), read_tensor_shapes(path))[1] == {"a": (1,)}
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole + b"x", b"\0" * 100, (2**63).to_bytes(8, "little") + b"{}"]
    damaged += [header({"a": 3}), header([1]), header({"a": {"dtype": "F32", "shape": [1]}})]
    damaged += [header({"a": one | {"shape": [2]}}), header({"a": one, "b": one}), header({"a": one | {"dtype": "F"}})]
    for content in damaged:
        path.write_bytes(content)
        refused(r"a\.safetensors is truncated or no safetensors file \(.*; copy", read_tensor_shapes, path)
