"""Prompts as data sets keep them: COCO's annotations, parquet, folders of `datasets`, shards of webdataset.

Belongs here: from a file or a folder to rows, each a mapping with a prompt in it. Does not belong here: text files
(`prompts.py`, which also says what a prompt is), and pictures, which none of these readers decodes.

| source | rows |
|---|---|
| `.json` | COCO's captions: every entry of "annotations"; or a list of strings or objects |
| `.parquet` | its rows, read by pyarrow |
| a folder | one that `Dataset.save_to_disk` wrote, read by datasets; shards `.tar`; or texts `.txt`, a row a file |
| a folder of `.json` | the rows of all, which say under `list` of which file they are |
| `.tar` | a row a sample of webdataset: the texts `.txt`, `.caption` or `.prompt`, and the object in `.json` |
| `hub:NAME` or `hub:NAME:SPLIT` | a data set on the hub, read by datasets; without SPLIT "train" |
"""

from __future__ import annotations

import importlib.util
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import expanded, parse_json, read_json, read_text, reading

TABLES = (".json", ".parquet", ".tar")
HUB = "hub:"
_TEXTS = ("txt", "caption", "prompt")
_BESIDE = {
    *("image_id", "id", "file_name", "category", "challenge", "tag", "include", "exclude", "item_id"),
    *("proposition_id", "dependency", "category_broad", "question_natural_language"),
}
"""Columns of a data set that are read beside its prompts: numbers of pictures, and what benchmarks say of a prompt."""
_LARGEST_TEXT = 1 << 20
"""Bytes of a text in a shard. A prompt is far shorter, and a damaged shard can name any size."""

Row = Mapping[str, Any]


def is_table(source: str) -> bool:
    """Whether a source is read here."""
    return source.startswith(HUB) or Path(source).suffix.lower() in TABLES or expanded(source).is_dir()


def read_rows(source: str, columns: tuple[str, ...], argument: str = "prompts_file") -> Iterator[tuple[str, Row]]:
    """The rows of a source, each with its place for errors.

    Args:
        source: a file, a folder, or a name after "hub:".
        columns: names of columns that can hold a prompt. No column of pictures is decoded.
        argument: what errors call the source.

    Raises:
        UserError: it cannot be read, or a package that reads it is not installed.
    """
    if source.startswith(HUB):
        return _of_datasets(source, columns, argument)
    path = expanded(source)
    if path.is_dir():
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return _of_datasets(str(path), columns, argument)
        if shards := sorted(path.glob("*.tar")):
            return (row for shard in shards for row in _of_shard(shard, argument))
        if texts := sorted(path.glob("*.txt")):
            return _of_texts(texts, argument)
        if lists := sorted(path.glob("*.json")):
            return ((place, {**row, "list": each.stem}) for each in lists for place, row in _of_json(each, argument))
        raise UserError(
            f"{argument}: {path} holds neither a data set that save_to_disk wrote, nor .tar shards, nor .txt or .json "
            "files"
        )
    readers = {".json": _of_json, ".parquet": _of_parquet, ".tar": _of_shard}
    return readers[path.suffix.lower()](path, argument)


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


def _of_parquet(path: Path, argument: str) -> Iterator[tuple[str, Row]]:
    _need("pyarrow", argument)
    from pyarrow import parquet

    with reading(path, "copy it again", argument):
        file = parquet.ParquetFile(path)
        plain = ("string", "large_string", "int", "uint", "double", "float", "bool")  # pictures are structs or bytes
        fields = [(field.name, str(field.type).startswith(plain)) for field in file.schema_arrow]
        simple = [name for name, is_plain in fields if is_plain or name.lower() in _BESIDE]
    number = 0
    for group in range(file.num_row_groups):
        with reading(path, "copy it again", argument):
            rows = file.read_row_group(group, columns=simple).to_pylist()
        for row in rows:
            number += 1
            yield f"{argument}: {path}, row {number}:", row


def _of_datasets(source: str, columns: tuple[str, ...], argument: str) -> Iterator[tuple[str, Row]]:
    _need("datasets", argument)
    import datasets

    name, _, split = source.removeprefix(HUB).partition(":") if source.startswith(HUB) else (source, "", "")
    with reading(source, "check its name, or copy it again", argument):
        if source.startswith(HUB):
            table: Any = datasets.load_dataset(name, split=split or "train")
        else:
            table = datasets.load_from_disk(name)
        if isinstance(table, datasets.DatasetDict):
            if len(table) != 1:
                raise UserError(f"{argument}: {name} has the splits {', '.join(table)}; name the folder of one of them")
            (table,) = table.values()
        kept = [name for name in table.column_names if name.strip().lower() in {*columns, *_BESIDE}]
        table = table.select_columns(kept)
    for number in range(len(table)):
        with reading(source, "copy it again", argument):
            row = table[number]
        yield f"{argument}: {name}, row {number + 1}:", row


def _of_texts(paths: list[Path], argument: str) -> Iterator[tuple[str, Row]]:
    for path in paths:
        text = read_text(path, argument)
        yield f"{argument}: {path}:", {"prompt": " ".join(text.split()), "id": path.stem}


def _of_shard(path: Path, argument: str) -> Iterator[tuple[str, Row]]:
    """Samples in their order: files of one sample follow each other and share a name up to its first dot."""
    name, row = None, dict[str, Any]()
    with reading(path, "copy it again", argument):
        archive = tarfile.open(path)  # noqa: SIM115  # closed below; nothing is extracted
    with archive:
        while True:
            with reading(path, "copy it again", argument):
                member = archive.next()
                stem, _, kind = ("", "", "") if member is None else member.name.rpartition("/")[2].partition(".")
                folder = "" if member is None else member.name.rpartition("/")[0]
                if member is not None and not member.isfile():
                    continue
            if member is None or (folder, stem) != name:
                if name is not None and row:
                    yield f"{argument}: {path}, sample {name[1]}:", row
                if member is None:
                    break
                name, row = (folder, stem), {}
            if kind.lower() not in (*_TEXTS, "json"):
                continue
            if member.size > _LARGEST_TEXT:
                raise UserError(f"{argument}: {path}: {member.name} has {member.size:,} bytes, too many for a prompt")
            with reading(path, "copy it again", argument):
                file = archive.extractfile(member)
                text = "" if file is None else file.read().decode("utf-8-sig")
                if kind.lower() == "json":
                    value = parse_json(text)
                    row = {**(value if isinstance(value, dict) else {"prompt": value}), **row}
                else:
                    row["prompt"] = text
        with reading(path, "copy it again", argument):  # tarfile takes a shard that is cut off there for its end
            archive.fileobj.seek(archive.offset)
            if len(archive.fileobj.read(512)) < 512:
                raise ValueError("it is cut off")


def _need(package: str, argument: str) -> None:
    """Raises UserError where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f'{argument} needs {package}, which is not installed; run pip install "vargen[data]"')
