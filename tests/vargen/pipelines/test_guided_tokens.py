"""Guidance of the first tokens alone: what is drawn, what is fed, in every batch, and what is refused."""

from typing import Any

import pytest
import torch
from counted_graphs import CountedGraphs
from tiny_pipelines import GRID

from vargen.base.errors import UserError
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]
GUIDED = 6


def draw(pipeline: LlamaGenPipeline, method: Any = "ar", rows: Any = (0, 1, 2), **settings: Any) -> torch.Tensor:
    prompts, generators = [PROMPTS[row] for row in rows], [torch.Generator().manual_seed(row) for row in rows]
    settings = {"guidance_scale": 4.0, "top_k": 0, "output_type": "latent", **settings}
    return pipeline(prompts, method=method, generator=generators, **settings).tokens


@pytest.fixture(params=["kernels", "modules"])
def pipeline(request: pytest.FixtureRequest, tiny_pipeline: LlamaGenPipeline) -> LlamaGenPipeline:
    if request.param == "kernels":
        request.getfixturevalue("own_kernels")
    return tiny_pipeline


def test_later_tokens_are_drawn_without_guidance(pipeline):
    """As if a callback had turned guidance off behind the last guided token, which feeds both rows to the end."""

    def turn_off(pipe: Any, step: int, lengths: Any, tensors: Any) -> None:
        if step == GUIDED - 1:
            pipe._guidance_scale = 1.0

    drawn = draw(pipeline, guided_tokens=GUIDED)
    assert torch.equal(drawn, draw(pipeline, callback_on_step_end=turn_off))
    all_guided = draw(pipeline)
    assert torch.equal(drawn[:, :GUIDED], all_guided[:, :GUIDED]) and not torch.equal(drawn, all_guided)
    assert torch.equal(draw(pipeline, guided_tokens=GRID**2), all_guided)


@pytest.mark.parametrize(("name", "settings"), [("jacobi", {}), ("scd", {"temperature": 0.0})], ids=str)
def test_exact_methods_draw_from_the_same_distributions(pipeline, name, settings):
    method = resolve_method(name, {"window": 4})
    plain = draw(pipeline, guided_tokens=GUIDED, **settings)
    assert torch.equal(draw(pipeline, method, guided_tokens=GUIDED, **settings), plain)
    for row in range(3):
        assert torch.equal(draw(pipeline, method, [row], guided_tokens=GUIDED, **settings)[0], plain[row])


ROWS = [
    resolve_method("zipar", {"window": 2}),
    resolve_method("zipar", {"window": 2, "adaptive": True}),
    resolve_method("pjd", {"opens_after": 2, "guesses": 2}),
    resolve_method("vvs-rows", {"opens_after": 2, "guesses": 1, "max_visits": 1}),
]
WHOLE_ROWS = [resolve_method("zipar", {"window": GRID}), resolve_method("pjd", {"opens_after": GRID})]


def test_a_draft_across_the_last_guided_token_is_judged_by_place(tiny_pipeline):
    method = resolve_method("jacobi", {"window": 4})
    for guided in range(3, 12):  # two likely tokens, so that drafts are long
        settings: dict[str, Any] = {"guided_tokens": guided, "top_k": 2}
        assert torch.equal(draw(tiny_pipeline, method, **settings), draw(tiny_pipeline, **settings))


@pytest.mark.parametrize("method", WHOLE_ROWS, ids=lambda method: method.name)
def test_rows_that_open_behind_whole_ones_are_plain_decoding(pipeline, method):
    assert torch.equal(draw(pipeline, method, guided_tokens=GUIDED), draw(pipeline, guided_tokens=GUIDED))


@pytest.mark.parametrize("method", ROWS)
def test_rows_side_by_side_draw_as_if_both_rows_were_fed(pipeline, method, monkeypatch):
    drawn = draw(pipeline, method, guided_tokens=GUIDED)
    for row in range(3):
        assert torch.equal(draw(pipeline, method, [row], guided_tokens=GUIDED)[0], drawn[row])
    assert not torch.equal(drawn, draw(pipeline, method))
    monkeypatch.setattr(LlamaGenTarget, "_fed", lambda target, places: (2, target.kv_cache, target._picture_starts))
    assert torch.equal(draw(pipeline, method, guided_tokens=GUIDED), drawn)


@pytest.mark.parametrize("method", ["ar", "jacobi", ROWS[0], ROWS[3]])
def test_a_stream_draws_the_same(pipeline, method):
    """A row that joins has guidance again, while others are behind their last guided token."""
    generators = [torch.Generator().manual_seed(row) for row in range(3)]
    settings = {"guidance_scale": 4.0, "top_k": 0, "output_type": "latent", "guided_tokens": GUIDED, "method": method}
    stream = pipeline.stream(PROMPTS, generator=generators, batch_size=2, continuous=True, **settings)
    alone = draw(pipeline, method, guided_tokens=GUIDED)
    drawn = {picture.index: picture.tokens for picture in stream}
    assert all(torch.equal(drawn[row], alone[row]) for row in range(3))


def test_the_second_row_is_left_out(tiny_pipeline, monkeypatch):
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    fed: list[int] = []
    with tiny_pipeline.transformer.register_forward_hook(lambda *given: fed.append(len(given[2].logits))):
        draw(tiny_pipeline, guided_tokens=GUIDED)
    assert fed[1:] == [6] * (GUIDED - 1) + [3] * (GRID**2 - GUIDED)


@pytest.mark.parametrize(
    ("method", "guided", "message"),
    [
        ("ar", 0, "guided_tokens must be at least 1, got 0"),
        ("eagle", 4, "guided_tokens leaves out a row that the drafter of eagle reads; use jacobi, scd or rows-fast"),
    ],
)
def test_what_needs_both_rows_is_refused(tiny_pipeline, method, guided, message):
    with pytest.raises(UserError, match=message):
        draw(tiny_pipeline, method, guided_tokens=guided)


def test_graphs_are_refused(tiny_pipeline):
    tiny_pipeline.compile(CountedGraphs(), 64)
    try:
        with pytest.raises(UserError, match="compile: guided_tokens decides between steps"):
            draw(tiny_pipeline, guided_tokens=4)
    finally:
        tiny_pipeline.compile(None)
