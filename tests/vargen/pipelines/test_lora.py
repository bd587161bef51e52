"""Adapters made by PEFT itself, on every family: they change pictures, and exact methods stay exact."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import emu3_models
import glm_image_models
import janus_models
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pipelines import build_drafting_pipeline
from torch import Tensor, nn

from vargen import LlamaGenPipeline, find_model
from vargen.base.errors import UserError
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline

peft = pytest.importorskip("peft", reason="adapters need the extra lora")


def llamagen() -> Any:
    return build_drafting_pipeline()


def janus() -> Any:
    return JanusPipeline(janus_models.make().float(), janus_models.processor())


def emu3() -> Any:
    return Emu3Pipeline(emu3_models.make().float(), emu3_models.processor())


FAMILIES: dict[str, tuple[Any, list[str], dict[str, Any]]] = {
    "llamagen": (llamagen, ["to_qkv", "down_proj"], {"prompt": "a red cube"}),
    "janus": (janus, ["q_proj", "down_proj"], {"prompt": janus_models.PROMPTS[0]}),
    "emu3": (emu3, ["q_proj", "down_proj"], {"prompt": emu3_models.PROMPTS[0], **emu3_models.SIZE}),
}


def adapter(pipeline: Any, targets: list[str], folder: Path, seed: int = 0, rank: int = 2) -> Path:
    """An adapter with random weights, made and saved by PEFT on a copy of the network."""
    config = peft.LoraConfig(r=rank, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    torch.manual_seed(seed)
    model = peft.get_peft_model(copy.deepcopy(pipeline._adapted), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    return folder


def drawn(pipeline: Any, arguments: dict[str, Any], method: str = "ar") -> Tensor:
    pipeline.set_progress_bar_config(disable=True)
    tokens: Tensor = pipeline(**arguments, temperature=0, method=method, output_type="latent").tokens
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_changes_pictures_and_leaves_without_a_trace(family: str, tmp_path: Path) -> None:
    make, targets, arguments = FAMILIES[family]
    pipeline = make()
    plain = drawn(pipeline, arguments)
    pipeline.load_lora_weights(adapter(pipeline, targets, tmp_path / "a"), adapter_name="a")
    adapted = drawn(pipeline, arguments)
    assert not torch.equal(adapted, plain)
    for method in ["jacobi", "scd", *(["eagle", "draft-model"] if family == "llamagen" else [])]:
        assert torch.equal(drawn(pipeline, arguments, method), adapted), "exact methods stay exact"
    with pytest.raises(UserError, match="save_pretrained saves a model without adapters"):
        pipeline.save_pretrained(tmp_path / "model")
    pipeline.disable_lora()
    assert torch.equal(drawn(pipeline, arguments), plain) and pipeline.get_active_adapters() == []
    pipeline.enable_lora()
    pipeline.set_adapters("a", 0.0)
    assert torch.equal(drawn(pipeline, arguments), plain)
    pipeline.set_adapters("a")
    pipeline.save_lora_weights(tmp_path / "saved", "a")
    pipeline.unload_lora_weights()
    assert torch.equal(drawn(pipeline, arguments), plain) and pipeline.get_list_adapters() == []
    pipeline.load_lora_weights(tmp_path / "saved")
    assert torch.equal(drawn(pipeline, arguments), adapted)
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    assert all(type(module).__module__.partition(".")[0] != "peft" for module in pipeline._adapted.modules())
    assert torch.equal(drawn(pipeline, arguments, "jacobi"), drawn(pipeline, arguments))
    assert not torch.equal(drawn(pipeline, arguments), plain), "what was fused stays"


def test_an_adapter_of_twenty_steps_on_the_shipped_transformer(tmp_path: Path) -> None:
    """It learns the first row of another caption's picture, by PEFT and torch alone; two rows are drawn."""
    pipeline, asked = LlamaGenPipeline.from_pretrained(find_model()), "a red cube"
    rows = 2 * pipeline.grid_size

    def end(pipe: Any, step: int, lengths: Tensor, tensors: dict[str, Tensor]) -> None:
        pipe._interrupt = bool(lengths.min() >= rows)

    def begun(method: str, prompt: str = asked) -> Tensor:
        return drawn(pipeline, {"prompt": prompt, "callback_on_step_end": end}, method)[:, :rows]

    plain = begun("ar")
    picture = begun("ar", "a large green cone on grass")[:, : pipeline.grid_size]
    features, _ = pipeline.encode_prompt(asked)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["to_qkv", "to_out"])
    model = peft.get_peft_model(copy.deepcopy(pipeline.transformer), config)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-2)
    words = pipeline.transformer.embed_condition(caption_embeds=features).detach()
    places = torch.cat((torch.full((words.shape[1],), -1), torch.arange(picture.shape[1] - 1)))[None]
    losses = []
    for _ in range(20):
        inputs = torch.cat((words, pipeline.transformer.token_embedding(picture[:, :-1]).detach()), 1)
        said = model(inputs_embeds=inputs, positions=places, logits_to_keep=picture.shape[1]).logits
        losses.append(nn.functional.cross_entropy(said[0], picture[0]))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]
    model.save_pretrained(tmp_path / "trained")
    pipeline.load_lora_weights(tmp_path / "trained")
    adapted = begun("ar")
    assert not torch.equal(adapted, plain)
    assert torch.equal(begun("jacobi"), adapted), "exact methods stay exact"
    pipeline.save_lora_weights(tmp_path / "saved")
    pipeline.unload_lora_weights()
    assert torch.equal(begun("jacobi"), plain)
    pipeline.load_lora_weights(tmp_path / "saved")
    assert torch.equal(begun("jacobi"), adapted)


def test_what_is_loaded_computes_what_peft_computes(tmp_path: Path) -> None:
    """The oracle is PEFT's own model of the same adapter."""
    pipeline = llamagen()
    folder = adapter(pipeline, ["to_qkv", "to_out", "lm_head"], tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(pipeline.transformer), folder).eval()
    tokens, positions = torch.arange(16)[None], torch.arange(16)[None]
    pipeline.load_lora_weights(folder)
    with torch.no_grad():
        ours = pipeline.transformer(input_ids=tokens, positions=positions).logits
        torch.testing.assert_close(ours, theirs(input_ids=tokens, positions=positions).logits)
        pipeline.fuse_lora()
        fused = pipeline.transformer(input_ids=tokens, positions=positions).logits
        torch.testing.assert_close(fused, ours, rtol=1e-4, atol=1e-4)


def test_several_adapters_add_up(tmp_path: Path) -> None:
    pipeline = llamagen()
    weights = pipeline.transformer.transformer_blocks[0].attn.to_qkv.weight.clone()
    for seed, name in enumerate("ab"):
        pipeline.load_lora_weights(adapter(llamagen(), ["to_qkv"], tmp_path / name, seed, 2 + seed), name)
    assert pipeline.get_list_adapters() == ["a", "b"] and pipeline.get_active_adapters() == ["b"]
    pipeline.set_adapters(["a", "b"], [0.5, 2.0])
    pipeline.fuse_lora()
    wanted = weights
    for name, scale, rank in (("a", 0.5, 2), ("b", 2.0, 3)):
        state = load_file(tmp_path / name / "adapter_model.safetensors")
        down, up = (state[f"base_model.model.transformer_blocks.0.attn.to_qkv.lora_{part}.weight"] for part in "AB")
        wanted = wanted + scale * 8 / rank * up @ down
    layer = pipeline.transformer.transformer_blocks[0].attn.to_qkv
    torch.testing.assert_close(layer.get_base_layer().weight, wanted)
    pipeline.unfuse_lora()
    torch.testing.assert_close(layer.get_base_layer().weight, weights)
    pipeline.delete_adapters("a")
    assert pipeline.get_list_adapters() == ["b"]
    pipeline.delete_adapters("b")
    assert type(pipeline.transformer.transformer_blocks[0].attn.to_qkv) is nn.Linear
    for call, message in (
        (lambda: pipeline.set_adapters("c"), "adapter 'c' is not loaded; loaded are none"),
        (lambda: pipeline.fuse_lora(), "fuse_lora needs an adapter"),
        (lambda: pipeline.load_lora_weights(tmp_path), "adapter_config.json is missing"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_adapters_that_do_not_fit_are_one_line_and_leave_the_model(tmp_path: Path) -> None:
    pipeline = llamagen()
    plain = drawn(pipeline, {"prompt": "a red cube"})
    good = adapter(pipeline, ["to_qkv"], tmp_path / "good")
    state, config = (
        load_file(good / "adapter_model.safetensors"),
        json.loads((good / "adapter_config.json").read_text()),
    )
    first, other = min(state), "base_model.model.other.lora_A.weight"
    damages: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
        ({**state, first: state[first] * torch.nan}, config, "are not finite"),
        ({name: tensor for name, tensor in state.items() if name != first}, config, "was made for another network"),
        (
            {**state, other: state[first].clone()},
            config,
            "was made for another network",
        ),
        ({**state, first: state[first][:, :3].contiguous()}, config, "does not fit this model"),
        (state, {**config, "target_modules": ["elsewhere"]}, "does not fit this model"),
        (state, {**config, "peft_type": "NONSENSE"}, "adapter"),
    ]
    for number, (weights, settings, message) in enumerate(damages):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(weights, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        with pytest.raises(UserError, match=message) as caught:
            pipeline.load_lora_weights(folder)
        assert "\n" not in str(caught.value) and pipeline.get_list_adapters() == []
        assert torch.equal(drawn(pipeline, {"prompt": "a red cube"}), plain)


def test_glm_image_draws_priors_with_an_adapter(tmp_path: Path) -> None:
    pipeline = GlmImagePriorPipeline.from_pipe(glm_image_models.make())
    pipeline.set_progress_bar_config(disable=True)
    settings: dict[str, Any] = {"prompt": glm_image_models.PROMPTS[0], "temperature": 0}
    settings |= {"height": glm_image_models.HEIGHT, "width": glm_image_models.WIDTH}
    plain = pipeline.generate_priors(**settings, method="ar").tokens
    pipeline.load_lora_weights(adapter(pipeline, ["q_proj", "down_proj"], tmp_path))
    adapted = pipeline.generate_priors(**settings, method="ar").tokens
    assert not torch.equal(adapted, plain)
    assert torch.equal(pipeline.generate_priors(**settings, method="jacobi").tokens, adapted)
