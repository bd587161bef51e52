"""Files that are either whole or absent.

Every file this project writes goes through a temporary file beside its target and one `os.replace`, so a kill, a full
disk or an exception leaves the old content or the new, never half of either. Nothing here knows what the files mean,
and nothing here imports torch: the command line uses this module before it knows whether it will need a model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.PngImagePlugin import PngInfo

TEMPORARY_SUFFIX = ".vargen-tmp"


def _temporary_name(path: Path) -> Path:
    """A hidden name, private to this process, in the same folder: `os.replace` is atomic within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends well and is removed when it does not.

    `sync=True` also flushes the file to the disk before the swap, which a power failure can need and a killed process
    cannot. Raises what the block raises, and OSError where the folder cannot be written.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    try:
        yield temporary
        if sync:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # KeyboardInterrupt too: a stopped run must not leave a temporary file behind
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new, empty temporary folder; it takes the place of `path` (whatever was there before) when the block
    ends well.

    A kill between the two renames at the end can leave `path` absent with the complete new folder under its temporary
    name; at no moment does `path` hold a mixture.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    replaced = temporary.with_name(temporary.name + ".old")
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            os.replace(path, replaced)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if replaced.exists() and not path.exists():
            os.replace(replaced, path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def write_atomic(path: str | os.PathLike[str], data: bytes | str, *, sync: bool = False) -> None:
    """Write `data` (text as UTF-8) to `path`, whole or not at all. The folder must exist. Raises OSError."""
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with atomic_path(path, sync=sync) as temporary:
        temporary.write_bytes(payload)


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON with a final newline, whole or not at all."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def save_image_atomic(image: Image, path: str | os.PathLike[str], *, pnginfo: PngInfo | None = None) -> None:
    """Save a PIL image as PNG, whole or not at all. `pnginfo` holds text to store inside the file."""
    with atomic_path(path) as temporary:
        image.save(temporary, format="PNG", pnginfo=pnginfo)


def append_jsonl(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Append `record` as one line of JSON, in one write.

    A last line without its newline is what a killed or refused write left behind; it is cut off first, so that a file
    written only through this function always parses. If the write itself fails, the file is cut back to what it was.
    """
    line = json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"
    with open(path, "ab+", buffering=0) as file:
        end = _end_of_complete_lines(file)
        file.truncate(end)
        try:
            view = memoryview(line)
            while view:  # a raw write may take less than everything, on a nearly full disk for one
                view = view[file.write(view) :]
        except BaseException:
            file.truncate(end)
            raise


def _end_of_complete_lines(file: Any) -> int:
    """The length of `file` (opened for bytes) up to and including its last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a JSON-lines file but for a half-written last line; none of an absent file.

    Raises:
        UserError: another line is not JSON.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}: line {number} is not JSON ({error}); repair or delete the file") from error
    return records


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Delete temporary files that killed runs left in `folder`. Call it only while no other process writes there."""
    for leftover in Path(folder).glob(f".*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Make `folder`, and hold a lock on it that ends with the process, however that ends; no lock where there are none
    (Windows).

    Raises:
        UserError: another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"output: another run is writing to {folder}; wait for it or name another") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)
