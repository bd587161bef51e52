"""Reading what users can damage: whatever a library raises then becomes one line that names the file and the remedy.

Does not belong here: the form of a file's content; its reader knows it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from vargen.base.bounds import MAX_ARGUMENT, is_too_deep
from vargen.base.errors import UserError

_LONGEST_REASON = 200
_PLAIN_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)\Z"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*\.(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
    ),
}
"""Texts that are numbers: YAML 1.1's without the bases sixty and eight, and 1e5 without a point."""
_NO_DATES = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


@contextmanager
def reading(place: str | os.PathLike[str], remedy: str = "copy it again", argument: str = "") -> Iterator[None]:
    """Within, a library reads `place`, and nothing else happens.

    Args:
        place: a file or a folder.
        remedy: what to do about it.
        argument: which one named it.

    Raises:
        UserError: in place of anything that the library raises. A damaged file can raise anything: half a dozen kinds
            of errors from PIL, a bare `Exception` from tokenizers, a RecursionError from json.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        kind = type(error).__name__
        if kind == "OutOfMemoryError" or not (isinstance(error, Exception) or kind == "PanicException"):
            raise
        where = f"{argument}: {place}" if argument else f"{place}"
        raise UserError(f"{where} cannot be read ({reason_of(error)}); {remedy}") from error


def reason_of(error: BaseException) -> str:
    """The message of an error in one line: its first sentence, since numpy's second is how to load a file unsafely."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = (isinstance(error, OSError) and error.strerror) or str(error).strip() or type(error).__name__
    line = re.split(r"(?<=\w)\. ", " ".join(said.split()))[0].rstrip(".:")
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with "~" and "~name" replaced. The name of nobody stays: pathlib raises a RuntimeError for it."""
    return Path(os.path.expanduser(path))


def read_bytes(path: Path, argument: str = "") -> bytes:
    """All of a regular file: a pipe would be waited for, and a device may never end. Raises UserError for anything
    else, and OSError."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        where = f"{argument}: {path}" if argument else f"{path}"
        raise UserError(f"{where} is a device or a pipe; name a file")
    return path.read_bytes()


def read_text(path: Path, argument: str) -> str:
    """All of a text file in UTF-8, with or without a mark at its beginning. Raises UserError."""
    with reading(path, "save it as UTF-8", argument):
        return read_bytes(path, argument).decode("utf-8-sig")


def read_json(path: Path, remedy: str = "copy it again", argument: str = "") -> Any:
    """The content of a JSON file. Raises FileNotFoundError for a missing one, and UserError for anything else."""
    with _there(path), reading(path, remedy, argument):
        return parse_json(read_bytes(path, argument))


class RepeatedKeyError(ValueError):
    """A key that stands twice in one object; json.loads takes the last."""


def parse_json(text: str | bytes) -> Any:
    """`json.loads`; a ValueError also for what is nested too deeply, RepeatedKeyError for a key that comes twice."""
    try:
        return json.loads(text, object_pairs_hook=_object_of)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKeyError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return found


def read_yaml(path: Path, remedy: str = "repair it", argument: str = "") -> Any:
    """The content of a YAML file of plain values. Raises FileNotFoundError for a missing one, else UserError: also for
    one that is too long for options, which their reader would take minutes for."""
    with _there(path), reading(path, remedy, argument):
        if os.path.isfile(path) and (size := os.path.getsize(path)) > MAX_ARGUMENT:
            raise ValueError(f"it has {size:,} bytes, and a file of options at most {MAX_ARGUMENT:,}")
        return parse_yaml(read_bytes(path, argument).decode("utf-8-sig"))


@lru_cache
def _plain_loader() -> type[Any]:
    """PyYAML's safe loader without what YAML 1.1 has and nobody means: two values under one key, of which the last
    counts; numbers to the base sixty, by which 1:30 is 90; and dates."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _check_keys(self, node)
            return super().construct_mapping(node, deep)

    PlainLoader.yaml_implicit_resolvers = {
        first: [(tag, _PLAIN_NUMBERS.get(tag, pattern)) for tag, pattern in resolvers if tag != _NO_DATES]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return PlainLoader


def _check_keys(loader: Any, node: Any) -> None:
    """Raises YAMLError for a mapping with a key that comes twice, or is merged into it, as a second one may be."""
    import yaml

    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            raise yaml.YAMLError(f"it merges keys (<<) in line {key_node.start_mark.line + 1}; write them out")
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, Hashable):
            if key in seen:
                raise yaml.YAMLError(f"{key} is there twice, again in line {key_node.start_mark.line + 1}")
            seen.add(key)


@lru_cache
def parser_mode() -> str:
    """The mode of jsonargparse's parsers by which they read options and files with `parse_yaml`."""
    from jsonargparse import set_loader

    def load(text: str) -> Any:
        if not text.strip():
            return text
        value = parse_yaml(text)
        # "{a cube}" is a prompt, and neither a mapping of None nor an error.
        return text if isinstance(value, dict) and ":" not in text else value

    set_loader("plain-yaml", load, exceptions=(ValueError,))
    return "plain-yaml"


def parse_yaml(text: str) -> Any:
    """Plain values of YAML.

    Raises:
        ValueError: what is none, a key that comes twice, and aliases: a line of them can mean gigabytes.
    """
    import yaml

    if is_too_deep(text):
        raise ValueError("it is nested too deeply")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("it uses aliases (*name); write values out")
        return yaml.load(text, Loader=_plain_loader())
    except yaml.YAMLError as error:
        # What PyYAML says of a place has lines of the file in it, which may be anything.
        parts = [getattr(error, name, None) for name in ("context", "problem")]
        mark = getattr(error, "problem_mark", None)
        said = ", ".join(filter(None, parts)) or " ".join(str(error).split())
        raise ValueError(f"it is not YAML: {said}{'' if mark is None else f' in line {mark.line + 1}'}") from error


@contextmanager
def _there(path: Path) -> Iterator[None]:
    """Lets a missing file through as it is; names that no system takes are not missing but wrong."""
    with reading(path):
        is_there = os.path.lexists(path)
    if not is_there:
        raise FileNotFoundError(2, "No such file or directory", str(path))
    yield
