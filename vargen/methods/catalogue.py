"""The decoding methods for pictures, those that packages bring, and how users name one: by name, by preset, in a list.

Belongs here: the list, presets, and reading names and settings that users write. Each method has a file of its own.
Nothing here imports torch. A new method is one file and one entry in `METHODS`, or a package's entry point of the group
`vargen.methods`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import isabstract
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from vargen.base.errors import UserError, did_you_mean
from vargen.base.reading import parse_yaml, read_yaml, reading, reason_of
from vargen.base.resources import configs_folder
from vargen.base.world import find_methods
from vargen.methods.autoregressive import AutoregressiveConfig
from vargen.methods.base import TASKS, ImageMethodConfig, MethodConfig, Task, configure
from vargen.methods.coolsd import CoolSDConfig
from vargen.methods.draft_model import DraftModelConfig
from vargen.methods.eagle import EagleConfig
from vargen.methods.gsd import GroupedConfig
from vargen.methods.jacobi import CoupledJacobiConfig, FixedNoiseJacobiConfig, JacobiConfig
from vargen.methods.lantern import LanternConfig
from vargen.methods.pjd import PJDConfig
from vargen.methods.vvs.method import VVSConfig
from vargen.methods.vvs.rows import RowSkippingConfig
from vargen.methods.vvs.windows import WindowSkippingConfig
from vargen.methods.zipar import ZipARConfig

METHODS: tuple[type[ImageMethodConfig], ...] = (
    AutoregressiveConfig,
    EagleConfig,
    LanternConfig,
    VVSConfig,
    CoolSDConfig,
    FixedNoiseJacobiConfig,
    JacobiConfig,
    CoupledJacobiConfig,
    GroupedConfig,
    WindowSkippingConfig,
    DraftModelConfig,
    ZipARConfig,
    PJDConfig,
    RowSkippingConfig,
)
"""Those for pictures, in the order of lists."""
UNTRAINED = "ar,jacobi,scd,vvs-jacobi"
"""What a comparison of pictures compares by default: the best methods without a trained drafter (docs/results.md)."""

WIDE = "-wide"
"""The end of names of presets for machines on which a pass over many rows costs little more than over one."""

_TOLD = ("task", "name", "summary", "exact")
"""What a class of another package must say of itself."""

_IMPORTED: list[type[MethodConfig]] = []
"""Those that were named as MODULE:CLASS in this process."""

AnyConfig = TypeVar("AnyConfig", bound=MethodConfig)
AnyMethod = str | Mapping[str, Any] | MethodConfig
Options = Mapping[str, Any] | None
OwnSettings = Mapping[str, Mapping[str, Any]] | None


@overload
def methods_for(task: Literal["image"]) -> dict[str, type[ImageMethodConfig]]: ...
@overload
def methods_for(task: Task) -> dict[str, type[Any]]: ...
def methods_for(task: Task) -> dict[str, Any]:
    """The methods of a task by name, in the order in which they are listed. The first of a name stands."""
    named: dict[str, Any] = {}
    for method in (*METHODS, *find_methods(), *_IMPORTED):
        if all(hasattr(method, each) for each in _TOLD) and method.task == task:
            named.setdefault(method.name, method)
    return named


@overload
def resolve_method(method: AnyMethod, options: Options = None, own: OwnSettings = None) -> ImageMethodConfig: ...
@overload
def resolve_method(method: AnyMethod, options: Options = None, own: OwnSettings = None, *, task: Task) -> Any: ...
def resolve_method(
    method: AnyMethod, options: Options = None, own: OwnSettings = None, *, task: Task = "image"
) -> MethodConfig:
    """The settings of a method given by name, by preset, or as settings already.

    Args:
        method: the name of a method; or that of a preset, a YAML file in `configs/methods/` or anywhere, which names
            a method and those of its settings that differ from the defaults; or MODULE:CLASS, see `import_method`; or a
            mapping of "name", any of these, and settings that differ; or settings.
        options: fields that differ from these; not with settings.
        own: a model's own settings by method (`check_own_settings`); a method's name includes them, a preset does not.
            On a model without an entry for it, a method may mean its `stand_in`. None: there is no model yet.
        task: what the method must make.

    Raises:
        UserError: no method or preset has this name, it is for another task, or an option is unknown or out of range.
            The message lists what there is.
    """
    if isinstance(method, MethodConfig) and method.task == task:
        if options:
            raise UserError("method_options cannot be given beside a method's settings; put them there")
        return method
    if isinstance(method, Mapping):
        settings = {**method, **(options or {})}
        method, options = settings.pop("name", None), settings
    if isinstance(method, str) and is_import(method):
        method = import_method(method, task).name
    by_name: Mapping[str, type[MethodConfig]] = methods_for(task)
    if not isinstance(method, str):
        example = '{"name": "jacobi", "window": 16}'
        raise UserError(f"method must be a name, {example} or settings of a method for {TASKS[task]}, got {method!r}")
    if method in by_name:
        config, options = by_name[method], options or {}
        if own is not None and method not in own and config.stand_in is not None:
            stand_in = by_name[config.stand_in]
            if options.keys() <= {field.name for field in fields(stand_in)}:
                config = stand_in
        return configure(config, options, None if own is None else own.get(config.name))
    presets = find_presets(task)
    path = presets.get(method, Path(method))
    if path.suffix not in (".yaml", ".yml"):
        known = [*by_name, *presets]
        raise UserError(
            f"method {method!r} is not known for {TASKS[task]}{did_you_mean(method, known)}; choose one of: "
            f"{', '.join(known)}"
        )
    preset = _read_preset(path)
    name = preset.pop("method", None)
    if not isinstance(name, str) or name not in by_name:
        raise UserError(f"{path}: `method` must be one of {', '.join(by_name)}, got {name!r}")
    return configure(by_name[name], {**preset, **(options or {})})


def is_import(name: str) -> bool:
    """Whether a method is named as MODULE:CLASS."""
    return ":" in name and not name.endswith((".yaml", ".yml"))


def import_method(named: str, task: Task = "image") -> type[MethodConfig]:
    """The method of a class MODULE:CLASS, of an installed package or a file in the current folder. Its own name stands
    for it from then on in this process.

    Raises:
        UserError: there is no such class, it is no method of the task, or its name is taken.
    """
    module, _, name = named.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever the user's own file raises
        where = "an installed package or of a file in this folder"
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise UserError(f"method {named!r} cannot be imported ({reason}); give MODULE:CLASS of {where}") from error
    is_method = isinstance(found, type) and issubclass(found, MethodConfig) and not isabstract(found)
    if not (is_method and all(hasattr(found, each) for each in _TOLD) and found.task == task):
        raise UserError(f"method {named!r} is no class of settings of a method for {TASKS[task]}; it needs {_TOLD}")
    if methods_for(task).setdefault(found.name, found) is not found:
        raise UserError(f"method {named!r} is called {found.name!r}, as one that is there; give it another name")
    if found not in _IMPORTED:
        _IMPORTED.append(found)
    return found


def check_own_settings(own: Mapping[str, Any], place: str) -> None:
    """Refuse a picture model's own settings of methods if they are not settings of methods.

    Args:
        own: settings that differ from the defaults, by name of the method.
        place: what errors call it.

    Raises:
        UserError: an unknown method, an unknown setting, or one out of range.
    """
    by_name = methods_for("image")
    if not isinstance(own, Mapping):
        raise UserError(f"{place} must hold settings by method, got {own!r}")
    for name, settings in own.items():
        if name not in by_name:
            raise UserError(f"{place}: {name!r} is no method; known: {', '.join(by_name)}")
        if not isinstance(settings, Mapping):
            raise UserError(f"{place}.{name} must hold settings by name, got {settings!r}")
        try:
            configure(by_name[name], settings)
        except UserError as error:
            raise UserError(f"{place}.{name}: {error}") from error


def find_presets(task: Task = "image") -> dict[str, Path]:
    """The shipped presets of a task by name; those for videos lie in a folder `video` beside the others."""
    folder = configs_folder() / "methods"
    return {path.stem: path for path in sorted((folder / "video" if task == "video" else folder).glob("*.yaml"))}


def _read_preset(path: Path) -> dict[str, Any]:
    try:
        values = read_yaml(path, argument="method")
    except FileNotFoundError:
        raise UserError(f"method preset {path} does not exist") from None
    if not isinstance(values, dict):
        raise UserError(f"method preset {path} must hold `method: NAME` and settings, one a line")
    return values


def read_method_list(
    names: str, options: Mapping[str, Any], field: str, resolve: Callable[[str, Mapping[str, Any] | None], AnyConfig]
) -> dict[str, AnyConfig]:
    """The methods by label, in the order they are named.

    Args:
        names: methods, presets, YAML files of settings or MODULE:CLASS, separated by commas. A file's label is its
            stem, and a class's its name; LABEL=NAME gives another label, so that one method can be listed with several
            settings.
        options: settings that differ from the defaults, by label, as `options_by_method` reads them.
        field: what errors call the list.
        resolve: what knows the names, such as `resolve_method`.

    Raises:
        UserError: no name, an unknown one, one named twice, or options of one that is not named.
    """
    specifications = [name.strip() for name in names.split(",") if name.strip()]
    if not specifications:
        raise UserError(f"{field} must name at least one method, such as ar,eagle")
    own_options = options_by_method(options)
    chosen: dict[str, AnyConfig] = {}
    for specification in specifications:
        label, equals, named = specification.partition("=")
        if equals:
            specification = named
        elif is_import(specification):
            label = resolve(specification, None).name
        elif specification.endswith((".yaml", ".yml")):
            label = Path(specification).stem
        if label in chosen:
            raise UserError(f"{field}: {label} is named twice")
        chosen[label] = resolve(specification, own_options.pop(label, None))
        if label in ("", ".", "..") or {*"/\\\0"} & {*label}:
            raise UserError(f"{field}: {label!r:.80} must be a plain name, which files and folders have")
    if own_options:
        raise UserError(
            f"{field.removesuffix('s')}_options: {next(iter(own_options))!r} is not among {field} ({names})"
        )
    return chosen


def options_by_method(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{"eagle": {"depth": 3}}` from that, or from `{"eagle.depth": 3}`."""
    by_method: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        method, dot, option = name.rpartition(".")
        if not dot and not isinstance(value, Mapping):
            raise UserError(f"method_options.{name} must say which method it is for, such as eagle.{name}")
        given = {option: value} if dot else value
        by_method.setdefault(method if dot else name, {}).update(read_options(given))
    return by_method


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of one method as numbers and words: jsonargparse reads `--method_options.depth 3` as text."""
    read = {}
    for name, value in options.items():
        with reading(f"the value of {name}", "give a number or a word", "method_options"):
            read[name] = parse_yaml(value) if isinstance(value, str) else value
    return read
