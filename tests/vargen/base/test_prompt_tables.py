"""Prompts as data sets keep them, written by the libraries that people write them with."""

import json
from typing import Any

import pytest
from hostile import shard
from refusals import refused

from vargen.base.prompts import read_column, read_prompts

WANTED = ["a red cube", "two cones"]
CAPTIONS = [{"image_id": 7, "id": 1, "caption": "a red cube"}, {"image_id": 9, "id": 2, "caption": " two cones\n"}]
COCO = {"info": {}, "images": [{"id": 7, "file_name": "7.jpg"}], "annotations": CAPTIONS}


def test_captions_of_coco_and_lists(tmp_path):
    path = tmp_path / "captions_val2014.json"
    path.write_text(json.dumps(COCO))
    assert read_prompts(str(path)) == WANTED and read_column(str(path), ("image_id",)) == ["7", "9"]
    for entries in (WANTED, [{"Prompt": text, "tag": "x"} for text in WANTED]):
        path.write_text(json.dumps(entries))
        assert read_prompts(str(path)) == WANTED


def test_parquet_and_its_pictures_are_not_decoded(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs the extra data")
    from pyarrow import parquet

    columns = {"image": [{"bytes": b"no picture", "path": "a.png"}] * 2, "Caption": WANTED, "id": [3, 4]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path, row_group_size=1)
    assert read_prompts(str(path)) == WANTED and read_column(str(path), ("id",)) == ["3", "4"]
    path.write_bytes(path.read_bytes()[:-9])
    refused(r"prompts_file: .*a\.parquet cannot be read \(", read_prompts, str(path))


def test_data_sets_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets", reason="data sets need the extra data")
    table = datasets.Dataset.from_dict({"text": WANTED, "category": ["one", "two"], "rest": [0, 0]})
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"validation": table}).save_to_disk(tmp_path / "split")
    datasets.DatasetDict({"a": table, "b": table}).save_to_disk(tmp_path / "splits")
    for name in ("one", "split", "splits/b"):
        assert read_prompts(str(tmp_path / name)) == WANTED
    assert read_column(str(tmp_path / "one"), ("category",)) == ["one", "two"]
    refused("has the splits a, b; name the folder of one", read_prompts, str(tmp_path / "splits"))


def test_a_name_on_the_hub_is_read_by_datasets(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="data sets need the extra data")
    asked: list[Any] = []

    def load_dataset(name: str, split: str) -> Any:
        asked.append((name, split))
        return datasets.Dataset.from_dict({"Prompt": WANTED})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_prompts("hub:nateraw/parti-prompts:validation") == WANTED == read_prompts("hub:a/b")
    assert asked == [("nateraw/parti-prompts", "validation"), ("a/b", "train")]


def test_shards_of_webdataset(tmp_path):
    pytest.importorskip("datasets", reason="shards need the extra data")
    samples = {
        "0001.jpg": b"no picture", "0001.txt": b"a red cube", "0001.json": b'{"id": 5, "caption": "not this"}',
        "b/0002.jpg": b"", "b/0002.txt": b"two cones", "b/0002.json": b'{"caption": "nor this", "id": 6}',
    }  # fmt: skip
    path = shard(tmp_path / "0.tar", samples)
    lists = shard(tmp_path / "c.tar", {"1.json": b'{"caption": "a red cube"}', "2.json": b'{"caption": "two cones"}'})
    assert read_prompts(str(lists)) == WANTED
    lists.unlink()
    assert read_prompts(str(path)) == WANTED and read_column(str(path), ("id",)) == ["5", "6"]
    shard(tmp_path / "1.tar", {"x.txt": b"a cone", "y.txt": b"a sphere"})
    assert read_prompts(str(tmp_path)) == [*WANTED, "a cone", "a sphere"]


def test_a_folder_of_texts_is_a_prompt_a_file(tmp_path):
    for name, text in zip("ab", ["a red\n cube", "two cones"], strict=True):
        (tmp_path / f"{name}.txt").write_text(text)
    assert read_prompts(str(tmp_path)) == WANTED and read_column(str(tmp_path), ("id",)) == ["a", "b"]


def test_what_holds_no_prompts_is_one_line(tmp_path):
    for name, content, message in (
        ("a.json", b"{}", 'must hold a list, or COCO\'s captions under "annotations"'),
        ("a.json", b'{"annotations": [{"caption": 3}]}', "annotation 1: need a string"),
        ("a.json", b'[""]', "entry 1: the prompt is empty"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.tar", b"\0" * 10, "cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(f"^prompts_file: .*{message}", read_prompts, str(tmp_path / name))


def test_hostile_shards_and_folders(tmp_path):
    refused("cannot be read", read_prompts, str(shard(path := tmp_path / "a.tar", {"a.txt": b"\xff"})))
    refused("give at most 10,000", read_prompts, str(shard(path, {"a.txt": b"x" * (1 << 20)})))
    path.write_bytes(shard(path, {"a.txt": b"a cube", "b.txt": b"a cone" * 300}).read_bytes()[:1100])
    refused("cannot be read", read_prompts, str(path))
    refused(r"missing\.json is missing", read_prompts, str(tmp_path / "missing.json"))
