"""Methods that other packages bring, by entry points of the group `vargen.methods`."""

import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import pytest
from refusals import refused

from vargen.base import world
from vargen.cli import main
from vargen.methods import catalogue
from vargen.methods.autoregressive import AutoregressiveConfig
from vargen.methods.catalogue import METHODS, methods_for, read_method_list, resolve_method


@dataclass(frozen=True)
class Brought(AutoregressiveConfig):
    """Plain decoding by another name.

    Args:
        patience: any number.
    """

    name: ClassVar[str] = "brought"
    patience: int = 1


@dataclass(frozen=True)
class Impostor(AutoregressiveConfig):
    """Another method by the name of one that is there."""

    name: ClassVar[str] = "jacobi"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that brings two methods, and one that cannot be imported."""
    module = ModuleType("bringing")
    module.METHODS = (Brought, Impostor)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bringing", module)
    points = [
        importlib.metadata.EntryPoint("more", "bringing:METHODS", world.METHODS),
        importlib.metadata.EntryPoint("broken", "no_such_package:METHODS", world.METHODS),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    world._load.cache_clear()
    yield
    world._load.cache_clear()


@pytest.mark.usefixtures("package")
def test_a_package_adds_methods_and_takes_no_name():
    known = methods_for("image")
    assert [*known] == [*(method.name for method in METHODS), "brought"]
    assert resolve_method("brought", {"patience": 3}) == Brought(3)
    assert known["jacobi"] is not Impostor and not methods_for("video")


FAILING = {
    "syntax": "def", "running": "raise RuntimeError('a library is missing')", "odd": "METHODS = 7",
    "quits": "raise SystemExit(3)",
    "lacking": "METHODS = (int, 3, type('Bare', (), {'task': 'image'}))", "nothing": "", "old": "import no_such_thing",
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_a_package_that_fails_takes_no_command_away(name, monkeypatch, tmp_path, capsys):
    """Whatever its import raises, and of whatever kind its entry point is, in every group."""
    (tmp_path / f"{name}_package.py").write_text(FAILING[name])
    monkeypatch.syspath_prepend(tmp_path)
    groups, own = (world.METHODS, world.COMMANDS, world.RECIPES), importlib.metadata.entry_points
    points = {each: [importlib.metadata.EntryPoint("more", f"{name}_package:METHODS", each)] for each in groups}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [*own(group=group), *points.get(group, [])])
    world._load.cache_clear()
    for command in (["--help"], ["methods"], ["train"], ["more"]):
        assert main(command) == (2 if command == ["more"] else 0) and "more  " not in capsys.readouterr().out
    refused("cannot be imported|is no class of settings", resolve_method, f"{name}_package:METHODS")
    world._load.cache_clear()


@pytest.mark.parametrize(
    "named", [":", "a:", ":A", "..a:A", "os:path", "vargen.methods.base:ImageMethodConfig", "a b:c"]
)
def test_names_of_classes_that_are_none(named):
    refused("cannot be imported|is no class of settings", resolve_method, named)


@pytest.mark.usefixtures("package")
def test_a_class_is_named_by_its_module(monkeypatch):
    monkeypatch.setattr(catalogue, "_IMPORTED", [])
    module = ModuleType("at_hand")
    vars(module).update(Own=type("Own", (Brought,), {"name": "own"}), Impostor=Impostor, other=3)
    monkeypatch.setitem(sys.modules, "at_hand", module)
    assert resolve_method({"name": "at_hand:Own", "patience": 3}) == module.Own(3)
    assert resolve_method("own", {"patience": 3}) == module.Own(3), "its own name stands for it from then on"
    assert read_method_list("ar,at_hand:Own", {"own.patience": 4}, "methods", resolve_method)["own"] == module.Own(4)
    wrong = {"at_hand:Impostor": "as one that is", "at_hand:other": "is no class", "a:B": "imported"}
    for named, said in wrong.items():
        refused(said, resolve_method, named)
    refused("must be a name", resolve_method, {"patience": 3})
