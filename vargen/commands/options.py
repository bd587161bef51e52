"""Reading a subcommand's options: one flag per dataclass field, YAML files, and errors in one line.

Options come from jsonargparse, which takes names, types and help from a dataclass and its docstring, merges YAML files
(`--config`) with flags in the order they are given, and prints the result (`--print_config`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace

from vargen.base.bounds import check_characters
from vargen.base.errors import UserError
from vargen.base.reading import parse_yaml, read_yaml, reading
from vargen.base.resources import find_config
from vargen.runs.files import check_replaceable

Options = TypeVar("Options")

_TRUTHS = ("true", "false", "yes", "no", "null")
"""What follows a switch that is given a value."""
_LIKE_TRUTHS = ("on", "off", "0", "1", "y", "n", "t", "f")
"""What others take for such values; no prompt is meant by it."""
COMPARED_SPLITS = ("heldout", "all")
"""Of what comparisons draw their prompts and videos from; training never shows the former."""


class _HelpFormatter(DefaultHelpFormatter):
    """Types and defaults after the explanation, wrapped to a readable width."""

    def __init__(self, prog: str) -> None:
        super().__init__(
            prog, max_help_position=34, width=min(110, os.get_terminal_size().columns) if os.isatty(1) else 110
        )


def build_parser(command: str, description: str, options: type[Any] | None = None, epilog: str = "") -> ArgumentParser:
    """A parser for `vargen COMMAND`, with `--config` and, if given, one flag per field of the dataclass `options`."""
    parser = ArgumentParser(
        prog=f"vargen {command}",
        description=description,
        epilog=epilog,
        exit_on_error=False,
        formatter_class=_HelpFormatter,
    )
    if options is not None:
        parser.add_argument(
            "--config",
            action="config",
            help="YAML file with any of these options; flags after it override it. The name of a shipped one will do",
        )
        _resolve_types(options)
        parser.add_class_arguments(options)
    return parser


def _resolve_types(options: type[Any]) -> None:
    """Write a dataclass's types where it has their names, of the dataclasses in its fields too.

    jsonargparse looks names up among whatever the module imports for type checkers alone, and imports all of it: torch
    and a pipeline, before it can say what a flag is called.
    """
    types = get_type_hints(options)
    options.__init__.__annotations__.update((field.name, types[field.name]) for field in fields(options))
    for field in fields(options):
        for kind in (types[field.name], *get_args(types[field.name])):
            if is_dataclass(kind):
                _resolve_types(kind)  # type: ignore[arg-type]


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Read the command line; `--like-this` and `--like_this` are the same.

    Raises:
        UserError: an unknown option, or a value of the wrong type.
    """
    rest, nested = _take_nested(parser, arguments)
    try:
        normalised = [_shipped_config(argument, previous) for previous, argument in _normalised(rest)]
        values = parser.parse_args(_switched_on(parser, normalised))
    except ArgumentError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{reason} (see {parser.prog} --help)") from error
    for name, value in vars(values).items():
        _check_characters(name, value)
        if isinstance(value, str) and value.startswith("~/"):  # of YAML; a shell has put its own in place
            setattr(values, name, os.path.expanduser(value))
    for field, key, name, value in nested:
        given = dict(getattr(values, field))
        inner = given.get(key)
        given[key] = {**(inner if isinstance(inner, Mapping) else {}), name: value}
        setattr(values, field, given)
    return values


def _take_nested(parser: ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    """The other arguments, and those like `--method_options.eagle.depth 3` as (field, key, name, value).

    jsonargparse lets a second one of the same key replace the first whole, so that of several settings of one method
    only the last would count.
    """
    rest: list[str] = []
    nested: list[tuple[str, str, str, str]] = []
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, value = argument.partition("=")
        field, *keys = flag.removeprefix("--").split(".") if flag.startswith("--") else [""]
        field = field.replace("-", "_")  # of the rest a dash may be part, as in likeness-fast
        if argument == "--" or len(keys) != 2 or not _holds_a_dict(parser, field):
            rest.append(argument)
            if argument == "--":
                rest += waiting
            continue
        if not equals:
            following = next(waiting, None)
            if following is None:
                raise UserError(f"{flag} needs a value (see {parser.prog} --help)")
            value = following
        nested.append((field, keys[0], keys[1], value))
    return rest, nested


def _check_characters(name: str, value: object) -> None:
    """Refuse what an escape in YAML or JSON can write and no path can hold, however deep it stands."""
    if isinstance(value, str):
        check_characters(name, value)
    elif isinstance(value, Mapping | Namespace):
        items = value.items() if isinstance(value, Mapping) else vars(value).items()
        for key, inner in items:
            _check_characters(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_characters(name, inner)


def _holds_a_dict(parser: ArgumentParser, field: str) -> bool:
    try:
        return isinstance(parser.get_default(field), dict)
    except KeyError:
        return False


def fill(options: type[Options], values: Namespace) -> Options:
    """An instance of the dataclass from parsed values. Raises what its checks raise."""
    return options(**{field.name: getattr(values, field.name) for field in fields(options)})  # type: ignore[arg-type]


def check_place(name: str, place: str | None) -> None:
    """Refuse what could not be written at the end of a long run."""
    if place is None or place == "-":
        return
    path = Path(place)
    check_replaceable(path, name)
    if not path.absolute().parent.is_dir():
        raise UserError(f"{name}: there is no folder {path.absolute().parent}; make it first")


def _normalised(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Each argument after the one before it, with underscores in the names of options."""
    normalised: list[tuple[str, str]] = []
    previous = ""
    for index, argument in enumerate(arguments):
        if argument == "--":
            return normalised + [(previous, rest) for rest in arguments[index:]]
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            argument = f"--{name[2:].replace('-', '_')}{equals}{value}"
        normalised.append((previous, argument))
        previous = argument
    return normalised


def _switched_on(parser: ArgumentParser, arguments: list[str]) -> list[str]:
    """`--compile` for `--compile true`, of every option that is a switch."""
    switches = {
        flag
        for action in parser._actions
        if isinstance(action.default, bool) and action.nargs != 0  # 0: takes no value
        for flag in action.option_strings
    }
    switched: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == "--":
            return switched + arguments[len(switched) :]
        if argument in switches and following.lower() in _LIKE_TRUTHS:
            raise UserError(f"{argument.removeprefix('--')} must be true or false, got {following!r}")
        on = argument in switches and following.lower() not in _TRUTHS
        switched.append(f"{argument}=true" if on else argument)
    return switched


def _shipped_config(argument: str, previous: str) -> str:
    """The path of a shipped configuration where `--config` gets its name instead of a file."""
    if previous == "--config":
        return _find(argument)
    if argument.startswith("--config="):
        return f"--config={_find(argument.removeprefix('--config='))}"
    return argument


def _find(path: str) -> str:
    """The file of a configuration, seen to be YAML before jsonargparse stumbles over it."""
    if path.strip().startswith("{"):
        with reading("config", "give YAML"):
            parse_yaml(path)
        return path
    place = path if os.path.exists(path) else str(find_config(path))
    read_yaml(Path(place), argument="config")
    return place
