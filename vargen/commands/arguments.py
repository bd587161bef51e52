"""Reading a subcommand's arguments: one option for each field of a dataclass, YAML files, and errors in one line.

Belongs here: help texts, and the spellings that users expect. Does not belong here: any option; `vargen.base.options`
declares one, beside its job. jsonargparse reads values by their types, and merges YAML files (`--config`) with options.
"""

from __future__ import annotations

import argparse
import os
import re
from argparse import SUPPRESS, Action
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace

from vargen.base.bounds import check_characters, check_choice, check_magnitudes, shown
from vargen.base.errors import UserError, did_you_mean
from vargen.base.options import (
    COMPUTING,
    GROUPS,
    LOADING,
    OUTPUT,
    TRAINING,
    Option,
    hints_of,
    options_of,
    path_roles_of,
    texts_of,
)
from vargen.base.path_roles import PathRole, check_paths
from vargen.base.reading import parse_yaml, parser_mode, read_yaml, reading
from vargen.base.resources import find_config

Filled = TypeVar("Filled")

_ABOUT = "About these options"
_TRUTHS = ("true", "false", "yes", "no", "null")
"""What may follow a switch."""
_LIKE_TRUTHS = ("on", "off", "0", "1", "y", "n", "t", "f")
"""What a user may write after a switch instead of "true" or "false". No prompt reads like this."""
_BASE_SIXTY = re.compile(r"(?<![\w.:])[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+")
_REFUSED_VALUE = re.compile(r'Parser key "(?P<name>[^"]+)":.*(?:Got|Given) value: (?P<value>.*)', re.DOTALL)


class HelpFormatter(DefaultHelpFormatter):
    """The explanation, then the default, wrapped to a readable width."""

    def __init__(self, prog: str) -> None:
        width = min(110, os.get_terminal_size().columns) if os.isatty(1) else 110
        super().__init__(prog, max_help_position=34, width=width)

    def _get_help_string(self, action: Action) -> str:
        shown = action.option_strings and action.nargs != 0 and action.default not in (None, SUPPRESS, {}, [])
        default = str(action.default).lower() if isinstance(action.default, bool) else action.default
        text = texts_of(action.settings).get(_name(action), "") if hasattr(action, "settings") else action.help or ""
        return f"{text.rstrip('.')}{f' (default: {default})' if shown else ''}"

    def _format_action_invocation(self, action: Action) -> str:
        names = [each for each in action.option_strings if not each.endswith("+")]  # --x+ appends to a list
        if not names or action.nargs == 0 or (action.metavar and not hasattr(action, "_typehint")):
            return super()._format_action_invocation(action)
        return f"{', '.join(names)} {_kind(_type_of(action), _declared(action))}"


def build_parser(command: str, description: str, options: type[Any] | None = None, epilog: str = "") -> ArgumentParser:
    """A parser for `vargen COMMAND`, with `--config` and one option for each field of the dataclass `options`."""
    parser = ArgumentParser(
        prog=f"vargen {command}",
        usage=f"vargen {command} [options]",
        description=description,
        epilog=epilog,
        exit_on_error=False,
        formatter_class=HelpFormatter,
        parser_mode=parser_mode(),
    )
    # Of Python 3.14: `vargen.cli` lets no escape sequence through.
    parser.color = False  # type: ignore[attr-defined]
    if options is not None:
        _add_options(parser, options)
        parser.add_argument(
            "--config",
            action="config",
            metavar="FILE",
            help="YAML file with any of these options, or the name of a shipped one; options after it override it",
        )
        parser._optionals.title = _ABOUT
        shows = next(action for action in parser._actions if "--print_config" in action.option_strings)
        shows.help, shows.metavar = "show all options as YAML, with those given, and end", " "
        _sort_groups(parser)
    return parser


def take_task(arguments: Sequence[str], tasks: Collection[str]) -> tuple[str, list[str]]:
    """What `--task` says, else "image", and the other arguments. Raises UserError for another task."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task", nargs="?", default="image")
    asked, rest = parser.parse_known_args(arguments)
    check_choice("task", asked.task, tasks)
    return asked.task, rest


def add_switches(parser: ArgumentParser, quiet: bool = True, **switches: str) -> None:
    """Switches of a command that are no settings of its job, such as `json`, by name with their help texts.

    Args:
        parser: of the command.
        quiet: add `--quiet`, too.
        switches: what each does.
    """
    if quiet:
        switches["quiet"] = "show no progress and no advice"
    group = next((each for each in parser._action_groups if each.title == OUTPUT), None)
    group = group or parser.add_argument_group(OUTPUT)
    for name, text in switches.items():
        group.add_argument(f"--{name}", action="store_true", help=text)
    _sort_groups(parser)


def _sort_groups(parser: ArgumentParser) -> None:
    order = {title: number for number, title in enumerate((TRAINING, OUTPUT, LOADING, COMPUTING, _ABOUT))}
    parser._action_groups = sorted(parser._action_groups, key=lambda group: order.get(str(group.title), -1))


def _add_options(parser: ArgumentParser, options: Any) -> None:
    """One option for each field, in groups: those of the task first, those that load the model last."""
    types, declared = hints_of(options), options_of(options)
    task = (options.__doc__ or "").splitlines()[0].rstrip(".")
    for title in (task, *GROUPS):
        chosen = [field for field in fields(options) if (declared[field.name].group or task) == title]
        if not chosen:
            continue
        group = parser.add_argument_group(title)
        for field in sorted(chosen, key=lambda field: field.name == "model"):
            if is_dataclass(types[field.name]):  # in a group of its own, whose options have dots
                parser.add_class_arguments(types[field.name], field.name, default=asdict(_default(field)))
                continue
            group.add_argument(
                f"--{field.name}",
                type=types[field.name],
                required=_required(field),
                default=None if _required(field) else _default(field),
                help=field.name,  # the text is read when it is shown
            )
    for action in parser._actions:
        *above, name = action.dest.split(".")
        settings = reduce(lambda kind, each: hints_of(kind)[each], above, options)
        if name in options_of(settings) and not is_dataclass(hints_of(settings)[name]):
            action.settings = settings  # type: ignore[attr-defined]


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _action(parser: ArgumentParser, name: str) -> Action | None:
    return next((action for action in parser._actions if action.dest == name), None)


def _type_of(action: Action) -> Any:
    return getattr(action, "_typehint", None) or action.type or str


def _name(action: Action) -> str:
    """The field that an option stands for."""
    return action.dest.rsplit(".")[-1]


def _declared(action: Action | None) -> Option:
    """The declaration of an option; an empty one for an argument without."""
    settings = getattr(action, "settings", None)
    return Option() if action is None or settings is None else options_of(settings)[_name(action)]


def _kind(kind: Any, declared: Option) -> str:
    """The values of an option in one word, for help texts."""
    if get_origin(kind) in (Union, UnionType):
        return "|".join(_kind(each, declared) for each in get_args(kind) if each not in (NoneType, dict[str, Any]))
    if get_origin(kind) in (list, tuple):
        return f"'[{_kind(get_args(kind)[0], declared)}, ...]'"
    if get_origin(kind) is dict:
        return "SETTINGS"
    if kind in (bool, int, float):
        return "true|false" if kind is bool else "NUMBER"
    return "TEXT" if declared.path is None else declared.path.shown


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Read the command line; `--like-this` and `--like_this` are the same. Raises UserError for an unknown option or a
    wrong value."""
    rest, nested = _take_nested(parser, arguments)
    try:
        rest = [_by_other_name(parser, argument) for argument in rest]
        normalised = [_shipped_config(parser, argument, previous) for previous, argument in _normalised(rest)]
        values = parser.parse_args(_switched_on(parser, normalised))
    except ArgumentError as error:
        raise UserError(f"{_reason(parser, str(error))} (see {parser.prog} --help)") from error
    # jsonargparse takes null for every type.
    if missing := [name for name, value in vars(values).items() if value is None and _needs_a_value(parser, name)]:
        raise UserError(f"{', '.join(missing)} must not be null; leave it out for the default")
    for name, value in vars(values).items():
        _check_characters(name, value)
        if isinstance(value, str) and value.startswith("~/"):  # from YAML; a shell replaces its own
            setattr(values, name, os.path.expanduser(value))
    for field, key, name, value in nested:
        given = dict(getattr(values, field))
        inner = given.get(key)
        given[key] = {**(inner if isinstance(inner, Mapping) else {}), name: value}
        setattr(values, field, given)
    return values


def _by_other_name(parser: ArgumentParser, argument: str) -> str:
    """`--methods` for `--method`, or the reverse, where a command has the other alone."""
    flag, equals, value = argument.partition("=")
    other = {"--method": "--methods", "--methods": "--method"}.get(flag)
    return argument if other is None or flag in parser._option_string_actions else f"{other}{equals}{value}"


def _reason(parser: ArgumentParser, message: str) -> str:
    """An error of jsonargparse in plain words."""
    if refused := _REFUSED_VALUE.search(message):
        return _wrong_value(parser, refused["name"], " ".join(refused["value"].split()))
    unknown = re.search(r"unrecognized arguments: (?P<flag>--[^\s=]+)", message)
    if unknown is None:
        return " ".join(message.split())
    flag, options = unknown["flag"], parser._option_string_actions
    hint = " (write --task video)" if flag == "--videos" and "--task" in options else did_you_mean(flag, options)
    return f"{flag} is not an option of {parser.prog}{hint}"


def _wrong_value(parser: ArgumentParser, name: str, value: str) -> str:
    """What is wrong with a value that is none of its option's type."""
    action = _action(parser, name)
    hint = str if action is None else _type_of(action)
    return f"{name} must be {_declared(action).in_words(hint)}, got {value!r}"


def _take_nested(parser: ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    """The other arguments, and those like `--method_options.eagle.depth 3` as (field, key, name, value).

    jsonargparse lets a second option of the same key replace the first whole. Only the last of several settings of one
    method would count.
    """
    rest: list[str] = []
    nested: list[tuple[str, str, str, str]] = []
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, value = argument.partition("=")
        field, *keys = flag.removeprefix("--").split(".") if flag.startswith("--") else [""]
        field = field.replace("-", "_")  # the keys may hold a dash, as in likeness-fast
        action = _action(parser, field)
        if argument == "--" or len(keys) != 2 or action is None or not isinstance(action.default, dict):
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
    """Refuse what an escape in YAML or JSON can write and no path can hold, at any depth."""
    if isinstance(value, str):
        check_characters(name, value)
    elif isinstance(value, Mapping | Namespace):
        items = value.items() if isinstance(value, Mapping) else vars(value).items()
        for key, inner in items:
            _check_characters(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_characters(name, inner)


def fill(options: type[Filled], values: Namespace, **roles: PathRole) -> Filled:
    """An instance of the dataclass from parsed values.

    Args:
        options: the dataclass.
        values: every argument of the command.
        roles: of arguments that are no fields, by name.

    Raises:
        UserError: an output takes the place of an input, or what the checks of the dataclass raise.
    """
    for name, value in vars(values).items():
        check_magnitudes(name, value)
    check_paths(path_roles_of(options) | roles, vars(values))
    return options(**{field.name: getattr(values, field.name) for field in fields(options)})  # type: ignore[arg-type]


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
    """`--compile` for `--compile true`, for every option that is a switch."""
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


def _shipped_config(parser: ArgumentParser, argument: str, previous: str) -> str:
    """The path of a shipped configuration where `--config` gets its name instead of a file."""
    flag, equals, value = argument.partition("=") if argument.startswith("--") else (previous, "", argument)
    if flag == "--config" and (equals or argument is value):
        found = _find(parser, value)
        return f"--config={found}" if equals else found
    _check_base_sixty(parser, flag.removeprefix("--"), value)
    return argument


def _find(parser: ArgumentParser, path: str) -> str:
    """The file of a configuration. It is read as YAML here, since jsonargparse says less about what is wrong."""
    if path.strip().startswith("{"):
        with reading("config", "give YAML"):
            content, place, where = parse_yaml(path), path, "config:"
    else:
        place = path if os.path.exists(path) else str(find_config(path))
        content, where = read_yaml(Path(place), argument="config"), f"config: {place}"
    if content is None or content == {}:
        raise UserError(f"{where} holds no options; leave it out for the defaults")
    if not isinstance(content, dict):
        raise UserError(f"{where} must hold options by name, such as seed: 3")
    known = {action.dest for action in parser._actions} | {action.dest.split(".")[0] for action in parser._actions}
    for name, value in content.items():
        if name not in known or "." in name:
            nested = f"; write {name.partition('.')[2]} below {name.partition('.')[0]}" if "." in str(name) else ""
            hint = nested or did_you_mean(name, sorted(known))
            raise UserError(f"{where} {shown(name)} is not an option of {parser.prog}{hint}")
        _check_base_sixty(parser, str(name), value)
    return place


def _needs_a_value(parser: ArgumentParser, name: str) -> bool:
    """Whether an option has a default and no null."""
    action = _action(parser, name)
    return action is not None and action.default is not None and type(None) not in get_args(_type_of(action))


def _check_base_sixty(parser: ArgumentParser, name: str, value: Any) -> None:
    """Refuse 1:30 for a number: where it needs one, jsonargparse reads by YAML 1.1, for which this is 90."""
    action = _action(parser, name)
    if action is not None and "NUMBER" in _kind(_type_of(action), Option()) and _BASE_SIXTY.search(str(value)):
        raise UserError(f"{_wrong_value(parser, name, str(value))} (see {parser.prog} --help)")
