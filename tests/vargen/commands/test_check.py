"""`vargen check`: passes and tokens, which file of weights changed, and an exit code that tells a difference."""

import json
import re
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import emu3_models
import family_pipelines
import glm_image_models
import janus_models
import pytest
import token_image_models
from safetensors.torch import load_file, save_file

from vargen.base.resources import find_model
from vargen.cli import main
from vargen.jobs.generation import GenerateConfig
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES


def checked(folder: Path, output: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(folder), "--output", str(output), "--quiet", *arguments])
    return code, json.loads(output.read_text())


def test_the_shipped_model_draws_alike_in_fewer_passes(tmp_path, capsys):
    assert main(["check", "--output", str(tmp_path / "check.json")]) == 0
    report, told = json.loads((tmp_path / "check.json").read_text()), capsys.readouterr().out
    assert report["differs"] == [None, None] and report["family"] == "llamagen" and report["dtype"] == "float32"
    assert [call["passes"] for call in report["calls"] if call["method"] == "ar"] == [256, 256]
    for plain, fast in zip(report["calls"][::2], report["calls"][1::2], strict=True):
        assert plain["tokens"] == fast["tokens"] in told and fast["method"] == "jacobi"
        assert plain["seconds"] > 0 and plain["peak_memory_gib"] > 0 and fast["passes"] <= 256
    assert "tokens are equal" in told and version("torch") in told
    for name, written in report["files"].items():
        assert sha256((find_model(None) / name).read_bytes()).hexdigest() == written
    assert {name.split("/")[0] for name in report["files"]} >= {"transformer", "vqvae", "drafter"}


def test_a_changed_file_of_weights_is_found_by_its_digest(tiny_model_folder, tiny_class_model_folder, tmp_path, capsys):
    _, before = checked(tiny_model_folder, tmp_path / "before.json")
    path = next((tiny_model_folder / "transformer").glob("*.safetensors"))
    weights = load_file(path)
    largest = max(weights, key=lambda name: weights[name].numel())
    weights[largest] = weights[largest].roll(1, 0).contiguous()
    save_file(weights, path, metadata={"format": "pt"})
    compared = ("--against", str(tmp_path / "before.json"))
    code, after = checked(tiny_model_folder, tmp_path / "after.json", *compared)
    assert code == 1 and before["weights"] != after["weights"] and before["against"] is None
    assert after["against"]["files"] == [f"transformer/{path.name}"] and after["against"]["calls"] > 0
    assert f"other weights: transformer/{path.name}" in capsys.readouterr().out
    assert [call["tokens"] for call in before["calls"]] != [call["tokens"] for call in after["calls"]]
    assert checked(tiny_model_folder, tmp_path / "again.json", "--against", str(tmp_path / "after.json"))[0] == 0
    assert checked(tiny_model_folder, tmp_path / "other.json", "--seed", "5")[0] == 0
    wrong = [{}, [], 7, {**after, "files": [1]}, {**after, "calls": [1]}, {**after, "cases": ["a fox"]}]
    for report in [*wrong, json.loads((tmp_path / "other.json").read_text())]:
        (tmp_path / "none.json").write_text(json.dumps(report))
        assert main(["check", str(tiny_model_folder), "--against", str(tmp_path / "none.json"), "--quiet"]) == 2
        assert re.search(r"against: .*none\.json (cannot be read|holds calls with)", capsys.readouterr().err)
    (tmp_path / "none.json").write_text(json.dumps({**after, "calls": []}))
    assert checked(tiny_model_folder, tmp_path / "new.json", "--against", str(tmp_path / "none.json"))[0] == 1
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["check", str(tiny_model_folder), "--output", str(tmp_path / "cut.json")]) == 2
    assert str(path) in capsys.readouterr().err and not (tmp_path / "cut.json").exists()
    assert checked(tiny_class_model_folder, tmp_path / "class.json")[1]["cases"] == [0, 1]


def test_a_difference_in_float32_is_told_by_the_exit_code(tmp_path, monkeypatch, capsys):
    folder = janus_models.save(tmp_path / "janus")
    code, report = checked(folder, tmp_path / "equal.json", "--seed", "3")
    assert code == 0 and report["differs"] == [None, None] and report["family"] == "janus"
    monkeypatch.setattr(GenerateConfig, "method", "vvs-jacobi")  # as a default would that draws other pictures
    code, report = checked(folder, tmp_path / "other.json", "--seed", "3")
    found = [each for each in report["differs"] if each]
    assert code == 1 and f"tokens of {len(found)} of 2 pictures differ" in capsys.readouterr().out
    assert found and all(0 < each["place"] < 16 and each["tokens"][0] != each["tokens"][1] for each in found)
    assert checked(folder, tmp_path / "rounded.json", "--dtype", "bfloat16")[0] == 0
    assert "rounding may decide" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["emu3", "glm_image", "emu3_5"])
def test_families_of_every_kind_are_checked(family, tmp_path, monkeypatch):
    """Small models of random weights; Janus is above, and one that is described has small pictures."""
    own = {"emu3": emu3_models, "glm_image": glm_image_models}
    size = {"emu3": ("24", "32"), "glm_image": ("64", "64")}.get(family)
    if family in own:
        own[family].save(tmp_path / "model")
    else:
        monkeypatch.setitem(TOKEN_IMAGE_FAMILIES, family, token_image_models.tiny_family(family))
        family_pipelines.build(family).save_pretrained(tmp_path / "model")
    asked = ("--height", size[0], "--width", size[1]) if size else ()
    code, report = checked(tmp_path / "model", tmp_path / "check.json", "--dtype", "float32", *asked)
    assert code == 0 and report["differs"] == [None, None] and report["family"] == family
    assert len(report["files"]) > 0 and report["calls"][0]["passes"] >= report["calls"][1]["passes"] > 1
