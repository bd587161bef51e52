"""`jacobi` without a window takes those that pay on this machine, and draws plain decoding's pictures by any."""

from typing import Any

import pytest
import torch
from seeds import seeded
from tiny_pipelines import build_tiny_pipeline

from specdecode.drafters.draft_size import StepCosts
from vargen.checkpoints.model_folder import write_own_settings
from vargen.methods.catalogue import resolve_method
from vargen.methods.jacobi import FixedNoiseJacobiConfig
from vargen.models.description import describe_model


def windows(method: Any, num_tokens: int = 256) -> list[int]:
    return [size.depth for size in method.sizes(num_tokens)]


def test_which_windows_there_are():
    method = resolve_method("jacobi")
    assert windows(method) == [2, 4, 8, 16, 32] and windows(method, 16) == [2, 4, 8]
    assert windows(method, 2) == [1], "as many as a picture has room for"
    assert method.resolved(256) == method, "no picture depends on it"
    assert windows(resolve_method("jacobi", {"window": 5})) == [5]
    branching = resolve_method("jacobi", {"branches": 4})
    assert windows(branching) == [16] and branching.resolved(256).window == 16


def sizer_after_drawing(prompts: list[str]) -> Any:
    """The sizer after twelve rounds, each of which teaches the next; all draw plain decoding's pictures. In float64:
    the rounding of torch's products depends on the rows of a pass, and float32 has come upon a near tie."""
    pipeline = build_tiny_pipeline().to(torch.float64)
    for seed in range(12):
        plain, drawn = (
            pipeline(prompts, method=method, generator=seeded(*range(seed, seed + len(prompts))), output_type="latent")
            for method in ("ar", "jacobi")
        )
        assert torch.equal(plain.tokens, drawn.tokens)
    (sizer,) = pipeline.reuse.draft_sizes._learned.values()
    return sizer


@pytest.mark.parametrize("dear", [True, False])
def test_what_passes_cost_chooses_and_the_picture_stays(dear, tmp_path, monkeypatch):
    """Nothing is guessed where that is fastest."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    costs = StepCosts((1, 2, 9), (1.0, 2.0, 9.0) if dear else (1.0, 1.0, 1.0))
    monkeypatch.setattr("vargen.models.draft_sizes.assumed_step_costs", lambda *_: costs)
    monkeypatch.setattr("vargen.models.draft_sizes.MeasuredDraftSizes.clock", None)
    for prompts in (["two cones"], ["two cones", "a red cube", "a ball on sand"]):
        sizer = sizer_after_drawing(prompts)
        assert sizer._best().depth == (0 if dear else 8)
        assert (sizer._least_gain > 1.05) == (len(prompts) > 1), "a batch asks for more"


def test_a_model_keeps_no_window_that_was_fastest_on_one_machine(drafting_pipeline, tmp_path):
    found = resolve_method("jacobi", {"window": 4})
    assert isinstance(found, FixedNoiseJacobiConfig)
    kept = found.kept_with_model()
    assert kept == resolve_method("jacobi")
    drafting_pipeline.save_pretrained(tmp_path / "model")
    write_own_settings(tmp_path / "model", kept)
    assert describe_model(tmp_path / "model").resolve_method("jacobi") == kept
    branching = resolve_method("jacobi", {"window": 4, "branches": 4})
    assert isinstance(branching, FixedNoiseJacobiConfig) and branching.kept_with_model() == branching
