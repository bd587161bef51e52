"""Pictures that were made elsewhere belong to the captions of their names, and what has no partner is told."""

from pathlib import Path

import pytest
from PIL import Image
from refusals import refused

from vargen.base.prompts import read_column, read_prompts
from vargen.jobs.evaluated_pictures import CaptionNames, given_pictures


def make(folder: Path, names: list[str]) -> str:
    """Pictures, each with its place among the names as its grey."""
    for grey, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), grey).save(folder / name)
    return str(folder)


def order(folder: Path, files: list[str], captions: CaptionNames) -> list[int]:
    """Which pictures the captions have."""
    given = given_pictures(make(folder / "given", files), folder, len(files), captions)
    return [int(picture[0, 0, 0]) for picture in given.read(range(len(files)))]


def test_captions_beside_their_pictures_are_theirs(tmp_path):
    """Numbers without zeros: names in the order of letters are 0, 1, 10, 11, ..., 2."""
    for number in range(14):
        (tmp_path / f"{number}.txt").write_text(f"caption {number}")
    (tmp_path / "._1.txt").write_bytes(b"\xff")
    assert read_prompts(str(tmp_path)) == [f"caption {number}" for number in range(14)]
    names = read_column(str(tmp_path), ("file_name",))
    assert order(tmp_path, [f"{number:03}.png" for number in range(14)], CaptionNames(names, True)) == [*range(14)]


@pytest.mark.parametrize(
    ("files", "names", "expected"),
    [
        (["b.png", "a.png", "c.jpg"], ["a", "b", "c"], [1, 0, 2]),
        (["b.png", "a.png"], ["a.png", "b.png"], [1, 0]),
        (["COCO_val_000000000139.png", "COCO_val_000000000009.png"], ["9", "139"], [1, 0]),
        (["2.png", "0.png", "1.png"], ["17", "4", "9"], [1, 2, 0]),  # ids of captions, of which pictures know nothing
        (["run7_10.png", "run7_9.png"] + [f"run7_{n}.png" for n in range(1, 9)], None, [*range(2, 10), 1, 0]),
        (["00001/samples/0000.png", "00000/samples/0001.png", "00000/samples/0000.png", "00001/samples/0001.png"],
         None, [2, 1, 0, 3]),
    ],
)  # fmt: skip
def test_pairs_are_made_by_name(files, names, expected, tmp_path):
    assert order(tmp_path, files, CaptionNames(names)) == expected


@pytest.mark.parametrize(
    ("files", "captions", "told"),
    [
        (["0.png", "1.png", "3.png"], CaptionNames(), "without a picture: 2; pictures without a caption: 3.png"),
        (["cat.png", "dog.png"], CaptionNames(), "without a caption: cat.png, dog.png.*number them from 0 on"),
        (["0.png", "1.png"], CaptionNames(["a.txt", "b.txt"], True), "without a picture: a, b; .*: 0.png, 1.png"),
        (["a.png", "x/a.png"], CaptionNames(["a", "b"]), "without a picture: b"),
    ],
)
def test_what_has_no_partner_is_told(files, captions, told, tmp_path):
    refused(f"given_images: pictures and captions are paired by name; .*{told}", order, tmp_path, files, captions)
