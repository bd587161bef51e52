"""Options: fields of a dataclass, each declared once by `option`. Command line, YAML, checks and docs read that.

Does not belong here: any option. The purpose of an option stands as text below its declaration.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, get_origin, get_type_hints

from vargen.base.bounds import MAX_AMOUNT, check_choice, check_number, range_in_words, shown
from vargen.base.errors import UserError
from vargen.base.kinds import WORDS, alternatives, fits, in_words, is_list
from vargen.base.path_roles import PathRole

DECODING, SAMPLING, TRAINING, OUTPUT = "Decoding method", "Sampling", "Training", "Output"
LOADING, COMPUTING = "Loading the model", "Computing"
GROUPS = (DECODING, SAMPLING, TRAINING, OUTPUT, LOADING, COMPUTING)
"""Groups of the help text, in their order, behind the options of the task itself."""
_KEY = "option"


@dataclass(frozen=True)
class Option:
    """What a declaration says beside type, default and text.

    Args:
        least, most: bounds of a number, both allowed; of a list, of its elements.
        above, below: bounds that are not allowed themselves.
        also: numbers that are allowed beside these.
        choices: all words that are allowed; of a list, for its elements.
        group: title in the help text; None: that of the command's task.
        path: what the option names on disk.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    also: tuple[float, ...] = ()
    choices: Collection[str] = ()
    group: str | None = None
    path: PathRole | None = None

    def in_words(self, hint: Any) -> str:
        """What an error calls the values of this option, whose type is `hint`."""
        bounds = range_in_words(self.least, self.most, self.above, self.below)
        words = WORDS | {kind: f"{WORDS[kind]}{bounds}" for kind in (int, float)}
        if self.path is not None:
            words[str] = f"a {self.path.shown.lower()}"
        if self.choices:
            words[str] = f"one of {', '.join(self.choices)}"
        return in_words(hint, words)

    def check(self, name: str, value: Any, hint: Any) -> None:
        """Refuse a value of another type than `hint`, or out of bounds. Raises UserError with the option's name."""
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not fits(value, hint):
            raise UserError(f"{name} must be {self.in_words(hint)}, got {shown(value)}")
        for each in value if is_list(value) else [value]:
            if isinstance(each, str) and self.choices:
                check_choice(name, each, self.choices)
            elif isinstance(each, int | float) and not isinstance(each, bool):
                most = MAX_AMOUNT if self.most is None else self.most
                check_number(name, each, self.least, most, False, self.above, self.below, self.also)


def option(default: Any = MISSING, *, group: str | None = None, **declared: Any) -> Any:
    """A field of a dataclass that users set.

    Args:
        default: its value; a function is called for a new one, as `list` is; none: it must be given.
        group, declared: as `Option` describes them.
    """
    made = Option(group=group, **declared)
    if callable(default):
        return field(default_factory=default, metadata={_KEY: made})
    return field(default=default, metadata={_KEY: made})


class Settings:
    """Base of a dataclass of options: their values are checked, and lists become tuples where the type says so.

    Raises:
        UserError: an option of another type, or out of bounds.
    """

    def __post_init__(self) -> None:
        check_options(self)


def check_options(settings: Any, prefix: str = "") -> None:
    """The check of every option of a dataclass; errors call it by `prefix` and its name. Raises UserError."""
    kind = settings.__class__
    hints = hints_of(kind)
    for name, declared in options_of(kind).items():
        value = getattr(settings, name)
        declared.check(prefix + name, value, hints[name])
        if isinstance(value, list) and any(get_origin(each) is tuple for each in alternatives(hints[name])):
            object.__setattr__(settings, name, _tuples(value))


def options_of(settings: type[Any]) -> dict[str, Option]:
    """The declaration of each field of a dataclass, by name. A subclass that changes the default keeps the rest."""
    declared: dict[str, Option] = {}
    for kind in reversed(settings.__mro__):
        for name, each in vars(kind).get("__dataclass_fields__", {}).items():
            if name not in declared or _KEY in each.metadata:
                declared[name] = each.metadata.get(_KEY) or Option()
    return {each.name: declared[each.name] for each in fields(settings)}


def path_roles_of(settings: type[Any]) -> dict[str, PathRole]:
    """What the fields of a dataclass name on disk, by field."""
    return {name: each.path for name, each in options_of(settings).items() if each.path is not None}


@cache
def texts_of(settings: Any) -> dict[str, str]:
    """What stands below the declaration of each option of a dataclass and its bases, in one line."""
    from docstring_parser import parse_from_object

    return {
        each.arg_name: " ".join((each.description or "").split())
        for kind in reversed(settings.__mro__[:-1])
        for each in parse_from_object(kind).params
    }


@cache
def hints_of(settings: Any) -> dict[str, Any]:
    """The type of each field of a dataclass, by name: `typing.get_type_hints`, which takes milliseconds, once."""
    return get_type_hints(settings)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
