"""Type hints read as checks: whether a value is of the kind that a hint names, and that kind in words.

Does not belong here: bounds of numbers (`bounds.py`), and which hint an argument or an option has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_ELEMENTS_LOOKED_AT = 4096
WORDS: dict[Any, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false", NoneType: "null"}
"""What errors about settings call a single type."""


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The parts of a union, else the hint alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_list(value: object) -> bool:
    """Whether it is a sequence, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind that a hint names.

    A list fits a tuple's hint, of any length, if each element fits one of the tuple's. An integer fits `float`, and a
    truth value no number. A hint that is not understood here fits every value.
    """
    home, inner = get_origin(hint), get_args(hint)
    if home in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if home is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if home is Callable:
        return callable(value)
    kind = home or hint
    if hint is Any or not isinstance(kind, type):
        return hint is not None or value is None
    if home is not None and issubclass(kind, Iterable) and not issubclass(kind, Mapping):
        parts = [each for each in inner if each is not ...]
        looked_at = islice(value, _ELEMENTS_LOOKED_AT) if is_list(value) else ()
        return is_list(value) and all(any(fits(one, each) for each in parts) for one in looked_at)
    return isinstance(value, kind)


def in_words(hint: Any, words: Mapping[Any, str] = WORDS) -> str:
    """What an error calls a kind.

    Args:
        hint: names it.
        words: of single types, by type.
    """
    parts = alternatives(hint)
    if len(parts) > 1:
        return " or ".join(dict.fromkeys(in_words(each, words) for each in parts))
    home, inner = get_origin(hint), get_args(hint)
    if home is Literal:
        return " or ".join(f'"{each}"' for each in inner)
    if home is Callable:
        return "callable"
    if home is not None and issubclass(home, Mapping):
        return "a mapping"
    if home is not None and inner:
        return f"a list (each {in_words(inner[0], words)})"
    return words.get(hint, getattr(hint, "__name__", str(hint)))
