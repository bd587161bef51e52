"""Records of finished work: whose pictures count, the order of lines, and calls of another run."""

import json
from pathlib import Path

import pytest
from PIL import Image
from refusals import refused

from metrics.speculation import CallRecord
from vargen.runs.records import ImageRequest, PictureFolder, Records, own_calls

PICTURE = Image.new("RGB", (4, 4), "red")
REQUESTS = [ImageRequest(index, 7 + index, f"prompt {index}") for index in range(4)]


def opened(path: Path, traced: bool = False, requests: list[ImageRequest] = REQUESTS) -> PictureFolder:
    folder = PictureFolder(path, requests, traced)
    folder.scan()
    folder.begin({"settings": {"a": 1}})
    return folder


def lines(path: Path) -> list[int]:
    return [json.loads(line)["index"] for line in (path / "result.jsonl").read_text().splitlines()]


def test_lines_stand_in_order_whenever_pictures_are_finished(tmp_path):
    folder = opened(tmp_path)
    for number, expected in ((0, [0]), (2, [0]), (1, [0, 1, 2])):
        folder.add(REQUESTS[number], PICTURE, {})
        assert lines(tmp_path) == expected
    (tmp_path / REQUESTS[1].image_path).unlink()
    folder = opened(tmp_path)
    assert [request.index for request in folder.missing] == [1, 3]
    assert lines(tmp_path) == [0, 2], "what is there has its line from the beginning"
    folder.add(REQUESTS[1], PICTURE, {})
    assert lines(tmp_path) == [0, 1, 2]


def test_a_picture_counts_for_its_own_request_alone(tmp_path):
    folder = opened(tmp_path)
    for request in REQUESTS:
        folder.add(request, PICTURE, {"seconds": 1.5})
    first, second, _, fourth = (tmp_path / request.image_path for request in REQUESTS)
    second.write_bytes(first.read_bytes())  # another request's
    PICTURE.save(first)  # its text is lost, and its line is there
    fourth.write_bytes(fourth.read_bytes()[: fourth.stat().st_size // 2])
    folder = PictureFolder(tmp_path, REQUESTS)
    folder.scan()
    assert sorted(folder.records) == [0, 2] and folder.records[0]["seconds"] == 1.5
    other = PictureFolder(tmp_path, [ImageRequest(2, 8, "prompt 2")])
    other.scan()
    assert other.missing, "of another seed"


def test_a_picture_without_the_trace_that_is_asked_for_is_missing(tmp_path):
    folder = opened(tmp_path, traced=True)
    folder.add(REQUESTS[0], PICTURE, {}, PICTURE)
    folder.add(REQUESTS[1], PICTURE, {}, PICTURE)
    (tmp_path / "traces" / "000001.png").unlink()
    assert [request.index for request in opened(tmp_path, traced=True).missing] == [1, 2, 3]
    assert [request.index for request in opened(tmp_path).missing] == [2, 3]


@pytest.mark.parametrize("name", ["images", "result.jsonl"])
def test_what_another_program_left_is_not_continued(tmp_path, name):
    (tmp_path / name).mkdir()
    refused(f"{name} is not of a `vargen generate` run", PictureFolder(tmp_path, REQUESTS).earlier_settings)


def test_calls_are_kept_until_the_results_are_written_and_belong_to_one_run(tmp_path):
    call = {"method": "ar", "batch": 0, "call": CallRecord(1.0, 1, 4, 4, 4, 0, [0]).to_dict()}
    with pytest.raises(KeyboardInterrupt), own_calls(str(tmp_path / "out")) as path:
        Records(path, {"seed": 1}).add(call)
        raise KeyboardInterrupt
    with own_calls(str(tmp_path / "out")) as path:
        assert ("ar", 0) in Records(path, {"seed": 1})
        refused(r"calls\.jsonl holds calls of a run with another seed \(1, now 2\); choose", Records, path, {"seed": 2})
        (tmp_path / "out" / "results.json").touch()
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["results.json"]
