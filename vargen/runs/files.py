"""Files that are either whole or absent, and folders that one run at a time writes to.

Every file goes through a temporary file beside its target and one `os.replace`. A kill, a full disk or an exception
leaves the old content or the new, never half of either. Temporary files are created exclusively under random names, and
are locked as long as their writer lives. The next run removes those that no living process holds. Nothing replaces or
writes to a link, a device or a pipe.

Belongs here: writing, locking, leftovers. Does not belong here: the meaning of files. Nothing here imports torch, since
the command line uses this before it needs a model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import ntpath
import os
import posixpath
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.path_roles import check_replaceable
from vargen.base.reading import parse_json, read_bytes, reading, reason_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.PngImagePlugin import PngInfo

TEMPORARY_SUFFIX = ".vargen-tmp"
_REPLACED = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{16}}\.replaced{re.escape(TEMPORARY_SUFFIX)}")
"""The name of a folder that is about to give way to a new one."""


def _temporary_name(kind: str = "") -> str:
    """A hidden name beside the target, since `os.replace` is atomic within one file system."""
    return f".{secrets.token_hex(8)}{kind}{TEMPORARY_SUFFIX}"


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Hold a lock on an existing file or folder while the block lasts. A kill ends it, too.

    Yields:
        False where another process holds it; None without locks (Windows, some network file systems).
    """
    if fcntl is None:
        yield None
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # not waiting for a writer to a pipe
    try:
        held: bool | None = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
        except OSError:
            held = None
        yield held
    finally:
        os.close(descriptor)


def check_file_place(path: str | os.PathLike[str], argument: str) -> None:
    """Refuse a file that could not be written at the end of a long run. Raises UserError."""
    check_replaceable(path, argument)
    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"{argument}: there is no folder {Path(path).absolute().parent}; make it first")


@contextmanager
def _temporary(path: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """A new temporary file or folder beside `path`, locked. Who clears up may take one before it is locked: then
    another is made."""
    with contextlib.ExitStack() as stack:
        held: bool | None = False
        while held is False:
            temporary = path.with_name(_temporary_name())
            make(temporary)
            with contextlib.suppress(FileNotFoundError):
                held = stack.enter_context(_locked(temporary))
            if held and not temporary.exists():
                held = False
        yield temporary


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the system name the target, where they name nothing or the temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and str(error.filename or TEMPORARY_SUFFIX).endswith(TEMPORARY_SUFFIX):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends well and is removed when it does not.

    Raises what the block raises, OSError where the folder cannot be written, and UserError as `check_replaceable`.
    """
    path = Path(path)
    check_replaceable(path)
    with _naming(path), _temporary(path, lambda made: made.touch(exist_ok=False)) as temporary:
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:  # KeyboardInterrupt too: a stopped run must not leave a temporary file behind
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new, empty temporary folder; it takes the place of `path` (whatever was there before) when the block
    ends well.

    At no moment does `path` hold a mixture. After a kill between the two renames at the end it is absent, and
    `remove_leftovers` brings the old one back.
    """
    path = Path(path)
    check_replaceable(path, folder=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    replaced = path.with_name(f".{path.name}{_temporary_name('.replaced')}")
    with _temporary(path, Path.mkdir) as temporary, contextlib.ExitStack() as stack:
        try:
            yield temporary
            _open_to_others(temporary)
            if path.exists():
                stack.enter_context(_locked(path))
                os.replace(path, replaced)
            os.replace(temporary, path)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            if replaced.exists() and not path.exists():
                os.replace(replaced, path)
            raise


def _open_to_others(folder: Path) -> None:
    """Give files the readers of the folder, since some libraries write weights for their owner alone."""
    readers = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(readers)


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`, whole or not at all. The folder must exist. Raises OSError."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON with a final newline, whole or not at all."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def save_image_atomic(image: Image, path: str | os.PathLike[str], *, pnginfo: PngInfo | None = None) -> None:
    """Save a PIL image as PNG, whole or not at all, in a folder that is made where it is missing. `pnginfo` holds text
    to store inside the file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        image.save(temporary, format="PNG", pnginfo=pnginfo)


def append_jsonl(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Append `record` as one line of JSON, in one write.

    A last line without its newline is left from a killed or refused write. It is cut off first, so that a file which
    only this function writes always parses. If the write fails, the file is cut back to its old length.
    """
    line = json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"
    check_replaceable(path)
    with _naming(Path(path)), open(path, "ab+", buffering=0) as file:
        end = _end_of_complete_lines(file)
        file.truncate(end)
        try:
            view = memoryview(line)
            while view:  # a raw write may take less than everything, on a nearly full disk for one
                view = view[file.write(view) :]
        except BaseException:
            file.truncate(end)
            raise


def cut_unfinished_line(path: str | os.PathLike[str]) -> None:
    """Cut off a last line without its newline, which a killed write left. An absent file is none."""
    if os.path.lexists(path):
        with _naming(Path(path)), open(path, "rb+") as file:
            file.truncate(_end_of_complete_lines(file))


def _end_of_complete_lines(file: Any) -> int:
    """The length of `file` (opened for bytes) up to and including its last newline."""
    if not file.seek(0, os.SEEK_END):
        return 0  # of nothing there is no map
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1


def read_jsonl(path: str | os.PathLike[str], once: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The records of a JSON-lines file but for a half-written last line; none of an absent file.

    Args:
        path: the file.
        once: fields that no two records may share all of.

    Raises:
        UserError: another line that is no JSON object, or a record that comes twice.
    """
    if not os.path.lexists(path):
        return []
    with reading(path, "repair or delete it"):
        content = read_bytes(Path(path))
    records: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except (ValueError, RecursionError) as error:
            reason = reason_of(error)
            raise UserError(f"{path}: line {number} is not JSON ({reason}); repair or delete the file") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}: line {number} is no record; repair or delete the file")
        told = json.dumps([record.get(name) for name in once])
        if once and (first := seen.setdefault(told, number)) != number:
            raise UserError(f"{path}: line {number} repeats the record of line {first}; repair or delete the file")
        records.append(record)
    return records


def pixels_of(image: Image) -> str:
    """A short digest of a picture's size, mode and pixels."""
    return hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).hexdigest()[:16]


def read_png(path: Path) -> tuple[str | None, dict[str, str]]:
    """The pixels of a PNG, see `pixels_of`, and its texts; None and nothing where it is missing, not whole, or of
    another kind."""
    from metrics.images import open_whole

    if not path.is_file():
        return None, {}
    try:
        with open_whole(path, ("PNG",)) as image:
            return pixels_of(image), dict(image.text)  # type: ignore[attr-defined]  # PNG images have it
    except MemoryError:
        raise
    except Exception:  # half a dozen kinds; whatever it is, the picture is made again
        return None, {}


def inside(folder: Path, name: object, linked: bool = False) -> Path:
    """The path of a name that stands in a file, in that file's folder. Every such name becomes a path here.

    Args:
        folder: of the file.
        name: as it stands there.
        linked: whether what has the name may be a link out of the folder, as in the cache of a hub.

    Raises:
        UserError: no name, one that leads out of the folder on any system, or longer than a file's can be.
    """
    if isinstance(name, str) and name and "\0" not in name and max(map(len, name.split("/"))) < 256:
        leads = [each.normpath(name).split(each.sep)[0] for each in (posixpath, ntpath)]
        is_plain = not PureWindowsPath(name).anchor and not posixpath.isabs(name) and ".." not in leads
        if is_plain and (linked or (folder / name).resolve().is_relative_to(folder.resolve())):
            return folder / name
    raise UserError(f"{folder}: {name!r:.100} is not the name of something in it; repair or delete the record")


def copy_files(source: Path, folder: Path, left_out: Sequence[str] = ()) -> None:
    """Copy the files of a model's folder, but no link that leads elsewhere: what it leads to would be published.

    A link within the folder is copied as what it leads to; so are those of a hub's cache, which all lead to `blobs`.

    Args:
        source: of the model.
        folder: is made.
        left_out: patterns of names.
    """
    real = source.resolve()
    homes = (real, real.parents[1] / "blobs") if real.parent.name == "snapshots" else (real,)
    for place, folders, names in os.walk(real):
        folders[:] = [each for each in folders if not any(fnmatch(each, pattern) for pattern in left_out)]
        for path in (Path(place) / name for name in names if not any(fnmatch(name, each) for each in left_out)):
            if path.is_file() and any(path.resolve().is_relative_to(home) for home in homes):
                target = folder / path.relative_to(real)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            else:
                warnings.warn(f"{path} is not copied: it is a link that leads elsewhere, or no file", stacklevel=2)


def remove_leftovers(folder: Path) -> None:
    """Delete the leftovers of killed writers in `folder`, and bring back a folder that one was about to replace.

    Files of living writers stay, so this may be called at any time.
    """
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError), _locked(leftover) as held:  # OSError: gone meanwhile, or a link, never ours
            if not held:
                continue
            if not leftover.is_dir():
                leftover.unlink()
            elif (replaced := _REPLACED.fullmatch(leftover.name)) and not (folder / replaced["name"]).exists():
                os.replace(leftover, folder / replaced["name"])
            else:
                shutil.rmtree(leftover)


@contextmanager
def own_folder(folder: str | os.PathLike[str], inside: Iterable[str] = (), argument: str = "output") -> Iterator[None]:
    """Make `folder` where it is missing, clear it of leftovers of killed writers, and keep other runs out of it.

    The lock ends with the process, however that ends. Folders that were made here and are empty at the end are removed,
    so that a failed start leaves nothing.

    Args:
        folder: where a run writes.
        inside: patterns of folders in it to which the run writes as well, such as "*/images".
        argument: the argument that named the folder.

    Raises:
        UserError: another run is writing there, it cannot be written, a file is in the way, or a link is `inside`.
    """
    folder = Path(folder)
    places = (folder, *folder.absolute().parents)
    existing = next(place for place in places if os.path.lexists(place))
    if not existing.is_dir():
        raise UserError(f"{argument}: {existing} is a file; name a folder")
    if not os.access(existing, os.W_OK):
        raise UserError(f"{argument}: {existing} cannot be written; name another folder")
    made = [place for place in places if not place.exists()]
    patterns = tuple(inside)
    before = {place for pattern in patterns for place in folder.glob(pattern)}
    remove_leftovers(folder.parent)  # this very folder may have been about to be replaced
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder.resolve()) as held:
            if held is False:
                raise UserError(f"{argument}: another run is writing to {folder}; wait for it or name another")
            remove_leftovers(folder)
            for place in (place for pattern in patterns for place in folder.glob(pattern)):
                check_replaceable(place, argument, folder=True)
                remove_leftovers(place)
            yield
    finally:
        new = sorted({place for pattern in patterns for place in folder.glob(pattern)} - before, reverse=True)
        for place in (*new, *made):
            with contextlib.suppress(OSError):  # something was kept
                place.rmdir()
