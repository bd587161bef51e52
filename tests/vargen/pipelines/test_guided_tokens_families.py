"""Guidance of the first tokens alone with models of transformers: as in `test_guided_tokens`, for every form of it."""

from typing import Any

import family_pipelines
import pytest
import token_image_models
import torch

from vargen.methods.catalogue import resolve_method
from vargen.models import guided_target

PROMPTS = ["a dog", "a red cat runs under the rain", "the dog runs on sand"]
GUIDED = 6
FAMILIES: dict[str, dict[str, Any]] = {
    "janus": {},
    "emu3": {"height": 24, "width": 32},
    "emu3_5": {"height": 32, "width": 64},
    "lumina_mgpt_2": {"height": 32, "width": 32},
}
"""Without and with ends of rows, and with a scale that decays."""
METHODS = {
    "ar": resolve_method("ar"),
    "jacobi": resolve_method("jacobi", {"window": 4}),
    "zipar": resolve_method("zipar", {"window": 2}),
    "vvs-rows": resolve_method("vvs-rows", {"opens_after": 2, "guesses": 1, "max_visits": 1}),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pipeline(family: str) -> Any:
    """In float64; tests must leave it as it is."""
    made = family_pipelines.build(family)
    made.model.double()
    return made


def settings_of(family: str) -> dict[str, Any]:
    return {"guidance_scale": 4.0, "temperature": 1.0, "top_k": 0, "output_type": "latent", **FAMILIES[family]}


def draw(pipeline: Any, family: str, method: Any = "ar", rows: Any = (0, 1, 2), **settings: Any) -> torch.Tensor:
    prompts, generators = [PROMPTS[row] for row in rows], [torch.Generator().manual_seed(row) for row in rows]
    return pipeline(prompts, method=method, generator=generators, **{**settings_of(family), **settings}).tokens


@pytest.mark.parametrize("method", METHODS)
def test_pictures_are_drawn_as_if_every_row_were_fed(pipeline, family, method, monkeypatch):
    drawn = draw(pipeline, family, METHODS[method], guided_tokens=GUIDED)
    for row in range(3):
        assert torch.equal(draw(pipeline, family, METHODS[method], [row], guided_tokens=GUIDED)[0], drawn[row])
    monkeypatch.setattr(guided_target, "guidance_is_over", lambda *given: False)
    assert torch.equal(draw(pipeline, family, METHODS[method], guided_tokens=GUIDED), drawn)


def test_later_tokens_are_drawn_without_guidance(pipeline, family):
    drawn, guided = draw(pipeline, family, guided_tokens=GUIDED), draw(pipeline, family)
    assert torch.equal(drawn[:, :GUIDED], guided[:, :GUIDED]) and not torch.equal(drawn, guided)
    assert torch.equal(draw(pipeline, family, guided_tokens=drawn.shape[1]), guided)
    assert torch.equal(draw(pipeline, family, METHODS["jacobi"], guided_tokens=GUIDED), drawn)
    if family in ("janus", "emu3"):  # as if a callback had turned guidance off, which feeds both rows to the end

        def turn_off(pipe: Any, step: int, lengths: Any, tensors: Any) -> None:
            if step == GUIDED - 1:
                pipe._guidance_scale = 1.0

        assert torch.equal(drawn, draw(pipeline, family, callback_on_step_end=turn_off))


@pytest.mark.parametrize("method", ["zipar", "pjd"])
def test_rows_that_open_behind_whole_ones_are_plain_decoding(pipeline, family, method):
    whole = resolve_method(method, {"window" if method == "zipar" else "opens_after": 4})
    for guided in (3, GUIDED):
        plain = draw(pipeline, family, guided_tokens=guided)
        assert torch.equal(draw(pipeline, family, whole, guided_tokens=guided), plain)


def test_other_rows_are_left_out(pipeline, family):
    fed: list[int] = []
    layer = pipeline._decoder_layers[0]
    with layer.register_forward_hook(lambda *given: fed.append(len(given[1][0] if given[1] else given[2]))):
        drawn = draw(pipeline, family, guided_tokens=GUIDED)
    assert fed[1:] == [6] * (GUIDED - 1) + [3] * (drawn.shape[1] - GUIDED)


def test_the_rows_of_a_picture_in_the_prompt_are_left_out(monkeypatch):
    """Anole has three rows where a prompt holds a picture."""
    tokenizer = token_image_models.tiny_tokenizer(token_image_models.tiny_family("anole"))
    pipeline = family_pipelines.build("anole")
    pipeline.model.double()
    words = [tokenizer(text, add_special_tokens=False).input_ids for text in ("<s> a dog", "a dog <racm3:break>")]
    asked = torch.tensor([[words[0][0], 8_197, 4, 9, 17, 8_196, *words[1]]])
    fed: list[int] = []

    def drawn(**more: Any) -> torch.Tensor:
        settings = {"height": 32, "width": 64, "temperature": 0, "output_type": "latent", **more}
        return pipeline(input_ids=asked, method="ar", **settings).tokens

    layer: Any = pipeline._decoder_layers[0]
    with layer.register_forward_hook(lambda *given: fed.append(len(given[1][0] if given[1] else given[2]))):
        ours = drawn(guided_tokens=GUIDED)
    assert fed == [3] * GUIDED + [1] * (ours.shape[1] - GUIDED)
    monkeypatch.setattr(guided_target, "guidance_is_over", lambda *given: False)
    assert torch.equal(drawn(guided_tokens=GUIDED), ours) and not torch.equal(drawn(), ours)


@pytest.mark.parametrize("method", ["jacobi", "zipar"])
def test_a_stream_draws_the_same(pipeline, family, method):
    """A row that joins has guidance again, while others are behind their last guided token."""
    generators = [torch.Generator().manual_seed(row) for row in range(3)]
    settings = {**settings_of(family), "guided_tokens": GUIDED, "method": METHODS[method]}
    stream = pipeline.stream(PROMPTS, generator=generators, batch_size=2, continuous=True, **settings)
    drawn = {picture.index: picture.tokens for picture in stream}
    alone = draw(pipeline, family, METHODS[method], guided_tokens=GUIDED)
    assert all(torch.equal(drawn[row], alone[row]) for row in range(3))
