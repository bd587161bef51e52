"""`vargen generate --image`: a picture goes on, a region is filled, and each refusal is one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vargen.cli import main

NOISE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A picture, and a mask of its lower half."""
    folder = tmp_path / "shown"
    folder.mkdir()
    Image.fromarray(NOISE).save(folder / "image.png")
    lower = np.zeros((8, 8), np.uint8)
    lower[4:] = 255
    Image.fromarray(lower).save(folder / "lower.png")
    return folder


def generate(model: Path, output: Path, *arguments: object) -> int:
    asked = ["generate", "a red cube", *map(str, arguments)]
    return main([*asked, "--model", str(model), "--output", str(output), "--quiet"])


def test_rows_and_a_mask_of_the_same_region_give_the_same_pictures(tiny_model_folder, tmp_path, shown):
    image, asked = ("--image", shown / "image.png"), ("--paste_back", "--num_images_per_prompt", 2)
    assert generate(tiny_model_folder, tmp_path / "rows", *image, "--start_rows", 2, *asked, "--trace_image") == 0
    filled = (*image, "--mask_image", shown / "lower.png", *asked)
    assert generate(tiny_model_folder, tmp_path / "mask", *filled, "--method", "ar") == 0
    for name in ("000000.png", "000001.png"):
        made = [np.asarray(Image.open(tmp_path / each / "images" / name)) for each in ("rows", "mask")]
        assert np.array_equal(made[0], made[1]) and np.array_equal(made[0][:4], NOISE[:4])
        assert not np.array_equal(made[0][4:], NOISE[4:])
    records = [json.loads(line) for line in (tmp_path / "mask" / "result.jsonl").read_text().splitlines()]
    assert all(each["tokens"] == 16 and each["forward_passes"] == 9 for each in records)
    assert generate(tiny_model_folder, tmp_path / "mask", *filled, "--method", "ar") == 0, "all there already"
    assert generate(tiny_model_folder, tmp_path / "mask", *filled[:2], "--start_rows", 2, *asked) == 2, "another run"


def test_the_likeliest_candidate_is_kept(tiny_model_folder, tmp_path, shown):
    upper = Image.open(shown / "lower.png").rotate(180)
    upper.save(shown / "upper.png")
    asked = ("--image", shown / "image.png", "--mask_image", shown / "upper.png", "--num_candidates", 3)
    assert generate(tiny_model_folder, tmp_path / "out", *asked, "--ranker", "likelihood", "--method", "ar") == 0
    (record,) = [json.loads(line) for line in (tmp_path / "out" / "result.jsonl").read_text().splitlines()]
    assert len({*record["scores"]}) == 3 and record["scores"][record["candidate"]] == max(record["scores"])


def test_what_cannot_be_edited_is_one_line(tiny_model_folder, tmp_path, shown, capsys):
    for arguments, said in (
        (["--start_rows", "2"], "start_rows needs image"),
        (["--image", "image.png"], "image needs mask_image, white where to draw, or start_rows"),
        (["--image", "no.png", "--start_rows", "2"], "no such file or directory"),
        (["--num_candidates", "2", "--ranker", "likelihood"], "ranker likelihood needs image"),
    ):
        given = [shown / each if each.endswith(".png") else each for each in arguments]
        assert generate(tiny_model_folder, tmp_path / "out", *given) == 2
        error = capsys.readouterr().err.strip()
        assert said in error and "\n" not in error and not (tmp_path / "out").exists()
