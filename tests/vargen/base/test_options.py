"""Every option of every dataclass, found by its declaration: both bounds, every choice, and values of other kinds."""

import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from commands import every_command
from refusals import refused

from scenes.models.architectures import TextModelConfig, TowerConfig
from vargen.base.bounds import MAX_AMOUNT
from vargen.base.errors import UserError
from vargen.base.kinds import alternatives
from vargen.base.options import Option, Settings, check_options, option, options_of, texts_of
from vargen.commands.arguments import build_parser, fill, parse
from vargen.methods.base import MethodConfig


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


COMMANDS = every_command()
ALL = sorted(
    {
        each
        for each in (*subclasses(Settings), TowerConfig, TextModelConfig)
        if each.__module__.startswith(("vargen.", "scenes."))
        and not (issubclass(each, MethodConfig) and not hasattr(each, "name"))  # what several methods share
    },
    key=lambda each: f"{each.__module__}.{each.__name__}",
)


def numbers(hint: Any) -> Iterator[tuple[type, bool]]:
    """The kinds of numbers that an option takes, each with whether they stand in a list."""
    for each in alternatives(hint):
        if each in (int, float):
            yield each, False
        elif get_origin(each) in (list, tuple):
            yield from ((inner, True) for inner in set(get_args(each)) if inner in (int, float))


def edges(declared: Option, kind: type) -> Iterator[tuple[float, float]]:
    """The last number that each bound allows, and the first that it refuses."""
    step = (lambda at, to: at + (1 if to > 0 else -1)) if kind is int else math.nextafter
    if declared.least is not None:
        yield declared.least, step(declared.least, -math.inf)
    if declared.above is not None:
        yield step(declared.above, math.inf), declared.above
    if declared.below is not None:
        yield step(declared.below, -math.inf), declared.below
    else:
        most = kind(MAX_AMOUNT if declared.most is None else declared.most)
        yield most, step(most, math.inf)


def made(settings: type[Any], **changes: object) -> Any:
    """An instance with something for every required field."""
    required = [each for each in fields(settings) if each.default is MISSING and each.default_factory is MISSING]
    types = get_type_hints(settings)
    return settings(**{**{each.name: 256 if types[each.name] is int else "x" for each in required}, **changes})


def refuse(settings: type[Any], name: str, value: object) -> None:
    refused(rf"^([\w-]+\.)?{name} must be .*got ", made, settings, **{name: value})


@pytest.mark.parametrize("settings", ALL, ids=lambda each: each.__name__)
def test_both_bounds_of_every_number(settings):
    hints = get_type_hints(settings)
    for name, declared in options_of(settings).items():
        for kind, in_list in numbers(hints[name]):
            assert declared.least is not None or declared.above is not None, f"{name} has no lower bound"
            wrong: list[object] = [math.nan, math.inf, True, "many", *([0.5] if kind is int else [])]
            for allowed, beyond in edges(declared, kind):
                wrong.append(beyond)
                declared.check(name, [allowed] if in_list else allowed, hints[name])
            for value in wrong:
                refuse(settings, name, [value] if in_list else value)
            for value in declared.also:
                declared.check(name, [value] if in_list else value, hints[name])


@pytest.mark.parametrize("settings", ALL, ids=lambda each: each.__name__)
def test_every_choice_and_no_other(settings):
    hints = get_type_hints(settings)
    for name, declared in options_of(settings).items():
        kinds = alternatives(hints[name])
        in_list = str not in kinds and any(get_origin(each) in (list, tuple) for each in kinds)
        for word in declared.choices:
            declared.check(name, [word] if in_list else word, hints[name])
        if declared.choices:
            refuse(settings, name, ["nothing"] if in_list else "nothing")
        if hints[name] is bool:
            refuse(settings, name, "maybe")


@pytest.mark.parametrize("settings", ALL, ids=lambda each: each.__name__)
def test_defaults_are_allowed_and_described(settings):
    hints, texts = get_type_hints(settings), texts_of(settings)
    for each in fields(settings):
        assert texts.get(each.name), f"{each.name} has no text below it"
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is not MISSING:
            options_of(settings)[each.name].check(each.name, default, hints[each.name])


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_line_reads_the_declarations(command):
    """A number that its bounds refuse, of every option that has some, and a word that is no number."""
    parser = build_parser(command.words, "", command.settings)
    required = [word for name, value in command.required().items() for word in (f"--{name}", value)]
    types = command.types()
    for name, declared in options_of(command.settings).items():
        for kind, in_list in numbers(types[name]):
            for _, beyond in edges(declared, kind):
                written = f"--{name}={[beyond] if in_list else beyond}"
                with pytest.raises(UserError, match=f"^{name} must be"):
                    fill(command.settings, parser.instantiate_classes(parse(parser, [*required, written])))
            refused(f"^{name} must be", parse, parser, [*required, f"--{name}=many"])


@dataclass
class Example(Settings):
    count: int = option(3, least=1, most=9)
    """How many."""
    share: float | None = option(None, above=0.0, most=1.0)
    """A share."""
    sizes: tuple[int, ...] = option((1,), least=1)
    """Some sizes."""
    word: str = option("a", choices=("a", "b"))
    """A word."""


@dataclass
class Other(Example):
    count: int = 5
    """How many others."""


def test_messages():
    for changes, message in (
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"count": 10}, "count must be at most 9, got 10"),
        ({"count": 1.5}, "count must be an integer from 1 to 9, got 1.5"),
        ({"share": 0}, "share must be above 0, got 0"),
        ({"share": "all"}, "share must be a number above 0 and of at most 1 or null, got 'all'"),
        ({"sizes": [2, 0]}, "sizes must be at least 1, got 0"),
        ({"word": "c"}, "word must be one of a, b, got 'c'"),
    ):
        for settings in (Example, Other):
            refused(f"^{re.escape(message)}$", settings, **changes)


def test_a_subclass_with_another_default_keeps_the_rest():
    assert Other().count == 5 and options_of(Other)["count"] == options_of(Example)["count"]
    assert texts_of(Other)["count"] == "How many others." and texts_of(Other)["word"] == "A word."


def test_lists_become_tuples_where_the_type_says_so():
    example = Example(sizes=[1, 2])  # type: ignore[arg-type]
    assert example.sizes == (1, 2)
    example.sizes = [3]  # type: ignore[assignment]
    check_options(example, "shape.")
    assert example.sizes == (3,)
