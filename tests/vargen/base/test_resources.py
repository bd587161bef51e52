"""Shipped files are found in a checkout and in an installed wheel, and what is not there is named."""

import pytest
from refusals import refused

from vargen.base import resources
from vargen.base.resources import configs_folder, find_config, find_model, shipped_models
from vargen.commands.arguments import build_parser, parse
from vargen.jobs.training import load_trainer, recipes


def test_the_default_model_is_shipped_whole():
    folder = find_model()
    assert folder == find_model(folder.name) and folder.name in shipped_models()
    for component in ("transformer", "vqvae"):
        assert (folder / component / "config.json").is_file()
    assert (folder / "README.md").is_file()


def test_configs_are_found_by_name_with_and_without_ending():
    assert find_config("train/tokenizer") == find_config("train/tokenizer.yaml")
    refused(r"config 'train/nothing' is not shipped; known: .*train/tokenizer", find_config, "train/nothing")


def test_an_installed_wheel_has_its_configs_inside(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "vargen"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "a.yaml").touch()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert find_config("a") == package / "configs" / "a.yaml"


def test_anybodys_configs_beside_an_installed_package_are_not_ours(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "vargen")
    refused("reinstall", configs_folder)
    (tmp_path / "pyproject.toml").touch()
    assert configs_folder() == tmp_path / "configs"


@pytest.mark.parametrize("name", recipes())
def test_training_configs_fill_their_dataclass(name):
    parser = build_parser("train", "", load_trainer(recipes()[name])[0])
    values = parser.instantiate_classes(parse(parser, ["--config", str(find_config(f"train/{name}"))]))
    assert values.output.startswith("runs/")


def test_a_fingerprint_is_of_what_decides_and_drafters_come_with_a_model(tmp_path):
    from vargen.base.resources import find_trained_drafters
    from vargen.checkpoints.model_folder import weights_fingerprint

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    before, drafter = weights_fingerprint(tmp_path), tmp_path / "drafters" / "sparrow"
    drafter.mkdir(parents=True)
    assert find_trained_drafters(tmp_path) == {}
    (drafter / "config.json").write_text("{}")
    assert find_trained_drafters(tmp_path) == {"sparrow": drafter} and weights_fingerprint(tmp_path) == before
    seen, template = {before}, "chat_template.jinja"
    for name, content in ((template, b"{{}}"), (template, b"{{}}!"), ("model.safetensors", b"x")):
        (tmp_path / name).write_bytes(content)
        seen.add(weights_fingerprint(tmp_path))
    assert len(seen) == 4
