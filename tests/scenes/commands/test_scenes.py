"""`vargen scenes`: what it writes is whole, reproducible, and of the split it says."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image
from refusals import refused, refuses
from scene_truth import render_video, scene_from_record

from scenes.captions.picture_caption_parser import parse_caption
from scenes.captions.story_captions import compose_written_caption, compose_written_questions
from scenes.dataset import write_scenes, write_videos
from scenes.rendering.scene import is_heldout_combination, is_heldout_object
from scenes.rendering.story import sample_story
from scenes.shipped import VIDEO_FRAMES
from vargen.cli import main
from vargen.video.models.frames import read_video


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_writes_pictures_captions_truth_and_a_sheet(tmp_path, capsys):
    folder = tmp_path / "scenes"
    arguments = ["scenes", "--num_scenes", "4", "--split", "heldout", "--image-size", "64", "--seed", "7"]
    assert main([*arguments, "--output", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(folder), "count": 4, "split": "heldout"}
    written = records(folder)
    assert [record["file_name"] for record in written] == [f"images/{i:06d}.png" for i in range(4)]
    assert (folder / "captions.txt").read_text().splitlines() == [record["text"] for record in written]
    for record in written:
        assert Image.open(folder / record["file_name"]).size == (64, 64)
        scene = scene_from_record(record["scene"])
        assert is_heldout_combination(scene) and len(record["boxes"]) == len(scene.objects)
        assert json.loads(json.dumps(asdict(parse_caption(record["text"])))) == record["claims"]
        assert all(left < right and top < bottom for left, top, right, bottom in record["boxes"])
    assert Image.open(folder / "contact_sheet.png").width > 128


def test_the_same_seed_gives_the_same_bytes_and_scenes_do_not_depend_on_the_count(tmp_path):
    for name, count in (("a", 3), ("b", 3), ("c", 2)):
        write_scenes(tmp_path / name, count, seed=5, image_size=64)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert records(tmp_path / "c") == records(tmp_path / "a")[:2]
    assert contents(tmp_path / "c")["images/000001.png"] == contents(tmp_path / "a")["images/000001.png"]
    write_scenes(tmp_path / "d", 2, seed=6, image_size=64)
    assert records(tmp_path / "d")[0]["scene"] == records(tmp_path / "a")[1]["scene"]


def test_a_shorter_run_leaves_no_pictures_of_a_longer_one_and_nothing_else_is_touched(tmp_path):
    write_scenes(tmp_path, 3, image_size=64)
    (tmp_path / "images" / "mine.png").write_bytes(b"mine")
    write_scenes(tmp_path, 1, image_size=64)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["000000.png", "mine.png"]
    assert len(records(tmp_path)) == 1


def test_a_killed_run_has_no_record_of_pictures_that_are_not_there(tmp_path, monkeypatch):
    import scenes.dataset as dataset

    write_scenes(tmp_path, 2, image_size=64)
    save, left = dataset.save_image_atomic, [1]

    def killed(*arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(dataset, "save_image_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path, 2, seed=9, image_size=64)
    assert not (tmp_path / "metadata.jsonl").exists()
    assert not list(tmp_path.rglob("*tmp*"))


# Videos


@pytest.mark.parametrize(("options", "num_frames"), [([], VIDEO_FRAMES), (["--num_frames", "8"], 8)])
def test_it_writes_videos_with_questions_and_truth(tmp_path, capsys, options, num_frames):
    pytest.importorskip("av")
    folder = tmp_path / "videos"
    arguments = ["scenes", "--task", "video", "--num_scenes", "3", "--split", "heldout", "--seed", "7", *options]
    assert main([*arguments, "--output", str(folder), "--json", "--image-size", "64"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(folder), "count": 3, "split": "heldout"}
    written = records(folder)
    assert [record["file_name"] for record in written] == [f"videos/{i:06d}.mp4" for i in range(3)]
    assert (folder / "captions.txt").read_text().splitlines() == [record["text"] for record in written]
    for number, record in enumerate(written):
        truth = sample_story(7 + number, num_frames, "heldout")
        video = read_video(folder / record["file_name"])
        assert torch.equal(video.frames, (render_video(truth, 64) * 255).round().byte())
        assert video.fps == record["fps"] == 2.0
        assert tuple(map(scene_from_record, record["video"]["frames"])) == truth.frames
        assert [event["kind"] for event in record["video"]["events"]] == [event.kind for event in truth.events]
        caption = compose_written_caption(truth, 7 + number)
        assert record["text"] == caption.text
        assert {tuple(claim) for claim in record["claims"]} == caption.claims
        assert [(each["question"], each["answer"]) for each in record["questions"]] == compose_written_questions(truth)
        assert [len(boxes) for boxes in record["boxes"]] == [len(scene.objects) for scene in truth.frames]
        seen = {item for scene in truth.frames for item in scene.objects}
        assert any(is_heldout_object(item.shape, item.colour, item.material) for item in seen)
    assert Image.open(folder / "contact_sheet.png").width > 8 * 64


def test_videos_do_not_depend_on_the_count_and_replace_what_a_run_before_left(tmp_path):
    pytest.importorskip("av")
    for name, count in (("a", 2), ("b", 2), ("c", 1)):
        write_videos(tmp_path / name, count, seed=5, image_size=32, num_frames=8)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert records(tmp_path / "c") == records(tmp_path / "a")[:1]
    write_scenes(tmp_path / "a", 1, image_size=64)
    names = ["captions.txt", "contact_sheet.png", "images/000000.png", "metadata.jsonl"]
    assert sorted(contents(tmp_path / "a")) == names


def test_without_pyav_nothing_is_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "av", None)
    written = ["--output", str(tmp_path / "scenes"), "--quiet"]
    refuses(capsys, main(["scenes", "--task", "video", *written]), 'pip install "vargen[video]"')
    assert not (tmp_path / "scenes").exists()
    assert main(["scenes", "--num_scenes", "1", "--image-size", "64", *written]) == 0


def test_pictures_of_another_command_are_left_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused(r"output: .* holds pictures of another command \(config.json\)", write_scenes, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
