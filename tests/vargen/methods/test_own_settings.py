"""What a model prefers: the `methods` part of its configuration, what overrides it, and how it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused, refuses

from vargen.checkpoints.model_folder import weights_fingerprint, write_own_settings
from vargen.checkpoints.options import ModelOptions
from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.models.description import describe_model, open_model
from vargen.pipelines.llamagen import LlamaGenPipeline

CHAIN = [[0], [0, 0]]
OWN: dict[str, Any] = {
    "eagle": {"tree": CHAIN, "depth": 2, "children": "sampled"},
    "vvs": {"tree": CHAIN, "children": "sampled", "depth_behind_skip": 1, "schedule": "likeness", "delta": 0.0},
    "scd": {"window": 5, "initial_guess": "random"},
}


@pytest.fixture(scope="module")
def own_folder(drafting_pipeline: LlamaGenPipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "model"
    usual = {name: drafting_pipeline.config[name] for name in ("default_guidance_scale", "default_top_k")}
    LlamaGenPipeline(**drafting_pipeline.components, **usual, methods=OWN).save_pretrained(folder)
    return folder


def test_a_name_stands_for_what_the_model_prefers(own_folder, drafting_pipeline):
    pipeline = LlamaGenPipeline.from_pretrained(own_folder)
    for name, settings in OWN.items():
        explicit = resolve_method(name, settings)
        tokens = [
            model("two cones", method=method, generator=torch.Generator().manual_seed(3), output_type="latent").tokens
            for model, method in ((pipeline, name), (pipeline, explicit), (drafting_pipeline, explicit))
        ]
        assert torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[1], tokens[2])


def test_options_come_on_top_and_another_draft_replaces_the_models_own():
    def resolve(name: str, **options: Any) -> Any:
        return resolve_method(name, options, OWN)

    assert resolve("vvs", delta=0.1) == resolve_method("vvs", {**OWN["vvs"], "delta": 0.1})
    other = resolve("vvs", total_tokens=8, depth=3)
    assert (other.tree, other.children, other.depth_behind_skip) == ("dynamic", "top", None)
    assert (other.schedule, other.delta) == ("likeness", 0.0), "what is not about the draft stays"
    assert resolve("scd", window=7).initial_guess == "repeat"
    assert resolve("lantern") == resolve_method("lantern"), "nothing is preferred for it"
    assert resolve("eagle-tree") == resolve_method("eagle-tree"), "a preset starts from the method's defaults"
    refused("no option 'dept'", resolve, "eagle", dept=3)


def test_bare_vvs_skips_on_windows_where_the_model_says_nothing_else():
    preferred, both = {"vvs-jacobi": {"window": 8}}, {"window": 8, "max_skip": 2}
    assert resolve_method("vvs", {}, {}) == resolve_method("vvs-jacobi")
    assert resolve_method("vvs", {"max_skip": 2}, preferred) == resolve_method("vvs-jacobi", both)
    for options, own in (({"tree": CHAIN}, {}), ({}, OWN), ({}, None), ({"drafter": "here"}, preferred)):
        assert resolve_method("vvs", options, own).name == "vvs"
    assert resolve_method("vvs-paper-uniform", {}, {}).name == "vvs", "a preset says what it means"


def test_commands_resolve_as_the_pipeline_does(own_folder):
    pipeline, resolve = LlamaGenPipeline.from_pretrained(own_folder), describe_model(own_folder).resolve_method
    asked = {"eagle": None, "vvs": {"threshold": 0.2}, "sjd": {}, "lantern": {"depth": 2}, "ar": {}}
    for name, options in asked.items():
        assert resolve(name, options) == pipeline.resolve_method(name, options)
    assert resolve("sjd", None).to_dict()["window"] == 15, "sixteen do not fit a picture of sixteen tokens"


def test_records_hold_the_sizes_and_other_sizes_are_another_run(own_folder, tmp_path, capsys):
    command = ["generate", "two cones", "--model", str(own_folder), "--quiet", "--output", str(tmp_path / "out")]
    assert main([*command, "--method", "scd"]) == 0
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["settings"]
    assert settings["method"]["window"] == 5 and settings["method"]["initial_guess"] == "random"
    assert main([*command, "--method", "scd"]) == 0
    refuses(capsys, main([*command, "--method", "scd", "--method_options.window", "6"]), "method")


def test_preferred_settings_are_written_beside_others_and_are_no_other_weights(own_folder, drafting_pipeline, tmp_path):
    copy = tmp_path / "model"
    LlamaGenPipeline.from_pretrained(own_folder).save_pretrained(copy)
    before = weights_fingerprint(copy)
    chain = resolve_method("lantern", {"tree": CHAIN, "children": "sampled", "depth": 2})
    write_own_settings(copy, chain)
    assert json.loads((copy / "model_index.json").read_text())["methods"].keys() == {*OWN, "lantern"}
    assert describe_model(copy).resolve_method("lantern") == chain
    assert LlamaGenPipeline.from_pretrained(copy).resolve_method("lantern") == chain
    index = json.loads((copy / "model_index.json").read_text())
    del index["methods"]
    assert weights_fingerprint(copy) == before
    (copy / "model_index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    assert weights_fingerprint(copy) == before
    (copy / "model_index.json").write_text(json.dumps({**index, "default_top_k": 7}))
    assert weights_fingerprint(copy) != before


def test_a_model_draws_at_its_own_temperature(own_folder, tmp_path):
    cooler = tmp_path / "model"
    pipeline = LlamaGenPipeline.from_pretrained(own_folder)
    LlamaGenPipeline(**pipeline.components, default_temperature=0.5).save_pretrained(cooler)
    assert open_model(ModelOptions(str(cooler))).sampling(temperature=None) == {"temperature": 0.5}

    def drawn(model: LlamaGenPipeline, **sampling: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return model("two cones", method="ar", generator=generator, output_type="latent", **sampling).tokens

    model = LlamaGenPipeline.from_pretrained(cooler)
    assert torch.equal(drawn(model), drawn(pipeline, temperature=0.5))
    assert torch.equal(drawn(model, temperature=1.0), drawn(pipeline))
    assert not torch.equal(drawn(model), drawn(pipeline))
