"""A folder of generated pictures that a killed run leaves resumable: `images/`, `result.jsonl`, `config.json`.

A picture is finished when its PNG is: it is written whole or not at all, and carries its own record as a text chunk
named "vargen". `result.jsonl` only gathers these records, so it can always be rebuilt from the pictures, and no moment
of a kill can lose a line or write one twice. `config.json` says what decides the pictures; a run with other settings
is refused before anything is touched. Nothing here makes a picture, and nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.runs.files import (append_jsonl, read_jsonl, remove_leftovers, save_image_atomic, write_atomic, write_json_atomic)
from vargen.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

RECORD_CHUNK = "vargen"
_ANOTHER_FOLDER = "choose another --output or delete that one"


@dataclass(frozen=True)
class ImageRequest:
    """One picture to make.

    Args:
        index: its number, from 0; the PNG is named after it.
        seed: of its own random generator.
        text: the prompt; None for a class-conditional model.
        class_label: the class; None for a text-conditional model.
    """

    index: int
    seed: int
    text: str | None = None
    class_label: int | None = None

    @property
    def image_path(self) -> str:
        """Where the picture lies, relative to the folder."""
        return f"images/{self.index:06d}.png"

    def to_record(self) -> dict[str, Any]:
        """The part of the record that is known beforehand."""
        condition = {"text": self.text} if self.class_label is None else {"class_label": self.class_label}
        return {"index": self.index, **condition, "image_path": self.image_path, "seed": self.seed}


class ResultFolder:
    """The pictures of one run on disk.

    Args:
        path: the folder; made by `open_for_writing`, not before.
        requests: every picture of the run, in order of index.

    Raises:
        UserError: the path is a file, lies below one, or may not be written.
    """

    def __init__(self, path: str | os.PathLike[str], requests: Sequence[ImageRequest]) -> None:
        self.path = Path(path)
        self.requests = requests
        self.records: dict[int, dict[str, Any]] = {}
        existing = next(place for place in (self.path, *self.path.absolute().parents) if os.path.lexists(place))
        if not existing.is_dir():
            raise UserError(f"output: {existing} is a file; name a folder")
        if not os.access(existing, os.W_OK):
            raise UserError(f"output: {existing} cannot be written; name another folder")

    @property
    def missing(self) -> list[ImageRequest]:
        """The pictures still to be made, in order."""
        return [request for request in self.requests if request.index not in self.records]

    def earlier_settings(self) -> dict[str, Any] | None:
        """The settings of the run this folder was begun by, None for a new folder.

        Raises:
            UserError: the folder holds pictures, results or a config.json, but not of such a run.
        """
        config = self.path / "config.json"
        if not config.exists():
            for name in ("images", "result.jsonl"):
                if (self.path / name).exists():
                    raise UserError(f"output: {self.path / name} is not of a `vargen generate` run; {_ANOTHER_FOLDER}")
            return None
        try:
            settings = json.loads(config.read_bytes())["settings"]
        except (ValueError, KeyError, TypeError):
            settings = None
        if not isinstance(settings, dict):
            raise UserError(f"output: {config} is not of a `vargen generate` run; {_ANOTHER_FOLDER}")
        return settings

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse to continue a run with other settings. Raises UserError naming every difference."""
        earlier = self.earlier_settings()
        if earlier is None:
            return
        differences = [
            _describe_difference(name, earlier.get(name), settings.get(name))
            for name in {**earlier, **settings}
            if earlier.get(name) != settings.get(name)
        ]
        if differences:
            raise UserError(f"output: {self.path} holds a run with {', '.join(differences)}; {_ANOTHER_FOLDER}")

    def scan(self) -> None:
        """Find which pictures are finished: whole PNGs with the record of the picture asked for.

        A picture whose text chunk was lost, in an optimiser for instance, counts if `result.jsonl` still has its line.
        """
        lines = {record.get("index"): record for record in read_jsonl(self.path / "result.jsonl")}
        self.records = {}
        for request in self.requests:
            path = self.path / request.image_path
            if not path.is_file():
                continue
            found, record = _read_image_record(path)
            if found and record is None:
                record = lines.get(request.index)
            if record is not None and record.items() >= request.to_record().items():
                self.records[request.index] = record

    @contextlib.contextmanager
    def open_for_writing(self, config: Mapping[str, Any]) -> Iterator[None]:
        """Make the folder, write `config.json` if there is none, and keep other runs out until the block ends.

        Raises:
            UserError: another run is writing there.
            OSError: the disk is full, ...
        """
        (self.path / "images").mkdir(parents=True, exist_ok=True)
        with exclusive(self.path):
            remove_leftovers(self.path)
            remove_leftovers(self.path / "images")
            if not (self.path / "config.json").exists():
                write_json_atomic(self.path / "config.json", config)
            self._write_results()
            yield

    def add(self, request: ImageRequest, image: Image, measured: Mapping[str, Any]) -> None:
        """Save a finished picture and add its line; `measured` completes the record."""
        from PIL.PngImagePlugin import PngInfo

        record = {**request.to_record(), **measured}
        chunk = PngInfo()
        chunk.add_itxt(RECORD_CHUNK, json.dumps(record, ensure_ascii=False))
        save_image_atomic(image, self.path / request.image_path, pnginfo=chunk)
        in_order = request.index > max(self.records, default=-1)
        self.records[request.index] = record
        if in_order:
            append_jsonl(self.path / "result.jsonl", record)
        else:  # a gap in a resumed run
            self._write_results()

    def add_trace_image(self, request: ImageRequest, image: Image) -> None:
        """Save the picture of how a picture came about, `traces/000000.png`."""
        folder = self.path / "traces"
        folder.mkdir(exist_ok=True)
        save_image_atomic(image, folder / f"{request.index:06d}.png")

    def _write_results(self) -> None:
        """Rebuild `result.jsonl`, in order, if it does not say what the pictures say."""
        content = "".join(json.dumps(self.records[i], ensure_ascii=False) + "\n" for i in sorted(self.records))
        path = self.path / "result.jsonl"
        if not path.exists() or path.read_bytes() != content.encode():
            write_atomic(path, content)


def _describe_difference(name: str, earlier: Any, now: Any) -> str:
    if name == "prompts" and isinstance(earlier, list) and isinstance(now, list):
        if len(earlier) != len(now):
            return f"another number of prompts ({len(earlier)}, now {len(now)})"
        first = next(index for index in range(len(now)) if earlier[index] != now[index])
        return f"another prompt {first + 1} ({_shorten(earlier[first])}, now {_shorten(now[first])})"
    if name == "weights":
        return "other weights of the model"
    return f"another {name} ({_shorten(earlier)}, now {_shorten(now)})"


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_image_record(path: Path) -> tuple[bool, dict[str, Any] | None]:
    """Whether a PNG is whole, and the record in it, if any."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()  # decodes every pixel, so a truncated file fails here
            text = image.text.get(RECORD_CHUNK)  # type: ignore[attr-defined]  # PNG images have it
    except (OSError, SyntaxError, ValueError, AttributeError):  # SyntaxError: what PIL calls a broken PNG
        return False, None
    try:
        record = json.loads(text) if text is not None else None
    except ValueError:
        record = None
    return True, record if isinstance(record, dict) else None


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a lock on `folder` that ends with the process, however that ends; nothing where there are none (Windows)."""
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
            raise UserError(f"output: another run is writing to {folder}; wait for it, or choose another") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)
