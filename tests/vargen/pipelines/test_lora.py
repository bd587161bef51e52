"""Adapters made by PEFT itself, on every family: they change pictures, and exact methods stay exact."""

import copy
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import family_pipelines
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specdecode.kernels.quantized import quantize_linears
from vargen import LlamaGenPipeline
from vargen.pipelines import lora
from vargen.pipelines.lora import _SERVED, _check_kind

peft = pytest.importorskip("peft", reason="adapters need the extra lora")


FAMILIES = {
    "llamagen": ["to_qkv", "down_proj"],
    **{family: ["q_proj", "down_proj"] for family in ("janus", "emu3", "glm_image")},
}
"""Modules that adapters are for, by family."""


def build(family: str = "llamagen") -> Any:
    """In float32, as PEFT makes adapters."""
    pipeline = family_pipelines.build(family)
    pipeline._adapted.float()
    return pipeline


def adapter(pipeline: Any, targets: list[str], folder: Path, seed: int = 0, rank: int = 2, **more: Any) -> Path:
    """An adapter with random weights, made and saved by PEFT on a copy of the network."""
    config = peft.LoraConfig(r=rank, lora_alpha=8, target_modules=targets, init_lora_weights=False, **more)
    torch.manual_seed(seed)
    model = peft.get_peft_model(copy.deepcopy(pipeline._adapted), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    return folder


def own_weights(pipeline: Any) -> dict[str, Tensor]:
    """The network's own weights, whether or not adapters are in front of them."""
    names = ((name.replace(".base_layer", ""), each) for name, each in pipeline._adapted.state_dict().items())
    return {name: each.clone() for name, each in names if "lora_" not in name}


def is_clean(pipeline: Any) -> bool:
    """Whether nothing of PEFT is left in the network."""
    return all(type(module).__module__.partition(".")[0] != "peft" for module in pipeline._adapted.modules())


CUBE = {"prompt": "a red cube"}


def drawn(pipeline: Any, arguments: dict[str, Any] = CUBE, method: str = "ar") -> Tensor:
    return pipeline(**arguments, temperature=0, method=method, output_type="latent").tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_changes_pictures_and_leaves_without_a_trace(family, tmp_path):
    pipeline, targets = build(family), FAMILIES[family]
    arguments = {"prompt": "a red cube" if family == "llamagen" else "a dog", **family_pipelines.SIZES.get(family, {})}
    plain = drawn(pipeline, arguments)
    pipeline.load_lora_weights(adapter(pipeline, targets, tmp_path / "a"), adapter_name="a")
    adapted = drawn(pipeline, arguments)
    assert not torch.equal(adapted, plain)
    for method in ["jacobi", "scd", *(["eagle", "draft-model"] if family == "llamagen" else [])]:
        assert torch.equal(drawn(pipeline, arguments, method), adapted), "exact methods stay exact"
    refused("save_pretrained saves a model without adapters", pipeline.save_pretrained, tmp_path / "model")
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
    assert is_clean(pipeline)
    assert torch.equal(drawn(pipeline, arguments, "jacobi"), drawn(pipeline, arguments))
    assert not torch.equal(drawn(pipeline, arguments), plain), "what was fused stays"


@pytest.mark.parametrize("kind", ["", "use_dora", "use_rslora", "rank_pattern", "alpha_pattern"])
def test_what_is_loaded_computes_what_peft_computes(kind, tmp_path):
    """The oracle is PEFT's own model of the same adapter."""
    pipeline = build()
    more: dict[str, Any] = {kind: kind.startswith("use") or {"to_out": 3}} if kind else {}
    folder = adapter(pipeline, ["to_qkv", "to_out", "lm_head"], tmp_path, **more)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(pipeline.transformer), folder).eval()
    tokens, positions = torch.arange(16)[None], torch.arange(16)[None]
    pipeline.load_lora_weights(folder)
    with torch.no_grad():
        ours = pipeline.transformer(input_ids=tokens, positions=positions).logits
        torch.testing.assert_close(ours, theirs(input_ids=tokens, positions=positions).logits)
        pipeline.fuse_lora()
        for _ in range(20):  # rounding adds up to little
            fused = pipeline.transformer(input_ids=tokens, positions=positions).logits
            torch.testing.assert_close(fused, ours, rtol=1e-4, atol=1e-4)
            pipeline.unfuse_lora()
            pipeline.fuse_lora()


@pytest.fixture(scope="module")
def two_adapters(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pipeline with two adapters of one layer each, and what each adds to its weights at scale 1."""
    pipeline, deltas, folder = build(), {}, tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate("ab"):
        pipeline.load_lora_weights(adapter(build(), ["to_qkv"], folder / name, seed, 2 + seed), name)
        state = load_file(folder / name / "adapter_model.safetensors")
        down, up = (state[f"base_model.model.transformer_blocks.0.attn.to_qkv.lora_{part}.weight"] for part in "AB")
        deltas[name] = 8 / (2 + seed) * up @ down
    pipeline.exactly = {name: each.clone() for name, each in pipeline._adapted.state_dict().items()}
    return pipeline, deltas


@given(
    active=st.sampled_from([["a"], ["b"], ["a", "b"]]),
    weights=st.tuples(st.sampled_from([0.25, 1.0, -2.0]), st.sampled_from([0.5, 3.0])),
    fused=st.sampled_from([None, "a", ["b"], ["a", "b"]]),
    scale=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
@settings(max_examples=25, deadline=None)
def test_fusing_adds_what_is_named_by_its_scale_and_unfusing_takes_it_out(two_adapters, active, weights, fused, scale):
    """The oracle are the adapters' own matrices; afterwards weights and scales are those of before."""
    pipeline, deltas = two_adapters
    pipeline.enable_lora()
    asked = dict(zip("ab", weights, strict=True))
    pipeline.set_adapters(["a", "b"], [*weights])  # the scales of both, which then stay
    pipeline.set_adapters(active, [asked[name] for name in active])
    before, layer = own_weights(pipeline), pipeline.transformer.transformer_blocks[0].attn.to_qkv
    scaling = dict(layer.scaling)
    pipeline.fuse_lora(scale, fused)
    pipeline.fuse_lora(7.0, fused)  # these are fused already
    added = sum(scale * asked[name] * deltas[name] for name in (active if fused is None else fused))
    torch.testing.assert_close(layer.get_base_layer().weight, before["transformer_blocks.0.attn.to_qkv.weight"] + added)
    for call in (lambda: pipeline.set_adapters("a", 0.25), pipeline.disable_lora):
        refused("while adapters are fused; call unfuse_lora first, or unload_lora_weights", call)
    pipeline.unfuse_lora()
    assert dict(layer.scaling) == scaling and pipeline.get_active_adapters() == active
    torch.testing.assert_close(own_weights(pipeline), before)
    pipeline._adapted.load_state_dict(pipeline.exactly)  # rounding does not add up over examples


def test_arguments_of_adapters_are_named(tmp_path):
    pipeline = build()
    folder = adapter(pipeline, ["to_qkv"], tmp_path)
    pipeline.load_lora_weights(folder, "a")
    layer = pipeline.transformer.transformer_blocks[0].attn.to_qkv
    for name in ("", "a.b", "items", 7, None):
        refused("adapter_name .* cannot be used", pipeline.load_lora_weights, folder, name)
    refused("adapter_config.json is missing", pipeline.load_lora_weights, "x" * 300, "b")
    pipeline.set_adapters("a", adapter_weights=None)  # diffusers' default
    assert layer.scaling == {"a": 4.0}
    for weights, message in (
        ("x", "adapter_weights must be finite numbers, got 'x'"),
        ([torch.nan], "adapter_weights must be finite numbers, got nan"),
        ({"blocks": 1}, "adapter_weights must be finite numbers, got {"),
        ([1.0, 2.0], "one for all or one for each of 1, got 2"),
    ):
        refused(message, pipeline.set_adapters, "a", weights)
    refused("lora_scale must be finite numbers, got 'x'", pipeline.fuse_lora, "x")
    refused("adapter 'ab' is not loaded; loaded are a", pipeline.fuse_lora, adapter_names="ab")
    refused("fuse_lora needs an adapter that is on", pipeline.fuse_lora, adapter_names=[])
    refused("fuse_lora cannot add a ", pipeline.fuse_lora, 1e300)
    for name in (None, 7, [7]):
        refused("is not loaded; loaded are a", pipeline.set_adapters, name)
    pipeline.disable_lora()
    for names in (None, "a"):
        refused("needs an adapter that is on; call .* or enable_lora", pipeline.fuse_lora, adapter_names=names)
    pipeline.enable_lora()
    pipeline.fuse_lora()  # and the layers of another one would add nothing
    refused("load_lora_weights cannot change a .* adapters are fused", pipeline.load_lora_weights, folder, "b")
    pipeline.unfuse_lora()
    pipeline.delete_adapters("a")
    assert pipeline.get_list_adapters() == [] and is_clean(pipeline)


LORA: dict[str, Any] = {"r": 2, "target_modules": ["to_qkv"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: peft.LoHaConfig(r=2, target_modules=["to_qkv"]), "peft_type 'LOHA', and only LORA is served"),
        (lambda: peft.IA3Config(target_modules=["to_qkv"], feedforward_modules=[]), "peft_type 'IA3', and only LORA"),
        (lambda: peft.LoraConfig(**LORA, modules_to_save=["lm_head"]), "modules_to_save .*, which is not served"),
        (lambda: peft.LoraConfig(**LORA, trainable_token_indices={"token_embedding": [1]}), "trainable_token_indices"),
        (lambda: peft.LoraConfig(**LORA, bias="all"), "bias 'all', which is not served"),
        (lambda: peft.LoraConfig(**LORA, alora_invocation_tokens=[1]), "alora_invocation_tokens .*is not served"),
        (lambda: peft.LoraConfig(**LORA, lora_alpha=float("nan")), "lora_alpha must be finite numbers, got nan"),
        (lambda: peft.LoraConfig(**LORA, init_lora_weights="pissa"), "init_lora_weights 'pissa', which replaces"),
    ],
)
def test_adapters_that_could_not_be_taken_out_are_refused(config, message, tmp_path):
    pipeline = build()
    before, plain = own_weights(pipeline), drawn(pipeline)
    peft.get_peft_model(copy.deepcopy(pipeline.transformer), config()).save_pretrained(tmp_path / "other")
    refused(message, pipeline.load_lora_weights, tmp_path / "other")
    assert is_clean(pipeline) and torch.equal(drawn(pipeline), plain)
    torch.testing.assert_close(own_weights(pipeline), before, rtol=0, atol=0)


def test_a_setting_of_peft_that_is_not_known_is_refused():
    """Whatever PEFT adds: its own model obeys some, and layers alone would not."""
    for each in fields(peft.LoraConfig):
        config = peft.LoraConfig(**LORA)
        setattr(config, each.name, changed := [(1, 2)] if each.name not in _SERVED else getattr(config, each.name))
        if each.name in _SERVED:
            _check_kind(config, Path("a"))
        else:
            refused(rf"{each.name} {re.escape(repr(changed))}", _check_kind, config, Path("a"))


ENDLESS = r"(.+)+[!]"
"""Takes twice as long for each further letter of what it is matched with."""


@pytest.mark.parametrize(
    "entries",
    [
        {"target_modules": ENDLESS},
        {"target_modules": r".*?" * 12 + "!"},
        {"target_modules": r".*\.to_qkv", "exclude_modules": ENDLESS},
        {"rank_pattern": {ENDLESS: 2}},
        {"alpha_pattern": {ENDLESS: 2}},
        {"layers_to_transform": [0], "layers_pattern": ENDLESS},
        {"layers_to_transform": [0], "layers_pattern": ["transformer_blocks", ENDLESS], "rank_pattern": {"(": 2}},
    ],
    ids=str,
)
def test_patterns_of_a_file_that_do_not_come_to_an_end_are_refused(entries, tmp_path, monkeypatch):
    monkeypatch.setattr(lora, "_LONGEST_MATCHING", 0.3)
    pipeline = build()
    config = json.loads((adapter(pipeline, ["to_qkv"], tmp_path) / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **entries}))
    refused("patterns of target_modules and others take over", pipeline.load_lora_weights, tmp_path)
    assert is_clean(pipeline)


def test_a_failed_load_leaves_the_adapters_that_are_there(tmp_path):
    """The second one also names layers that the first one leaves alone; these are the network's own again."""
    pipeline = build()
    pipeline.load_lora_weights(adapter(pipeline, ["to_qkv"], tmp_path / "a"), "a")
    pipeline.set_adapters("a", 0.5)
    before = drawn(pipeline)
    wrong = adapter(build(), ["to_qkv", "to_out"], tmp_path / "b")
    state = load_file(wrong / "adapter_model.safetensors")
    save_file({**state, max(state): torch.zeros(3, 3)}, wrong / "adapter_model.safetensors")
    refused("does not fit this model", pipeline.load_lora_weights, wrong, "b")
    assert pipeline.get_list_adapters() == pipeline.get_active_adapters() == [*pipeline._configs()] == ["a"]
    assert type(pipeline.transformer.transformer_blocks[0].attn.to_out) is nn.Linear
    assert torch.equal(drawn(pipeline), before)


def test_an_adapter_of_the_classes_changes_the_null_class_too(tiny_class_model_folder, tmp_path):
    """The oracle is what the network makes of labels that are all dropped, as in training."""
    pipeline = LlamaGenPipeline.from_pretrained(tiny_class_model_folder)
    plain = pipeline.transformer.null_condition(2)
    pipeline.load_lora_weights(adapter(pipeline, ["class_embedding"], tmp_path))
    adapted = pipeline.transformer.null_condition(2)
    labels, drop = torch.tensor([0, 1]), torch.tensor([True, True])
    with torch.no_grad():
        assert torch.equal(adapted, pipeline.transformer.embed_condition(class_labels=labels, drop=drop))
    assert not torch.equal(adapted, plain)
    asked = {"class_labels": [1]}
    assert torch.equal(drawn(pipeline, asked, "jacobi"), drawn(pipeline, asked))


def test_adapters_and_rounded_weights_exclude_each_other(own_kernels, tmp_path):
    pipeline = build()
    folder = adapter(pipeline, ["to_qkv"], tmp_path)
    pipeline.load_lora_weights(folder)
    adapted = drawn(pipeline)
    refused("quantize cannot round a model beside adapters; call fuse_lora and unload", pipeline.quantize)
    assert torch.equal(drawn(pipeline), adapted)
    quantize_linears(pipeline.transformer, "int8")  # which cannot know
    refused("fuse_lora cannot be used in int8: load the pipeline again, then", pipeline.fuse_lora)
    pipeline = build()
    pipeline.load_lora_weights(folder)
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    pipeline.quantize()
    plain = drawn(pipeline)
    refused("load_lora_weights cannot be used in int8: load the pipeline again", pipeline.load_lora_weights, folder)
    assert is_clean(pipeline) and torch.equal(drawn(pipeline), plain)


def test_adapters_that_do_not_fit_are_one_line_and_leave_the_model(tmp_path):
    pipeline = build()
    plain = drawn(pipeline)
    good = adapter(pipeline, ["to_qkv"], tmp_path / "good")
    state = load_file(good / "adapter_model.safetensors")
    config = json.loads((good / "adapter_config.json").read_text())
    first, other = min(state), "base_model.model.other.lora_A.weight"
    damages: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
        ({**state, first: state[first] * torch.nan}, config, "are not finite"),
        ({name: tensor for name, tensor in state.items() if name != first}, config, "was made for another network"),
        ({**state, other: state[first].clone()}, config, "was made for another network"),
        ({**state, first: state[first][:, :3].contiguous()}, config, "does not fit this model"),
        (state, {**config, "target_modules": ["elsewhere"]}, "does not fit this model"),
        (state, {**config, "peft_type": "NONSENSE"}, "adapter"),
        ({name: tensor * 0 for name, tensor in state.items()}, config, "holds nothing but zeros"),
        (state, {**config, "layers_to_transform": [0], "layers_pattern": 7}, "does not fit this model"),
        (state, {**config, "rank_pattern": {"(": 2}}, "does not fit this model"),
        (state, {**config, "r": 10**9}, "its rank is none of its weights'"),
        ({}, config, "adapter"),
    ]
    for number, (weights, entries, message) in enumerate(damages):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(weights, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(entries))
        refused(message, pipeline.load_lora_weights, folder)
        assert pipeline.get_list_adapters() == []
        assert torch.equal(drawn(pipeline), plain)
