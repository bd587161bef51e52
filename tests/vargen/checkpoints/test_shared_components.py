"""A model folder that shares components with another one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from safetensors.torch import save_file

from vargen.checkpoints.model_folder import (
    SHARED_COMPONENTS,
    component_fingerprint,
    component_folder,
    weights_fingerprint,
)
from vargen.pipelines.llamagen import LlamaGenPipeline

SHARED = ("vqvae", "text_encoder", "tokenizer")


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """A model that has a transformer, and everything else from the model "whole" beside it."""
    shutil.copytree(tiny_model_folder, tmp_path / "whole")
    part = tmp_path / "part"
    shutil.copytree(tiny_model_folder, part)
    index = json.loads((part / "model_index.json").read_text())
    for name in SHARED:
        shutil.rmtree(part / name)
        del index[name]
    (part / "model_index.json").write_text(json.dumps(index))
    share(part, folder="../whole", components=SHARED)
    return part


def share(part: Path, **told: Any) -> None:
    (part / SHARED_COMPONENTS).write_text(json.dumps(told))


def draw(folder: Path, **loading: Any) -> Any:
    pipeline = LlamaGenPipeline.from_pretrained(folder, **loading)
    return pipeline("a red cube", generator=torch.Generator().manual_seed(0), output_type="pt").images


def test_it_draws_what_the_whole_model_draws(folder, tmp_path):
    assert torch.equal(draw(folder), draw(tmp_path / "whole"))
    pipeline = LlamaGenPipeline.from_pretrained(folder, dtype=torch.bfloat16)
    assert pipeline.text_encoder.dtype == torch.bfloat16 and pipeline.vqvae.dtype == torch.float32
    pipeline.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / SHARED_COMPONENTS).exists()
    whole = LlamaGenPipeline.from_pretrained(tmp_path / "saved")
    assert all(getattr(whole, name) is not None for name in SHARED)


def test_components_lie_where_they_are_read_from(folder, tmp_path):
    assert component_folder(folder, "vqvae") == tmp_path / "whole" / "vqvae"
    assert component_folder(folder, "transformer") == folder / "transformer"
    assert component_folder(tmp_path / "whole", "vqvae") == tmp_path / "whole" / "vqvae"


def test_components_that_are_given_are_not_read(folder, tmp_path):
    (tmp_path / "whole" / "text_encoder" / "model.safetensors").unlink()
    refused("text_encoder", LlamaGenPipeline.from_pretrained, folder)
    assert LlamaGenPipeline.from_pretrained(folder, text_encoder=None, tokenizer=None).text_encoder is None


def test_shared_weights_are_part_of_the_fingerprint(folder, tmp_path):
    before = weights_fingerprint(folder)
    config = tmp_path / "whole" / "vqvae" / "config.json"
    config.write_text(config.read_text() + " ")
    after = weights_fingerprint(folder)
    assert after != before
    (tmp_path / "whole" / "transformer" / "config.json").write_text("{}")
    assert weights_fingerprint(folder) == after


def test_own_weights_stand_in_place_of_shared_ones(folder, tmp_path):
    whole = LlamaGenPipeline.from_pretrained(tmp_path / "whole").vqvae
    before, brighter = weights_fingerprint(folder), whole.decoder.conv_out.bias.detach() + 0.25
    shared = component_fingerprint(folder, "vqvae")
    assert shared == component_fingerprint(tmp_path / "whole", "vqvae")
    save_file({"decoder.conv_out.bias": brighter.to(torch.bfloat16)}, folder / "vqvae.safetensors")
    own = component_fingerprint(folder, "vqvae")
    assert weights_fingerprint(folder) != before and own != shared
    part = LlamaGenPipeline.from_pretrained(folder).vqvae
    assert part.dtype == torch.float32 and torch.equal(part.decoder.conv_out.bias, brighter.bfloat16().float())
    assert torch.equal(part.decoder.conv_out.weight, whole.decoder.conv_out.weight)
    assert torch.equal(part.quantize.embedding.weight, whole.quantize.embedding.weight)
    assert not torch.equal(draw(folder), draw(tmp_path / "whole"))
    save_file({"decoder.conv_out.bias": -brighter.to(torch.bfloat16)}, folder / "vqvae.safetensors")
    assert component_fingerprint(folder, "vqvae") not in (own, shared)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"decoder.conv_in.bias": torch.zeros(2)}, "has 1 weights of another size, such as decoder.conv_in.bias"),
        ({"decoder.conv_out.scale": torch.zeros(3)}, "VQModel does not have, such as decoder.conv_out.scale"),
        ({"decoder.conv_out.bias": torch.full((3,), torch.nan)}, "not finite"),
        (None, "is truncated or not a safetensors file"),
    ],
    ids=["size", "name", "nan", "truncated"],
)
def test_own_weights_that_do_not_fit_are_named(folder, weights, message):
    path = folder / "vqvae.safetensors"
    if weights is None:
        path.write_bytes(b"\0" * 16)
    else:
        save_file(weights, path)
    refused(message, LlamaGenPipeline.from_pretrained, folder)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"folder": "/whole", "components": SHARED}, "must have a relative path in 'folder'"),
        ({"folder": "", "components": SHARED}, "must have a relative path in 'folder'"),
        ({"folder": 3, "components": SHARED}, "must have a relative path in 'folder'"),
        ({"folder": "../whole", "components": "vqvae"}, "must name components in 'components'"),
        ({"folder": "../whole", "components": ["../vqvae"]}, "must name components in 'components'"),
        ({"folder": "../whole", "components": ["scheduler"]}, "scheduler is missing, but"),
        ({"folder": "../other", "components": SHARED}, "other must be a whole model, whose vqvae and text_encoder"),
        ({"folder": ".", "components": SHARED}, "part must be a whole model"),
    ],
    ids=str,
)
def test_what_cannot_be_shared_is_named(folder, told, message):
    share(folder, **told)
    refused(message, LlamaGenPipeline.from_pretrained, folder)


def test_a_component_that_both_have_is_refused(folder, tmp_path):
    shutil.copytree(tmp_path / "whole" / "vqvae", folder / "vqvae")
    refused("vqvae is in both", LlamaGenPipeline.from_pretrained, folder)
