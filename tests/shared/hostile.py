"""How hostile tests ask: one call of the command line in this process, which must end in one line and leave nothing."""

from __future__ import annotations

import ast
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

from vargen.cli import main

ROOT = Path(__file__).parents[2]
Damage = Callable[[Path], object]
"""What is done to a folder before a command reads it."""


@dataclass(frozen=True)
class Case:
    """One input.

    Args:
        name: what is wrong.
        command: the command line; `{work}` stands for an empty folder, other words in braces for what a test has.
        expected: must stand in the one line.
        damage: done before, to the folder `{work}`.
    """

    name: str
    command: str
    expected: str
    damage: Damage | None = None

    def __str__(self) -> str:
        return self.name


def each(cases: list[Case]) -> Any:
    """`pytest.mark.parametrize` over cases, by their names."""
    assert len({case.name for case in cases}) == len(cases)
    return pytest.mark.parametrize("case", cases, ids=str)


def arguments_of(command: str, places: Mapping[str, object]) -> list[str]:
    """A command line as a shell would cut it (quotes keep blanks), places filled in."""
    import shlex

    return [word.format_map(_Braces(places)) if "{" in word else word for word in shlex.split(command)]


class _Braces(dict):
    """Leaves braces alone that stand for nothing here, as in YAML."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def contents(folder: Path) -> dict[str, object]:
    """Everything in a folder: files by their bytes, links by where they lead."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def check_refused(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str], work: Path) -> None:
    """One line with `expected`, exit code 2, and `work` as it was."""
    before = contents(work)
    capsys.readouterr()
    code = main(arguments)
    told = capsys.readouterr()
    errors = [line for line in told.err.splitlines() if line.startswith("vargen: error: ")]
    assert code == 2, f"exit code {code}: {told.err[:1000]}"
    assert len(errors) == 1 and "Traceback" not in told.err, told.err[:1000]
    assert expected in errors[0], errors[0][:1000]
    assert len(errors[0]) < 1500, errors[0][:1000]
    after = contents(work)
    assert {name for name in {**before, **after} if before.get(name, 0) != after.get(name, 0)} == set()


def check_case(case: Case, places: Mapping[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    """`check_refused` of a case, behind its damage, in the folder `places["work"]`."""
    work = Path(str(places["work"]))
    if case.damage is not None:
        case.damage(work)
    check_refused(arguments_of(case.command, places), case.expected, capsys, work)


class Harm:
    """Pickled, it makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def write(name: str, content: bytes | str) -> Damage:
    """A file with this content, in a folder that is made."""

    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def shard(path: Path, files: dict[str, bytes]) -> Path:
    """A .tar of files by name."""
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def cut(name: str, share: float) -> Damage:
    """The first part of a file alone."""
    return lambda folder: (folder / name).write_bytes(
        (content := (folder / name).read_bytes())[: int(len(content) * share)]
    )


def change(name: str, **values: Any) -> Damage:
    """See `change_json`."""
    return lambda folder: change_json(folder / name, **values)


@lru_cache
def source_nodes() -> list[tuple[str, ast.AST]]:
    """Every call, attribute and import in the source, and its module's file."""
    packages = ("specdecode", "metrics", "vargen", "scenes", "integrations")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    of = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in files}
    kinds = (ast.Call, ast.Attribute, ast.Import, ast.ImportFrom)
    return [(name, node) for name, tree in of.items() for node in ast.walk(tree) if isinstance(node, kinds)]


def source_calls(*packages: str) -> list[tuple[str, ast.Call]]:
    """Every call in the source of packages; none: of all."""
    of = [(name, node) for name, node in source_nodes() if not packages or name.split("/")[0] in packages]
    return [(name, node) for name, node in of if isinstance(node, ast.Call)]


@cache
def called(node: ast.Call) -> str:
    """What a call names, such as "Image.open"."""
    return ast.unparse(node.func)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def change_json(path: Path, **values: Any) -> None:
    """Set entries of the object in a JSON file; None removes one."""
    content = json.loads(path.read_text())
    for name, value in values.items():
        content.pop(name, None)
        if value is not None:
            content[name] = value
    write_json(path, content)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes: what a full disk is to a writer."""
    import resource
    import signal

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
