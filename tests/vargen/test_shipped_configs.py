"""Shipped YAML files: those that list defaults say what the code says, and every one of them can be used."""

from dataclasses import asdict

import pytest
import yaml

from vargen.base.resources import configs_folder
from vargen.commands.arguments import build_parser, fill, parse
from vargen.jobs.benchmark import BenchConfig
from vargen.jobs.generation import GenerateConfig
from vargen.jobs.study import settings_of
from vargen.methods.base import TASKS
from vargen.methods.catalogue import find_presets, resolve_method


@pytest.mark.parametrize(("name", "options"), [("generate", GenerateConfig), ("bench", BenchConfig)])
def test_files_of_defaults_hold_the_defaults(name, options):
    assert yaml.safe_load((configs_folder() / f"{name}.yaml").read_text()) == asdict(options())
    parser = build_parser(name, "", options)
    assert fill(options, parse(parser, ["--config", name])) == options()


def test_a_home_in_yaml_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("output: ~/pictures\n")
    parser = build_parser("generate", "", GenerateConfig)
    values = parse(parser, ["--config", str(tmp_path / "mine.yaml"), "--model=~/models/a"])
    config = fill(GenerateConfig, values)
    assert (config.output, config.model) == (str(tmp_path / "pictures"), str(tmp_path / "models" / "a"))


@pytest.mark.parametrize(("task", "name"), [(task, name) for task in TASKS for name in find_presets(task)])
def test_presets_are_methods(task, name):
    method, path = resolve_method(name, task=task), find_presets(task)[name]
    assert method == resolve_method(str(path), task=task)
    preset = yaml.safe_load(path.read_text())
    settings = settings_of(method)
    assert all(settings[name] == value for name, value in preset.items())
