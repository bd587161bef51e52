"""`vargen judge` on renders, whose prompts are true, and on the same renders under each other's prompts."""

import json
from pathlib import Path

import pytest
from PIL import Image

from scenes.captions.picture_captions import compose_caption
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import sample_scene
from vargen.cli import main
from vargen.drawing.sheet import to_pil
from vargen.runs.files import append_jsonl

COUNT = 24


def write_run(folder: Path, shift: int) -> Path:
    scenes = [sample_scene(5_000_000 + index, "heldout") for index in range(COUNT)]
    texts = [compose_caption(scene, scene.seed).text for scene in scenes]
    (folder / "images").mkdir(parents=True)
    for index, image in enumerate(to_pil(SceneRenderer()(scenes).images)):
        path = f"images/{index:06d}.png"
        image.save(folder / path)
        text = texts[(index + shift) % COUNT]
        append_jsonl(folder / "result.jsonl", {"index": index, "text": text, "image_path": path, "seed": index})
    return folder


def judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["judge", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_true_prompts_are_found_true_and_swapped_ones_false(tmp_path, capsys):
    true = judged(write_run(tmp_path / "true", shift=0), capsys)
    swapped = judged(write_run(tmp_path / "swapped", shift=5), capsys)
    assert true["images"] == COUNT and true["unreadable_prompts"] == []
    assert true["accuracy"]["all"]["prompt"]["accuracy"] > 0.85
    assert swapped["accuracy"]["all"]["prompt"]["accuracy"] < 0.3
    assert len(json.loads((tmp_path / "true" / "judge.json").read_text())["verdicts"]) == COUNT


def test_a_prompt_it_cannot_read_is_named_and_left_out(tmp_path, capsys):
    folder = write_run(tmp_path / "run", shift=0)
    record = {"index": COUNT, "text": "a corgi in a field", "image_path": "images/000000.png", "seed": 0}
    append_jsonl(folder / "result.jsonl", record)
    assert main(["judge", str(folder), "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert [case["index"] for case in summary["unreadable_prompts"]] == [COUNT] and summary["images"] == COUNT
    assert f"prompt {COUNT} left out" in printed.err


def test_pictures_too_small_to_read_are_told_wherever_they_stand(tmp_path, capsys):
    folder = write_run(tmp_path / "run", shift=0)
    for is_told in (False, True):
        assert main(["judge", str(folder), "--batch_size", "1", "--json"]) == 0
        assert ("its answers mean little" in capsys.readouterr().err) is is_told
        Image.new("RGB", (1, 1)).save(folder / f"images/{COUNT - 1:06d}.png")
