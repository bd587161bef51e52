"""Prompts as data sets keep them: from a file or a folder to rows, each a mapping with a prompt in it.

Does not belong here: text files (`prompts.py`, which also says what a prompt is), and pictures: none is decoded.

| source | rows |
|---|---|
| `.json` | COCO's captions: every entry of "annotations"; or a list of strings or objects |
| a folder of `.txt` or `.json` | a row a text; the entries of all lists, each with the name of its file under `list` |
| `.parquet`, a folder that `Dataset.save_to_disk` wrote | its rows |
| `.tar`, a folder of them | a row a sample of webdataset: the object in `.json`, and the text `.txt` as its prompt |
| `hub:NAME` or `hub:NAME:SPLIT` | a data set on the hub; without SPLIT "train" |

All but texts and `.json` are read by datasets.
"""

from __future__ import annotations

import importlib.util
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import expanded, read_json, read_text, reading

TABLES = (".json", ".parquet", ".tar")
_IN_FOLDERS = (".tar", ".txt", ".json")
"""Files that are read of a folder: those of the first of these kinds that it has."""
HUB = "hub:"
_BESIDE = {
    *("image_id", "id", "file_name", "category", "challenge", "tag", "include", "exclude", "item_id"),
    *("proposition_id", "dependency", "category_broad", "question_natural_language"),
}
"""Columns of a data set that are read beside its prompts: numbers of pictures, and what benchmarks say of a prompt."""
Row = Mapping[str, Any]


def is_table(source: str) -> bool:
    """Whether a source is read here."""
    return source.startswith(HUB) or Path(source).suffix.lower() in TABLES or expanded(source).is_dir()


def read_rows(source: str, columns: tuple[str, ...], argument: str = "prompts_file") -> Iterator[tuple[str, Row]]:
    """The rows of a source, each with its place for errors.

    Args:
        source: a file, a folder, or a name after "hub:".
        columns: names of columns that can hold a prompt, or a picture. None is decoded.
        argument: what errors call the source.

    Raises:
        UserError: it cannot be read, or a package that reads it is not installed.
    """
    if source.startswith(HUB):
        name, _, split = source.removeprefix(HUB).partition(":")
        return _of_datasets(name, columns, argument, split=split or "train")
    path = expanded(source)
    if path.is_dir():
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return _of_datasets(str(path), columns, argument)
        kind, files = _files(path, argument)
        if kind == ".tar":
            return _of_shards(files, argument)
        if kind == ".txt":
            return _of_texts(files, argument)
        if kind == ".json":
            return ((place, {**row, "list": each.stem}) for each in files for place, row in _of_json(each, argument))
        raise UserError(
            f"{argument}: {path} holds neither a data set that save_to_disk wrote, nor .tar shards, nor .txt or .json "
            "files"
        )
    if path.suffix.lower() == ".json":
        return _of_json(path, argument)
    if path.suffix.lower() == ".tar":
        return _of_shards([path], argument)
    return _of_datasets(str(path), columns, argument, builder="parquet")


def _files(folder: Path, argument: str) -> tuple[str, list[Path]]:
    """The kind of files that are read of a folder, and these as pictures are listed: in natural order, without hidden
    ones. A warning tells of others that might have been meant: of the next kinds, and in folders below."""
    from metrics.images import is_hidden, natural_key, warn_of_left_out  # imports torch

    found = [each for each in folder.rglob("*") if each.suffix.lower() in _IN_FOLDERS and each.is_file()]
    found = [each for each in found if not is_hidden(each.relative_to(folder))]
    found.sort(key=lambda path: natural_key(path.relative_to(folder).as_posix()))
    for kind in _IN_FOLDERS:
        files = [each for each in found if each.parent == folder and each.suffix.lower() == kind]
        if files:
            left_out = [each.relative_to(folder).as_posix() for each in found if each not in {*files}]
            warn_of_left_out(f"{argument}: {folder}", left_out, "name their file or folder to read them")
            return kind, files
    return "", []


def _of_json(path: Path, argument: str) -> Iterator[tuple[str, Row]]:
    try:
        content = read_json(path, argument=argument)
    except FileNotFoundError:
        raise UserError(f"{argument}: {path} is missing; check its name") from None
    where = "annotation" if isinstance(content, dict) else "entry"
    entries = content.get("annotations") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise UserError(f'{argument}: {path} must hold a list, or COCO\'s captions under "annotations"')
    for number, entry in enumerate(entries, start=1):
        place = f"{argument}: {path}, {where} {number}:"
        if not isinstance(entry, str | dict):
            raise UserError(f"{place} need a string or an object")
        yield place, {"prompt": entry} if isinstance(entry, str) else entry


def _of_datasets(
    name: str, columns: Sequence[str], argument: str, *, builder: str | None = None, split: str | None = None
) -> Iterator[tuple[str, Row]]:
    """Rows of a data set.

    Args:
        name: a file or a folder, or with `split` a name on the hub.
        columns: which are read, beside those that say more of a prompt.
        argument: see `read_rows`.
        builder: what datasets calls the format of a file; None for its own.
        split: of a data set on the hub.
    """
    if importlib.util.find_spec("datasets") is None:
        raise UserError(f'{argument} needs datasets, which is not installed; run pip install "vargen[data]"')
    import datasets

    with reading(name, "check its name, or copy it again", argument):
        if builder is not None:  # as a stream, which leaves no second copy of the data on disk
            table: Any = datasets.load_dataset(builder, data_files=name, split="train", streaming=True)
        elif split is not None:
            table = datasets.load_dataset(name, split=split)
        else:
            table = datasets.load_from_disk(name)
        if isinstance(table, datasets.DatasetDict):
            if len(table) != 1:
                raise UserError(f"{argument}: {name} has the splits {', '.join(table)}; name the folder of one of them")
            (table,) = table.values()
        wanted = {*columns, *_BESIDE}
        table = table.select_columns([each for each in table.column_names if each.strip().lower() in wanted])
        for name_of, kind in (table.features or {}).items():
            if isinstance(kind, datasets.Image):  # its file is wanted, which may never be opened
                table = table.cast_column(name_of, datasets.Image(decode=False))
        for number, row in enumerate(table, start=1):
            yield f"{argument}: {name}, row {number}:", row


def _of_shards(paths: Sequence[Path], argument: str) -> Iterator[tuple[str, Row]]:
    for path in paths:
        with reading(path, argument=argument), path.open("rb") as file:
            file.seek(-tarfile.BLOCKSIZE, os.SEEK_END)
            if any(file.read()):  # datasets takes a shard that is cut off there for its end
                raise ValueError("it is cut off")
        for place, row in _of_datasets(str(path), ("txt", "json"), argument, builder="webdataset"):
            text = row.get("txt")
            yield place, {**(row.get("json") or {}), **({} if text is None else {"prompt": text})}


def _of_texts(paths: list[Path], argument: str) -> Iterator[tuple[str, Row]]:
    for path in paths:
        text = read_text(path, argument)
        yield f"{argument}: {path}:", {"prompt": " ".join(text.split()), "id": path.stem, "file_name": path.name}
