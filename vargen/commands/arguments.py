"""Reading a subcommand's arguments: one option for each field of a dataclass, YAML files, and errors in one line.

jsonargparse reads values by the types of the fields, merges YAML files (`--config`) with options in the order in which
they are given, and prints the result (`--print_config`). Belongs here: groups and help texts of options, and the
spellings that users expect. Does not belong here: any option; a dataclass of settings stands beside its job.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
from argparse import SUPPRESS, Action
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace

from vargen.base.bounds import check_characters, check_choice, check_magnitudes
from vargen.base.errors import UserError, did_you_mean
from vargen.base.places import Place, check_places, places_of
from vargen.base.reading import parse_yaml, parser_mode, read_yaml, reading
from vargen.base.resources import find_config
from vargen.models.options import ModelOptions

Options = TypeVar("Options")

_GROUPS = {
    "Decoding method": ("method", "methods", "method_options", "fixed", "batch_size", "continuous_batches"),
    "Sampling": (
        *(
            "seed",
            "guidance_scale",
            "guided_tokens",
            "temperature",
            "top_k",
            "top_p",
            "repetition_penalty",
            "max_new_tokens",
        ),
        *("num_candidates", "ranker"),
    ),
    "Training": (
        *("batch_size", "steps", "max_seconds", "seed", "learning_rate", "warmup_steps"),
        *("decay_start", "optimizer", "muon_learning_rate", "weight_decay", "adam_betas", "gradient_clip", "ema_decay"),
        *("evaluate_every", "evaluation_size"),
    ),
    "Output": (
        *("output", "save_images", "trace_image", "picture", "save_to_model", "overwrite", "json", "quiet"),
        *("checkpoint_seconds", "log_every", "log_with", "sample_every"),
    ),
    "Loading the model": (
        *(field.name for field in fields(ModelOptions) if field.name != "model"),
        *("draft_model", "draft_revision"),
    ),
    "Computing": ("device", "num_threads", "autocast", "compile"),
}
"""Groups of the help text, in their order, after the group of the task itself. Every other option is of the task."""
_HEADS = {
    "Decoding method": ("method", "methods"),
    "Training": ("learning_rate",),
    "Loading the model": ("revision", "judge_model"),
    "Computing": ("num_threads",),
}
"""A command with none of these options has no such group: its `batch_size` or `vqvae` is of the task."""
_LAST = ("Training", "Output", "Loading the model", "Computing", "About these options")

_FOLDERS = (
    *("output", "clip", "text_encoder", "drafter", "judge_model", "hps", "detector", "vqa_model", "videos"),
    *("codes", "frozen_text_encoder", "initial_weights", "answers", "states"),
)
_FILES = ("picture", "vgg_weights", "inception_weights", "config", "transformer")
_FOLDERS_OR_FILES = ("vqvae", "checkpoint", "given_images", "reference")
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
        return f"{(action.help or '').rstrip('.')}{f' (default: {default})' if shown else ''}"

    def _format_action_invocation(self, action: Action) -> str:
        names = [each for each in action.option_strings if not each.endswith("+")]  # --x+ appends to a list
        if not names or action.nargs == 0 or (action.metavar and not hasattr(action, "_typehint")):
            return super()._format_action_invocation(action)
        return f"{', '.join(names)} {_kind(_type_of(action), action.dest.rsplit('.')[-1])}"


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
    if options is not None:
        _add_options(parser, options)
        parser.add_argument(
            "--config",
            action="config",
            metavar="FILE",
            help="YAML file with any of these options, or the name of a shipped one; options after it override it",
        )
        parser._optionals.title = "About these options"
        _sort_groups(parser)
    return parser


def take_task(arguments: Sequence[str], tasks: Collection[str]) -> tuple[str, list[str]]:
    """What `--task` says, else "image", and the other arguments. Raises UserError for another task."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task", nargs="?", default="image")
    asked, rest = parser.parse_known_args(arguments)
    check_choice("task", asked.task, tasks)
    return asked.task, rest


def add_switches(parser: ArgumentParser, quiet: bool = True, title: str = "Output", **switches: str) -> None:
    """Switches of a command that are no settings of its job, such as `json`, by name with their help texts.

    Args:
        parser: of the command.
        quiet: add `--quiet`, too.
        title: group of the help text that shows them.
        switches: what each does.
    """
    if quiet:
        switches["quiet"] = "show no progress"
    group = next((each for each in parser._action_groups if each.title == title), None)
    group = group or parser.add_argument_group(title)
    for name, text in switches.items():
        group.add_argument(f"--{name}", action="store_true", help=text)
    _sort_groups(parser)


def _sort_groups(parser: ArgumentParser) -> None:
    order = {title: number for number, title in enumerate(_LAST)}
    parser._action_groups = sorted(parser._action_groups, key=lambda group: order.get(str(group.title), -1))


def _add_options(parser: ArgumentParser, options: type[Any]) -> None:
    """One option for each field, in groups: those of the task first, those that load the model last."""
    types, texts = get_type_hints(options), _help_texts(options)
    present = {field.name for field in fields(options)}
    group_of = {
        name: title
        for title, names in _GROUPS.items()
        if present.intersection(_HEADS.get(title, present))
        for name in names
    }
    task = (options.__doc__ or "").splitlines()[0].rstrip(".")
    for title in (task, *_GROUPS):
        chosen = [field for field in fields(options) if group_of.get(field.name, task) == title]
        if not chosen:
            continue
        group = parser.add_argument_group(title)
        for field in sorted(chosen, key=lambda field: field.name == "model" and title == task):
            if is_dataclass(types[field.name]):  # in a group of its own, whose options have dots
                parser.add_class_arguments(types[field.name], field.name, default=asdict(_default(field)))
                continue
            group.add_argument(
                f"--{field.name}",
                type=types[field.name],
                required=_required(field),
                default=None if _required(field) else _default(field),
                help=texts[field.name],
            )


def _help_texts(options: type[Any]) -> dict[str, str]:
    """What the docstrings of a dataclass and its bases say of each field, under "Args:"."""
    texts: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        described = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")[2]
        for each in re.finditer(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", described, re.MULTILINE):
            texts[each[1]] = " ".join(each[2].split())
    return texts


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _type_of(action: Action) -> Any:
    return getattr(action, "_typehint", None) or action.type or str


def _kind(kind: Any, name: str = "") -> str:
    """The type of an option in one word, as help texts and errors have it."""
    if get_origin(kind) in (Union, UnionType):
        return "|".join(_kind(each, name) for each in get_args(kind) if each not in (type(None), dict[str, Any]))
    if get_origin(kind) in (list, tuple):
        return f"[{_kind(get_args(kind)[0])},...]"
    if get_origin(kind) is dict:
        return "SETTINGS"
    if kind is bool:
        return "true|false"
    if kind in (int, float):
        return "NUMBER"
    if name in _FOLDERS or name in _FOLDERS_OR_FILES:
        return "FOLDER" if name in _FOLDERS else "PATH"
    return "FILE" if name in _FILES or name.endswith("_file") else "TEXT"


def _number(kind: Any) -> str:
    """What an error calls a number of this type."""
    return "a number" if "float" in str(kind) else "an integer"


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Read the command line; `--like-this` and `--like_this` are the same. Raises UserError for an unknown option or a
    wrong value."""
    rest, nested = _take_nested(parser, arguments)
    try:
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


def _reason(parser: ArgumentParser, message: str) -> str:
    """An error of jsonargparse in plain words."""
    if refused := _REFUSED_VALUE.search(message):
        name = refused["name"]
        typed = next((action for action in parser._actions if action.dest == name), None)
        wanted = str if typed is None else _type_of(typed)
        kind = _kind(wanted, name.split(".")[-1])
        words = {
            "NUMBER": _number(wanted),
            "true|false": "true or false",
            "TEXT": "text",
            "SETTINGS": "settings by name",
        }
        return f"{name} must be {words.get(kind, kind)}, got {' '.join(refused['value'].split())!r}"
    unknown = re.search(r"unrecognized arguments: (?P<flag>--[^\s=]+)", message)
    if unknown is None:
        return " ".join(message.split())
    options = [option for action in parser._actions for option in action.option_strings]
    flag = unknown["flag"]
    return f"{flag} is not an option of {parser.prog}{did_you_mean(flag, options)}"


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


def _holds_a_dict(parser: ArgumentParser, field: str) -> bool:
    try:
        return isinstance(parser.get_default(field), dict)
    except KeyError:
        return False


def fill(options: type[Options], values: Namespace, **places: Mapping[str, Place]) -> Options:
    """An instance of the dataclass from parsed values.

    Args:
        options: the dataclass.
        values: every argument of the command.
        places: metadata of arguments that are no fields, as `vargen.base.places` has it.

    Raises:
        UserError: an output takes the place of an input, or what the checks of the dataclass raise.
    """
    for name, value in vars(values).items():
        check_magnitudes(name, value)
    check_places({**places_of(options), **{name: mark["place"] for name, mark in places.items()}}, vars(values))
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
            content, place = parse_yaml(path), path
    else:
        place = path if os.path.exists(path) else str(find_config(path))
        content = read_yaml(Path(place), argument="config")
    for name, value in content.items() if isinstance(content, dict) else ():
        _check_base_sixty(parser, str(name), value)
    return place


def _needs_a_value(parser: ArgumentParser, name: str) -> bool:
    """Whether an option has a default and no null."""
    action = next((action for action in parser._actions if action.dest == name), None)
    return action is not None and action.default is not None and type(None) not in get_args(_type_of(action))


def _check_base_sixty(parser: ArgumentParser, name: str, value: Any) -> None:
    """Refuse 1:30 for a number: where it needs one, jsonargparse reads by YAML 1.1, for which this is 90."""
    action = next((action for action in parser._actions if action.dest == name), None)
    if action is not None and "NUMBER" in _kind(_type_of(action)) and _BASE_SIXTY.search(str(value)):
        raise UserError(f"{name} must be {_number(_type_of(action))}, got {str(value)!r} (see {parser.prog} --help)")
