"""Measured costs: shape, the file that keeps them, and that no state of it can do harm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vargen.methods.step_costs
from specdecode.draft_size import StepCosts
from vargen.methods.step_costs import cache_folder, measure, step_costs
from vargen.models.llamagen.target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline


@pytest.fixture
def target(tiny_pipeline: LlamaGenPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaGenTarget:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vargen.methods.step_costs, "_measured", {})
    with torch.no_grad():
        embeds, mask = tiny_pipeline.encode_prompt(["a red cube", "two cones"])
        condition = tiny_pipeline.transformer.embed_condition(caption_embeds=embeds)
    return LlamaGenTarget(tiny_pipeline.transformer, condition, mask, guidance_scale=3.0, max_draft_nodes=12)


def test_passes_and_drafting_steps_are_timed(target: LlamaGenTarget) -> None:
    calls: list[int] = []
    before = target.kv_cache.lengths.clone()
    costs = measure(target, 12, lambda: calls.append(1))
    assert costs.nodes == (1, 2, 4, 8, 12)
    assert all(seconds > 0 for seconds in costs.target_seconds) and costs.drafting_step_seconds > 0
    assert calls and torch.equal(before, target.kv_cache.lengths), "the target itself must not be touched"
    assert measure(target, 1, None).nodes == (1,)


def test_they_are_measured_once_and_kept(target: LlamaGenTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    first = step_costs(target, 12, None, "a")
    kept = list((cache_folder() / "step_costs").glob("*.json"))
    assert len(kept) == 1

    def never(*_: object) -> StepCosts:
        raise AssertionError("measured again")

    monkeypatch.setattr(vargen.methods.step_costs, "measure", never)
    assert step_costs(target, 12, None, "a") is first
    monkeypatch.setattr(vargen.methods.step_costs, "_measured", {})
    assert step_costs(target, 12, None, "a") == first
    with pytest.raises(AssertionError, match="measured again"):
        step_costs(target, 12, None, "another drafter")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"nodes": [2, 1], "target_seconds": [1, 1]}', b"\xff", b"[1]"])
def test_a_damaged_file_is_measured_anew(
    target: LlamaGenTarget, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_costs(target, 4, None, "a")
    (path,) = (cache_folder() / "step_costs").glob("*.json")
    good = path.read_bytes()
    path.write_bytes(content)
    monkeypatch.setattr(vargen.methods.step_costs, "_measured", {})
    assert step_costs(target, 4, None, "a").nodes == (1, 2, 4)
    assert path.read_bytes() != content and path.read_bytes()[:20] == good[:20]


def test_an_unwritable_place_does_no_harm(
    target: LlamaGenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "file" / "below"))
    assert step_costs(target, 4, None, "a").nodes == (1, 2, 4)


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARGEN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/vargen")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "vargen"
