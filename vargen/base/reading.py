"""Reading what users can damage: whatever a library raises then becomes one line that names the file and the remedy.

Belongs here: JSON, YAML, and the border to libraries that read weights, tokenizers, arrays and videos. Does not belong
here: what should stand in a file; its reader knows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vargen.base.bounds import is_too_deep
from vargen.base.errors import UserError

_LONGEST_REASON = 200


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
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        where = f"{argument}: {place}" if argument else f"{place}"
        raise UserError(f"{where} cannot be read ({reason_of(error)}); {remedy}") from error


def reason_of(error: BaseException) -> str:
    """What an error says, in one line: its first sentence, since numpy's second is how to load a file unsafely."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = (isinstance(error, OSError) and error.strerror) or str(error).strip() or type(error).__name__
    line = re.split(r"(?<=\w)\. ", " ".join(said.split()))[0].rstrip(".:")
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def read_json(path: Path, remedy: str = "copy it again", argument: str = "") -> Any:
    """What a JSON file holds. Raises FileNotFoundError where there is none, and UserError for anything else."""
    with _there(path), reading(path, remedy, argument):
        return json.loads(path.read_bytes())


def read_yaml(path: Path, remedy: str = "repair it", argument: str = "") -> Any:
    """What a YAML file of plain values holds. Raises FileNotFoundError where there is none, else UserError."""
    with _there(path), reading(path, remedy, argument):
        return parse_yaml(path.read_bytes().decode("utf-8-sig"))


def parse_yaml(text: str) -> Any:
    """Plain values of YAML. Raises ValueError for what is none, and for aliases: a line of them can mean gigabytes."""
    import yaml

    if is_too_deep(text):
        raise ValueError("it is nested too deeply")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("it uses aliases (*name); write values out")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error


@contextmanager
def _there(path: Path) -> Iterator[None]:
    """Lets a missing file through as it is; names that no system takes are not missing but wrong."""
    with reading(path):
        is_there = os.path.lexists(path)
    if not is_there:
        raise FileNotFoundError(2, "No such file or directory", str(path))
    yield
