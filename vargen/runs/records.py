"""Records of finished work, one JSON line each, in memory or on disk, so that a killed run can be continued.

`Records` keeps the calls of a comparison of methods. `PictureFolder` keeps pictures in a folder with `images/`,
`result.jsonl` and `config.json`. A PNG is written whole or not at all, and carries its own record as a text chunk named
"vargen". `result.jsonl` only gathers these records. It can be rebuilt from the pictures, so no kill can lose a line or
write one twice. Both refuse to continue another run (`vargen.runs.identity`).

Belongs here: keeping records. Does not belong here: making calls and pictures, and figures. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrics.speculation import CallRecord
from vargen.base.errors import UserError
from vargen.base.path_roles import check_replaceable
from vargen.base.reading import parse_json, read_json
from vargen.runs import files
from vargen.runs.identity import check_identity, digest

if TYPE_CHECKING:
    from PIL.Image import Image

RECORD_CHUNK = "vargen"
_PIXELS = "pixels"
"""The field with a digest of the picture's size, mode and pixels."""
_ANOTHER_FOLDER = "choose another --output or delete that one"
_DIGEST = "digest"
"""The field with the digest of the rest of a line. It reveals a change that is still valid JSON."""


class Records:
    """The calls of a run, one JSON line each. A killed run loses at most the call it was making.

    Args:
        path: the file; None keeps the records in memory.
        settings: everything that decides the result of a call; the first line of the file.

    Raises:
        UserError: the file belongs to a run with other settings.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path, self._settings = path, settings
        self.calls: dict[tuple[str, int], dict[str, Any]] = {}
        lines = [] if path is None else files.read_jsonl(path)
        self._begun = bool(lines)
        if path is not None and lines:
            earlier = lines[0].get("settings")
            check_identity(path, earlier, settings, holds="calls of a run", remedy=_ANOTHER_FOLDER)
        for number, line in enumerate(lines[1:], start=2):
            if line.pop(_DIGEST, None) != digest(line):
                raise UserError(f"output: {path}: line {number} is not as it was written; {_ANOTHER_FOLDER}")
            self.calls[line["method"], line["batch"]] = line

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self.calls

    def call_records(self, label: str) -> list[CallRecord]:
        """The cost of one method's calls, in the order of the batches."""
        calls = sorted((batch, call["call"]) for (method, batch), call in self.calls.items() if method == label)
        return [CallRecord(**call) for _, call in calls]

    def forget(self, label: str, batch: int) -> None:
        """Drop a call, so that it is made again."""
        self.calls.pop((label, batch), None)

    def add(self, call: dict[str, Any]) -> None:
        """Keep a call."""
        if self.path is not None:
            if not self._begun:  # not before a call is made: a failed start leaves nothing
                files.append_jsonl(self.path, {"settings": self._settings})
                self._begun = True
            files.append_jsonl(self.path, {**call, _DIGEST: digest(json.loads(json.dumps(call)))})
        self.calls[call["method"], call["batch"]] = call


@contextmanager
def own_calls(folder: str | None, inside: Sequence[str] = ()) -> Iterator[Path | None]:
    """The file in `folder` that keeps the calls of a comparison until its results are written. No other run writes to
    the folder meanwhile, and the file is gone when the block ends well. None without a folder.

    Args:
        folder: where the results go.
        inside: folders in it to which the run writes as well.

    Raises:
        UserError: another run is writing there, or something in the way is no regular file.
    """
    if folder is None:
        yield None
        return
    with files.own_folder(folder, inside):
        path = Path(folder) / "calls.jsonl"
        for name in (path.name, "results.json", "plot.png"):
            check_replaceable(Path(folder) / name)
        yield path
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ImageRequest:
    """One picture to make.

    Args:
        index: its number from 0, which names the PNG.
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
        """Path of the picture, relative to the folder."""
        return f"images/{self.index:06d}.png"

    def to_record(self) -> dict[str, Any]:
        """The part of the record that is known before the picture is made."""
        condition = {"text": self.text} if self.class_label is None else {"class_label": self.class_label}
        return {"index": self.index, **condition, "image_path": self.image_path, "seed": self.seed}


class PictureFolder:
    """The pictures of one run on disk.

    Args:
        path: the folder, which no other run writes to (`vargen.runs.files.own_folder`).
        requests: every picture of the run, in order of index.
        traced: a picture without a trace image counts as missing.

    Processes that share a run `save` their pictures. When all have finished, one of them gathers the records (`scan`,
    `begin`). A single process adds each line at once (`add`).
    """

    INSIDE = ("images", "traces")
    """The folders in it."""

    def __init__(self, path: str | os.PathLike[str], requests: Sequence[ImageRequest], traced: bool = False) -> None:
        self.path = Path(path)
        self.requests = requests
        self._traced = traced
        self.records: dict[int, dict[str, Any]] = {}
        self._config: Mapping[str, Any] = {}
        self._written_before = 0  # `result.jsonl` has the lines of all finished pictures before this number

    @property
    def missing(self) -> list[ImageRequest]:
        """The missing pictures, in order."""
        return [request for request in self.requests if request.index not in self.records]

    def earlier_settings(self) -> dict[str, Any] | None:
        """The settings of the run that began this folder; None for a new folder. Raises UserError where pictures,
        results or a config.json are not of such a run."""
        config = self.path / "config.json"
        if not config.exists():
            for name in ("images", "result.jsonl"):
                if (self.path / name).exists():
                    raise UserError(f"output: {self.path / name} is not of a `vargen generate` run; {_ANOTHER_FOLDER}")
            return None
        content = read_json(config, _ANOTHER_FOLDER, "output")
        settings = content.get("settings") if isinstance(content, dict) else None
        if not isinstance(settings, dict):
            raise UserError(f"output: {config} is not of a `vargen generate` run; {_ANOTHER_FOLDER}")
        return settings

    def check_identity(self, settings: Mapping[str, Any]) -> None:
        """Refuse to continue a run with other settings. Raises UserError naming the difference."""
        if (earlier := self.earlier_settings()) is not None:
            check_identity(self.path, earlier, settings, holds="a run", remedy=_ANOTHER_FOLDER)

    def scan(self) -> None:
        """Find the finished pictures: whole PNGs with the record of their request and the pixels that it says.

        A picture whose text chunk was lost, by an optimiser for instance, counts if `result.jsonl` still has its line.
        """
        records = files.read_jsonl(self.path / "result.jsonl")
        lines = {record["index"]: record for record in records if isinstance(record.get("index"), int)}
        self.records = {}
        for request in self.requests:
            path = self.path / request.image_path
            if not path.is_file() or (self._traced and not self._trace_path(request).is_file()):
                continue
            pixels, record = _read_image_record(path)
            record = lines.get(request.index) if record is None else record
            if record is not None and record.items() >= {**request.to_record(), _PIXELS: pixels}.items():
                self.records[request.index] = record

    def begin(self, config: Mapping[str, Any]) -> None:
        """Bring `result.jsonl` up to date. `config` is written with the first picture."""
        self._config = config
        self._written_before = max(self.records, default=-1) + 1
        self._write_results()

    def add(
        self, request: ImageRequest, image: Image, measured: Mapping[str, Any], trace_image: Image | None = None
    ) -> None:
        """Save a finished picture and add its line, with the arguments of `save`."""
        self.save(request, image, measured, trace_image)
        if request.index < self._written_before:  # a gap in a resumed run
            self._write_results()
        # Pictures are finished in any order, and their lines are written in order.
        while self._written_before in self.records:
            files.append_jsonl(self.path / "result.jsonl", self.records[self._written_before])
            self._written_before += 1

    def save(
        self, request: ImageRequest, image: Image, measured: Mapping[str, Any], trace_image: Image | None = None
    ) -> None:
        """Save a finished picture, which carries its record.

        Args:
            request: which picture.
            image: the picture.
            measured: the rest of the record.
            trace_image: a drawing for `traces/`; None for none.
        """
        from PIL.PngImagePlugin import PngInfo

        if not (self.path / "config.json").exists():
            files.write_json_atomic(self.path / "config.json", self._config)
        if trace_image is not None:  # before the picture, which marks the end
            files.save_image_atomic(trace_image, self._trace_path(request))
        record = {**request.to_record(), **measured, _PIXELS: files.pixels_of(image)}
        chunk = PngInfo()
        chunk.add_itxt(RECORD_CHUNK, json.dumps(record, ensure_ascii=False))
        files.save_image_atomic(image, self.path / request.image_path, pnginfo=chunk)
        self.records[request.index] = record

    def _trace_path(self, request: ImageRequest) -> Path:
        return self.path / "traces" / Path(request.image_path).name

    def _write_results(self) -> None:
        """Rebuild `result.jsonl` in order, if it differs from the records of the pictures."""
        written = [index for index in sorted(self.records) if index < self._written_before]
        content = "".join(json.dumps(self.records[index], ensure_ascii=False) + "\n" for index in written)
        path = self.path / "result.jsonl"
        if (path.read_bytes() if path.exists() else b"") != content.encode():
            files.write_atomic(path, content)


def _read_image_record(path: Path) -> tuple[str | None, dict[str, Any] | None]:
    """The pixels of a PNG, see `files.pixels_of`, None where it is not whole; and its record, if it has one."""
    pixels, told = files.read_png(path)
    try:
        record = parse_json(told.get(RECORD_CHUNK, ""))
    except ValueError:
        record = None
    return pixels, record if isinstance(record, dict) else None
