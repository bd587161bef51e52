"""Feature drafters on disk: they come back as they were, and only to the target they were trained for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import raised
from safetensors.torch import save_file

from vargen.video.drafters.video_head import KINDS, VideoHeadConfig
from vargen.video.drafters.video_head_folder import (
    check_target,
    describe_target,
    load_video_head,
    new_video_head,
    save_video_head,
)


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_comes_back(architecture, models, tmp_path, kind):
    model = models(architecture)
    network = new_video_head(kind, model)
    save_video_head(network, tmp_path)
    again = load_video_head(tmp_path, model)
    assert again.config == network.config
    assert not again.training and not any(each.requires_grad for each in again.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    rows, positions = torch.randn(1, 5, 64), torch.arange(5).expand(3 if architecture == "qwen2_5_vl" else 1, 1, -1)
    assert torch.equal(network.eval()(rows, positions), again(rows, positions))
    assert type(again.layer) is type(model.model.language_model.layers[0])


def test_another_dtype_is_the_same_target(architecture, models, tmp_path):
    from copy import deepcopy

    model = models(architecture)
    network = new_video_head("sparrow", model)
    save_video_head(network, tmp_path)
    half = deepcopy(model).to(torch.bfloat16)
    again = load_video_head(tmp_path, half)
    assert again.dtype == torch.bfloat16 and again.rotary.inv_freq.dtype == torch.float32


def test_another_target_is_refused(architecture, models, tmp_path):
    model = models(architecture)
    save_video_head(new_video_head("msd", model), tmp_path)
    raised(ValueError, "num_hidden_layers 3, this one has 2", load_video_head, tmp_path, models(architecture, 0, 2))
    raised(ValueError, "features: the target's final hidden", load_video_head, tmp_path, models(architecture, 7))
    other = models("llava_onevision" if architecture == "qwen2_5_vl" else "qwen2_5_vl")
    raised(ValueError, "architecture", load_video_head, tmp_path, other)


def test_features_of_another_layer_are_refused(architecture, models):
    """`hidden_states[0]` are the embeddings: numbers that are off by one name another layer."""
    model = models(architecture)
    config = new_video_head("sparrow", model, visual_layer=2).config
    assert config.visual_layer == 2
    check_target(config, model)
    for wrong in (1, 3):
        moved = {**config.target["features"], str(wrong): config.target["features"]["2"]}
        off = replace(config, visual_layer=wrong, target={**config.target, "features": moved})
        raised(ValueError, f"the target's hidden states after {wrong} layers are not those", check_target, off, model)
    raised(ValueError, "visual_layer 9", check_target, replace(config, visual_layer=9), model)


def test_half_of_the_layers_is_the_default(models):
    model = models("qwen2_5_vl", 0, 4)
    assert new_video_head("sparrow", model).config.visual_layer == 2
    assert new_video_head("sparrow", model, visual="embeddings").config.visual_layer is None
    assert new_video_head("flash", model, visual="pairs").config.num_queries == 0


def test_the_fingerprint_is_of_what_drafters_are_fed(models):
    model = models("qwen2_5_vl")
    described = describe_target(model, (1,))
    tokens = torch.arange(1, 13) * 300 // 13
    states = model.model.language_model(
        input_ids=tokens[None], attention_mask=torch.ones(1, 12, dtype=torch.long), output_hidden_states=True
    ).hidden_states
    channels = torch.arange(16) * 4
    for name, layer in (("final", -1), ("1", 1)):
        wanted = states[layer][0, -4:, channels].flatten()
        torch.testing.assert_close(torch.tensor(described["features"][name]), wanted, rtol=1e-3, atol=1e-3)


def test_damaged_folders_are_refused(models, tmp_path):
    model = models("qwen2_5_vl")
    raised(ValueError, r"holds no config\.json", load_video_head, tmp_path, model)
    save_video_head(new_video_head("flash", model, draft_length=3), tmp_path)
    rewrite(tmp_path, draft_length=2)
    raised(ValueError, r"do not fit its config\.json, see offsets", load_video_head, tmp_path, model)
    rewrite(tmp_path, draft_length=3, colour="red")
    raised(ValueError, "colour is not a setting", load_video_head, tmp_path, model)
    (tmp_path / "config.json").write_text("{")
    raised(ValueError, "cannot be read", load_video_head, tmp_path, model)
    save_video_head(new_video_head("flash", model, draft_length=3), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    raised(ValueError, "cannot be read", load_video_head, tmp_path, model)
    (tmp_path / "model.safetensors").unlink()
    raised(ValueError, r"holds no model\.safetensors", load_video_head, tmp_path, model)
    save_file({"fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    raised(ValueError, "do not fit", load_video_head, tmp_path, model)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("medusa", {}, "kind"),
        ("msd", {"visual": "pixels"}, "visual"),
        ("msd", {"visual_layer": 1}, "visual_layer"),
        ("sparrow", {"visual_layer": 4}, "visual_layer must lie between 0 and the target's 3"),
        ("vispec", {"num_queries": 1}, "num_queries must be at least 2"),
        ("flash", {"num_queries": 0}, "num_queries must be at least 1"),
        ("flash", {"draft_length": 0}, "draft_length"),
        ("msd", {"num_queries": 3}, "num_queries must be 0"),
        ("msd", {"scale": True}, "scale must be false"),
    ],
)
def test_bad_settings_are_named(models, kind, changes, named):
    raised(ValueError, named, new_video_head, kind, models("qwen2_5_vl"), **changes)


def test_settings_of_other_language_models_are_refused():
    raised(ValueError, "text_config", VideoHeadConfig, "msd", {"model_type": "gpt2"}, "embeddings")
    known = {"kind": "msd", "text_config": {"model_type": "qwen2"}}
    raised(ValueError, "visual is missing", VideoHeadConfig.from_dict, known)
