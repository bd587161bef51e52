"""Paths in options: which a command reads and which it writes, and that no output takes an input's place.

Does not belong here: writing (`vargen.runs.files`), and whether a path is there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import expanded
from vargen.base.resources import shipped_models, shipped_video_models

IN_A_TRAINING = ("samples", "generated", "answers", "codes")
"""Folders of a training beside its export."""
_DEPTH_OF_A_MODEL = 2
"""Folders between a model's own folder and its files."""


@dataclass(frozen=True)
class PathRole:
    """What an argument names on disk.

    Args:
        kind: "read" is a file or a folder. "read names" is files, separated by commas, or mere names. "read model" is a
            folder, or the name of a shipped model. "file" is written. "folder" is written to. "replaced" is a folder
            that gives way as a whole.
        shown: the word for it in help texts.
        names: what is written in a "folder". A name that ends in "/" is a folder that gives way as a whole.
    """

    kind: str
    shown: str
    names: tuple[str, ...] = ()

    @property
    def is_read(self) -> bool:
        return self.kind.startswith("read")

    def conflict(self, output: Path, source: Path) -> str:
        """Why writing to `output` would change `source`; both are resolved. Empty where it would not."""
        if output == source:
            return f"{output} is also what {{}} names"
        if source.is_dir() and source in output.parents:
            return f"{output} lies in {source}, which {{}} names"
        if self.kind == "replaced" and output in source.parents:
            return f"{output} holds {source}, which {{}} names, and would be replaced"
        for name in self.names:
            written = (output / name).resolve()
            if written == source or (name.endswith("/") and written in source.parents):
                return f"{written} would be replaced, and {{}} names {source}"
        return ""


READ = PathRole("read", "PATH")
READ_FILE = PathRole("read", "FILE")
READ_FOLDER = PathRole("read", "FOLDER")
READ_NAMES = PathRole("read names", "TEXT")
MODEL = PathRole("read model", "TEXT")
WRITTEN_FILE = PathRole("file", "FILE")
REPLACED = PathRole("replaced", "FOLDER")


def writes_in(*names: str) -> PathRole:
    """The role of a folder in which a command writes these."""
    return PathRole("folder", "FOLDER", names)


def check_paths(roles: Mapping[str, PathRole], values: Mapping[str, Any]) -> None:
    """Refuse an output that takes the place of an input, lies among the files of a model, or cannot be written because
    something else has its name.

    Args:
        roles: what arguments name. Mappings and lists among the other arguments are searched for files and folders
            that are there.
        values: arguments by name.

    Raises:
        UserError: see above.
    """
    read = list(_read(roles, values))
    for name, role in roles.items():
        if not role.is_read and values.get(name) == "" and (role.names or role.kind != "folder"):
            raise UserError(f"{name} must name a place, got an empty name")
        if role.is_read or not values.get(name):
            continue
        if re.match(r"\w+://|\$\{", os.fspath(values[name])):  # would be a folder `s3:`, or of that very name
            raise UserError(f"{name} must be a path on this machine as it is, got {values[name]!r:.80}; write it out")
        output = expanded(values[name]).resolve()
        for argument, source in read:
            if reason := role.conflict(output, source):
                raise UserError(f"{name}: {reason.format(argument)}; name another place")
        around = (output, *output.parents)[: _DEPTH_OF_A_MODEL + 1]
        if role.kind != "replaced" and (model := next(filter(_holds_a_model, around), None)):
            raise UserError(f"{name}: {model} holds a model, whose files stay as they are; name a place outside of it")
        for file in (each for each in role.names if Path(each).suffix):
            check_replaceable(output / file, name)


def check_replaceable(path: str | os.PathLike[str], argument: str = "output", folder: bool = False) -> None:
    """Raises UserError where something else than a regular file, or than a folder for `folder`, is in the way."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
        found = kinds.get(stat.S_IFMT(mode), "a device or a pipe")
        raise UserError(f"{argument}: {path} is {found}; name a {'folder' if folder else 'file'}")


def _read(roles: Mapping[str, PathRole], values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Files and folders that are read and are there, each with its argument."""
    for name, value in values.items():
        role = roles.get(name)
        if (role is None and isinstance(value, str)) or (role is not None and not role.is_read):
            continue
        kind = "" if role is None else role.kind
        for argument, given in _named(name, value.split(",") if kind == "read names" and value else value):
            path = expanded(given)
            if not _is_there(path) or (kind == "read model" and given in (*shipped_models(), *shipped_video_models())):
                continue
            if role is not None and not (path.is_file() or path.is_dir()):
                raise UserError(f"{name}: {path} is a device or a pipe, which may never end; name a file")
            if kind != "read names" or path.is_file():
                yield argument, path.resolve()


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, for one; its reader says so
        return False


def _named(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """What could be paths in a value, each with its argument."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named(name, inner)
    elif isinstance(value, str | os.PathLike) and 0 < len(os.fspath(value)) < os.pathconf("/", "PC_PATH_MAX"):
        yield name, os.fspath(value)


def _holds_a_model(folder: Path) -> bool:
    """Whether it is a model's folder, in the layout of diffusers or of transformers."""
    if (folder / "model_index.json").is_file():
        return True
    return (folder / "config.json").is_file() and any(
        next(folder.glob(pattern), None) is not None for pattern in ("*.safetensors", "*.bin", "*.index.json")
    )
