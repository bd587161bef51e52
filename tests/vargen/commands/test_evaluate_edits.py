"""`vargen evaluate --image`: what edits keep and change, how likely the whole is, and each refusal in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refuses

from vargen.cli import main
from vargen.pipelines.llamagen import LlamaGenPipeline

NOISE = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3), np.uint8)
CAPTIONS = ["a red cube", "a blue sphere", "a red cube on grass", "a cone"]
PRESET = """
captions: file
resolution: 32
resizer: bicubic
extractor: clip
reference: none
"""


@pytest.fixture
def asked(tmp_path: Path, tiny_model_folder: Path, clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.yaml").write_text(PRESET)
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS))
    (tmp_path / "shown").mkdir()
    for number, picture in enumerate(NOISE):
        Image.fromarray(picture).save(tmp_path / "shown" / f"{number}.png")
    return [
        *("evaluate", "--protocol", str(tmp_path / "mine.yaml"), "--prompts_file", str(tmp_path / "captions.txt")),
        *("--model", str(tiny_model_folder), "--clip", str(clip_folder), "--methods", "jacobi", "--device", "cpu"),
        *("--batch_size", "3", "--bootstrap", "10", "--quiet"),
    ]


def test_pictures_of_another_shape_are_told(asked, tmp_path, capsys):
    Image.new("RGB", (20, 8)).save(tmp_path / "shown" / "2.png")
    edit = ["--image", str(tmp_path / "shown"), "--start_rows", "2", "--output", str(tmp_path / "out")]
    assert main([*asked, *edit]) == 0 and "the middle alone is edited" in capsys.readouterr().err


def test_figures_are_those_of_the_pictures(asked, tmp_path, tiny_model_folder, capsys):
    edit = ["--image", str(tmp_path / "shown"), "--start_rows", "2"]
    rows: dict[bool, Any] = {}
    for pasted in (False, True):
        output = tmp_path / f"out-{pasted}"
        command = [*asked, *edit, "--output", str(output), "--paste_back", str(pasted).lower()]
        assert main(command) == 0
        (rows[pasted],) = json.loads((output / "scores.json").read_text())
        after = np.stack([np.asarray(Image.open(output / "jacobi" / "images" / f"{i:06d}.png")) for i in range(4)])
        off = np.square(after.astype(float) - NOISE).mean(-1)
        for name, part in (("known_error", off[:, :4]), ("drawn_error", off[:, 4:])):
            assert rows[pasted][name]["value"] == pytest.approx(np.sqrt(part.mean((1, 2))).mean(), rel=1e-4)
        assert rows[pasted]["kept"]["value"] == pasted
        assert ("known pixels kept, % of pictures" in (output / "table.md").read_text()) and main(command) == 0
    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    pipeline.set_progress_bar_config(disable=True)
    seeds = [torch.Generator().manual_seed(seed) for seed in range(4)]
    made = pipeline(CAPTIONS, generator=seeds, image=[*map(Image.fromarray, NOISE)], start_rows=2, output_type="latent")
    alone = pipeline.log_likelihoods(made.tokens, prompt=CAPTIONS)
    assert rows[True]["log_likelihood"]["value"] == pytest.approx(np.mean(alone), rel=1e-4)
    other = [*asked, "--image", str(tmp_path / "shown"), "--start_rows", "3", "--output", str(tmp_path / "out-True")]
    refuses(capsys, main(other), "edit")  # another mask makes other pictures


def test_what_cannot_be_edited_is_one_line(asked, tmp_path, capsys):
    Image.new("L", (16, 8), 255).save(tmp_path / "wide.png")
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    (tmp_path / "few").mkdir()
    Image.fromarray(NOISE[0]).save(tmp_path / "few" / "0.png")
    for arguments, said in (
        (["--image", "shown"], "image needs mask_image, white where to draw, or start_rows, and not both"),
        (["--start_rows", "2"], "image must name the pictures to edit: mine renders none of its captions"),
        (["--image", "shown", "--start_rows", "4"], "start_rows must be at most 3, got 4"),
        (["--image", "shown", "--mask_image", "wide.png"], "mask_image must have the size of the model's pictures, 8"),
        (["--image", "shown", "--mask_image", "black.png"], "mask_image leaves nothing to draw"),
        (["--image", "few", "--start_rows", "2"], "holds 1 pictures, but there are 4 captions"),
        (["--given_images", "shown", "--start_rows", "2"], "given_images cannot be edited"),
    ):
        given = [str(tmp_path / each) if (tmp_path / each).exists() else each for each in arguments]
        assert main([*asked, *given, "--output", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error and "\n" not in error and not (tmp_path / "out").exists()
