"""Guidance of the first tokens alone, with every family: what is drawn and fed, in every batch, and what is refused."""

from __future__ import annotations

from typing import Any

import family_pipelines
import pytest
import torch
from counted_graphs import CountedGraphs
from refusals import refused
from seeds import seeded
from tiny_pipelines import build_tiny_pipeline

from specdecode.graphs.static_step import StepCompiler
from vargen.methods.catalogue import resolve_method
from vargen.models import guided_target
from vargen.models.llamagen.llamagen_target import LlamaGenTarget

PROMPTS = ["a dog", "a red cat runs under the rain", "the dog runs on sand"]
GUIDED = 6
FAMILIES = ("llamagen", "llamagen by kernels", "janus", "emu3", "emu3_5", "lumina_mgpt_2")
"""Without and with ends of rows, and with a scale that decays."""
METHODS = {
    "ar": resolve_method("ar"),
    "jacobi": resolve_method("jacobi", {"window": 4}),
    "zipar": resolve_method("zipar", {"window": 2, "adaptive": True}),
    "vvs-rows": resolve_method("vvs-rows", {"opens_after": 2, "guesses": 1, "max_visits": 1}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def built(family: str) -> Any:
    """In float64, but for the project's kernels; tests must leave it as it is."""
    if family.startswith("llamagen"):
        return build_tiny_pipeline().to(torch.float32 if "kernels" in family else torch.float64)
    made = family_pipelines.build(family)
    made.model.double()
    return made


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, family: str, built: Any) -> Any:
    if "kernels" in family:
        request.getfixturevalue("own_kernels")
    return built


def settings_of(family: str) -> dict[str, Any]:
    size = family_pipelines.SIZES.get(family, {})
    return {"guidance_scale": 4.0, "temperature": 1.0, "top_k": 0, "output_type": "latent", **size}


def draw(pipeline: Any, family: str, method: Any = "ar", rows: Any = (0, 1, 2), **settings: Any) -> torch.Tensor:
    prompts, generators = [PROMPTS[row] for row in rows], seeded(*rows)
    return pipeline(prompts, method=method, generator=generators, **{**settings_of(family), **settings}).tokens


def feed_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end, also behind the last guided token."""
    monkeypatch.setattr(guided_target, "guidance_is_over", lambda *given: False)
    monkeypatch.setattr(LlamaGenTarget, "_fed", lambda target, places: (2, target.kv_cache, target._picture_starts))


@pytest.mark.parametrize("method", METHODS)
def test_pictures_are_drawn_as_if_every_row_were_fed(pipeline, family, method, monkeypatch):
    drawn = draw(pipeline, family, METHODS[method], guided_tokens=GUIDED)
    for row in range(3):
        assert torch.equal(draw(pipeline, family, METHODS[method], [row], guided_tokens=GUIDED)[0], drawn[row])
    assert not torch.equal(drawn, draw(pipeline, family, METHODS[method]))
    feed_every_row(monkeypatch)
    assert torch.equal(draw(pipeline, family, METHODS[method], guided_tokens=GUIDED), drawn)


def test_later_tokens_are_drawn_without_guidance(pipeline, family):
    drawn, guided = draw(pipeline, family, guided_tokens=GUIDED), draw(pipeline, family)
    assert torch.equal(drawn[:, :GUIDED], guided[:, :GUIDED]) and not torch.equal(drawn, guided)
    assert torch.equal(draw(pipeline, family, guided_tokens=drawn.shape[1]), guided)
    assert torch.equal(draw(pipeline, family, METHODS["jacobi"], guided_tokens=GUIDED), drawn)
    greedy, scd = {"temperature": 0.0, "guided_tokens": GUIDED}, resolve_method("scd", {"window": 4})
    assert torch.equal(draw(pipeline, family, scd, **greedy), draw(pipeline, family, **greedy))
    if family not in ("emu3_5", "lumina_mgpt_2"):  # as if a callback had turned guidance off, which feeds both rows
        off = {"callback_on_step_end": lambda pipe, step, *_: setattr(pipe, "_guidance_scale", 4.0 - 3 * (step > 4))}
        assert torch.equal(drawn, draw(pipeline, family, **off))


def test_a_draft_across_the_last_guided_token_is_judged_by_place():
    pipeline = build_tiny_pipeline().to(torch.float64)
    for guided in range(3, 12):  # two likely tokens, so that drafts are long
        settings: dict[str, Any] = {"guided_tokens": guided, "top_k": 2}
        plain = draw(pipeline, "llamagen", **settings)
        assert torch.equal(draw(pipeline, "llamagen", METHODS["jacobi"], **settings), plain)


@pytest.mark.parametrize("method", ["zipar", "pjd"])
def test_rows_that_open_behind_whole_ones_are_plain_decoding(pipeline, family, method):
    whole = resolve_method(method, {"window" if method == "zipar" else "opens_after": 4})
    for guided in (3, GUIDED):
        plain = draw(pipeline, family, guided_tokens=guided)
        assert torch.equal(draw(pipeline, family, whole, guided_tokens=guided), plain)


def test_other_rows_are_left_out(pipeline, family, monkeypatch):
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    fed: list[int] = []
    layer = pipeline._decoder_layers[0]
    with layer.register_forward_hook(lambda *given: fed.append(len(given[1][0] if given[1] else given[2]))):
        drawn = draw(pipeline, family, guided_tokens=GUIDED)
    assert fed[1:] == [6] * (GUIDED - 1) + [3] * (drawn.shape[1] - GUIDED)


def test_the_rows_of_a_picture_in_the_prompt_are_left_out(monkeypatch):
    """Anole has three rows where a prompt holds a picture."""
    pipeline = family_pipelines.build("anole")
    pipeline.model.double()
    start, *words = pipeline.tokenizer("<s> a dog <racm3:break>", add_special_tokens=False).input_ids
    asked = torch.tensor([[start, 8_197, 4, 9, 17, 8_196, *words]])
    fed: list[int] = []

    def drawn(**more: Any) -> torch.Tensor:
        settings = {"height": 32, "width": 64, "temperature": 0, "output_type": "latent", **more}
        return pipeline(input_ids=asked, method="ar", **settings).tokens

    layer: Any = pipeline._decoder_layers[0]
    with layer.register_forward_hook(lambda *given: fed.append(len(given[1][0] if given[1] else given[2]))):
        ours = drawn(guided_tokens=GUIDED)
    assert fed == [3] * GUIDED + [1] * (ours.shape[1] - GUIDED)
    feed_every_row(monkeypatch)
    assert torch.equal(drawn(guided_tokens=GUIDED), ours) and not torch.equal(drawn(), ours)


@pytest.mark.parametrize("method", ["jacobi", "vvs-rows"])
def test_a_stream_draws_the_same(pipeline, family, method):
    """A row that joins has guidance again, while others are behind their last guided token."""
    generators = seeded(*range(3))
    settings = {**settings_of(family), "guided_tokens": GUIDED, "method": METHODS[method]}
    stream = pipeline.stream(PROMPTS, generator=generators, batch_size=2, continuous=True, **settings)
    drawn = {picture.index: picture.tokens for picture in stream}
    alone = draw(pipeline, family, METHODS[method], guided_tokens=GUIDED)
    assert all(torch.equal(drawn[row], alone[row]) for row in range(3))


@pytest.mark.parametrize(
    ("method", "guided", "message"),
    [
        ("ar", 0, "guided_tokens must be at least 1, got 0"),
        ("eagle", 4, "guided_tokens leaves out a row that the drafter of eagle reads; use jacobi, scd or rows-fast"),
    ],
)
def test_what_needs_both_rows_is_refused(tiny_pipeline, method, guided, message):
    refused(message, draw, tiny_pipeline, "llamagen", method, guided_tokens=guided)


def test_graphs_are_refused(tiny_pipeline, monkeypatch):
    monkeypatch.setattr(tiny_pipeline.reuse, "compiler", StepCompiler(CountedGraphs(), 64))
    refused("compile: guided_tokens decides between steps", draw, tiny_pipeline, "llamagen", guided_tokens=4)
