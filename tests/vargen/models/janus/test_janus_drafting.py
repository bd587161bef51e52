"""Drafting for Janus with trained heads and smaller models: plain decoding's tokens, training, refusals."""

import json
from pathlib import Path
from typing import Any

import janus_models
import numpy as np
import pytest
import torch
from janus_models import PROMPTS
from PIL import Image
from random_heads import save_random_head
from refusals import refused, refuses

from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.janus import JanusPipeline

TREE = {"total_tokens": 9, "depth": 3, "tree_top_k": 3}
CHAIN = {"tree": [[0], [0, 0]], "children": "sampled"}
SMALL = """
--num_images 36 --evaluation_size 8 --batch_size 8 --generation_batch_size 18 --steps 40 --warmup_steps 4
--num_threads 1 --evaluate_every 1000 --ema_decay 0.9 --learning_rate 1e-2 --autocast false
"""


def pipeline_of(model: Any) -> JanusPipeline:
    return JanusPipeline(model, janus_models.processor())


@pytest.fixture(scope="module")
def pipeline() -> JanusPipeline:
    return pipeline_of(janus_models.make())


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_random_head(tmp_path_factory.mktemp("head"), 40)


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("smaller")
    janus_models.disturbed(janus_models.make(), 0.02).save_pretrained(folder)
    return str(folder)


def draw(pipeline: JanusPipeline, method: Any, **arguments: Any) -> Any:
    return pipeline(PROMPTS, method=method, output_type="latent", **{"temperature": 0, **arguments})


@pytest.mark.parametrize("guidance_scale", [5.0, 1.0])
@pytest.mark.parametrize(
    ("name", "options"),
    [("eagle", TREE), ("eagle", CHAIN), ("draft-model", {"draft_length": 3}), ("draft-model", {"children": "sampled"})],
)
def test_greedy_tokens_are_those_of_plain_decoding(
    pipeline, head, smaller, guidance_scale, name, options, tmp_path, monkeypatch
):
    """In float64, prompts of different lengths; sizes by the clock where nothing is said."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    weights = {"drafter": head} if name == "eagle" else {"draft_model": smaller}
    plain = draw(pipeline, "ar", guidance_scale=guidance_scale)
    drafted = draw(pipeline, resolve_method(name, {**options, **weights}), guidance_scale=guidance_scale)
    assert torch.equal(drafted.tokens, plain.tokens)
    if name == "draft-model" and "children" not in options:
        assert drafted.trace.target_passes < plain.trace.target_passes
        assert sum(sum(row) for row in drafted.trace.accepted_lengths) > 0


def test_compiled_both_models_take_over_the_caches_of_the_last_batch(tmp_path):
    """Captured graphs write to fixed addresses."""
    model = janus_models.make(num_layers=1)  # every layer is captured for every width
    janus_models.disturbed(model, 0.02).save_pretrained(tmp_path)
    pipeline = pipeline_of(model)
    method = resolve_method("draft-model", {"draft_model": str(tmp_path), "draft_length": 3})
    eager = draw(pipeline, method)
    pipeline.compile("eager", 64)
    try:
        caches = []
        for _ in range(2):
            assert torch.equal(draw(pipeline, method).tokens, eager.tokens)
            caches.append((pipeline.reuse.memory.target.kv_cache, pipeline.reuse.memory.draft_model.kv_cache))
        assert all(first is second for first, second in zip(*caches, strict=True))
    finally:
        torch._dynamo.reset()


def test_what_does_not_fit_is_refused_by_name(pipeline, head, tmp_path):
    for method, message in (
        ("eagle", "drafter: Janus came without one; train one with `vargen train drafter`"),
        ("draft-model", "draft_model: Janus came without one; name a smaller Janus"),
        (resolve_method("eagle", {"drafter": str(tmp_path / "none")}), "is not a folder; name one with the files of"),
    ):
        refused(message, draw, pipeline, method)
    other = pipeline_of(janus_models.make(codes=41))
    tree = resolve_method("eagle", {"drafter": head, **TREE})
    refused("another model: 40 image tokens, this model has 41", draw, other, tree)
    janus_models.make(codes=41).save_pretrained(tmp_path / "codes")
    janus_models.make(seed=5).save_pretrained(tmp_path / "book")
    for folder, message in (("codes", "it has 41 codes, this model has 40"), ("book", "its codes are not those of")):
        method = resolve_method("draft-model", {"draft_model": str(tmp_path / folder)})
        refused(f"draft_model was made for another model: {message}", draw, pipeline, method)


def test_a_head_is_trained_on_prompts_of_a_file_and_drafts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    model = janus_models.save(tmp_path / "model")
    words = ["dog", "cat", "red", "rain", "sand", "runs"]
    (tmp_path / "prompts.txt").write_text("\n".join(f"a {one} on {other}" for one in words for other in words))
    command = ["train", "drafter", "--model", str(model), "--output", str(tmp_path / "run")]
    line = "prompts_file must name a file: a model of the family janus does not draw"
    refuses(capsys, main([*command, *SMALL.split()]), line)
    command += ["--prompts_file", str(tmp_path / "prompts.txt"), *SMALL.split()]
    assert main([*command, "--max_seconds", "1e-9"]) == 0  # a run that was cut short goes on
    untrained = evaluation(tmp_path)
    assert main(command) == 0
    trained = evaluation(tmp_path)
    assert trained["guided_loss"] < untrained["guided_loss"] - 0.05
    export = str(tmp_path / "run" / "export")
    generate = ["generate", PROMPTS[0], "--model", str(model), "--temperature", "0", "--quiet", "--json"]
    passes = {}
    for method in ("ar", "eagle"):
        options = ["--method_options.drafter", export, *[f"--method_options.{name}={TREE[name]}" for name in TREE]]
        capsys.readouterr()
        chosen = [*generate, "--method", method, "--output", str(tmp_path / method)]
        assert main([*chosen, *(options if method == "eagle" else [])]) == 0
        passes[method] = json.loads(capsys.readouterr().out)["forward_passes"]
    plain, drafted = (Image.open(tmp_path / method / "images" / "000000.png") for method in ("ar", "eagle"))
    assert passes["eagle"] < passes["ar"] == 16 and np.array_equal(plain, drafted)


def evaluation(folder: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == "evaluation"][-1]
