"""Folders that an earlier version saved: one conversion, and one line that names it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from scenes.cases import scene_prompts
from vargen.base.errors import UserError
from vargen.cli import main
from vargen.drafters.eagle_head import EagleHead
from vargen.jobs.conversion import ConvertFolderConfig, convert_folder
from vargen.pipelines.llamagen import LlamaGenPipeline


@pytest.fixture
def old_folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """A folder with a draft model and an EAGLE head under the names of the earlier version."""
    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    new = tmp_path / "new"
    pipeline.save_pretrained(new)
    index = json.loads((new / "model_index.json").read_text())
    shutil.copytree(new / "transformer", new / "draft_transformer")
    index.pop("draft_model", None)
    index["draft_transformer"] = ["vargen.models.llamagen.transformer", "LlamaGenTransformer"]
    teacher_config = pipeline.transformer.config
    torch.manual_seed(0)
    head = EagleHead(
        dim=teacher_config.dim,
        num_attention_heads=teacher_config.num_attention_heads,
        intermediate_size=teacher_config.intermediate_size,
        vocab_size=teacher_config.vocab_size,
        grid_size=teacher_config.grid_size,
    )
    head.save_pretrained(new / "drafter")
    config = json.loads((new / "drafter" / "config.json").read_text())
    (new / "drafter" / "config.json").write_text(json.dumps(config | {"_class_name": "LlamaGenDrafter"}))
    index["drafter"] = ["vargen.models.llamagen.drafter", "LlamaGenDrafter"]
    (new / "model_index.json").write_text(json.dumps(index))
    return new.rename(tmp_path / "old")


def test_an_old_folder_ends_in_one_line_and_draws_after_conversion(
    old_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"vargen convert folder .*old --output NEW"):
        LlamaGenPipeline.from_pretrained(old_folder)
    output = tmp_path / "converted"
    assert main(["convert", "folder", str(old_folder), "--output", str(output)]) == 0
    assert "draft_transformer to draft_model, LlamaGenDrafter to EagleHead" in capsys.readouterr().out
    assert json.loads((output / "drafter" / "config.json").read_text())["_class_name"] == "EagleHead"
    pipeline = LlamaGenPipeline.from_pretrained(output)
    plain, *drafted = (
        pipeline(scene_prompts(0, 1), method=method, generator=torch.Generator().manual_seed(1), output_type="latent")
        for method in ("ar", "eagle", "draft-model")
    )
    assert plain.tokens.shape == drafted[0].tokens.shape == drafted[1].tokens.shape
    assert convert_folder(ConvertFolderConfig(str(tmp_path / "again")), output)["renamed"] == {}  # nothing to rename
    assert (tmp_path / "again" / "model_index.json").read_bytes() == (output / "model_index.json").read_bytes()


def test_conversion_refuses_what_it_would_spoil(old_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="output must lie outside"):
        convert_folder(ConvertFolderConfig(str(old_folder / "inner")), old_folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="output must not exist yet"):
        convert_folder(ConvertFolderConfig(str(tmp_path / "full")), old_folder)
    with pytest.raises(UserError, match=r"model_index.json is missing"):
        convert_folder(ConvertFolderConfig(str(tmp_path / "other")), tmp_path / "full")
