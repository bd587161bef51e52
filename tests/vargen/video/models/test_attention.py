"""Attention of a few rows, read off the fast path, against the maps of the slow one."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from refusals import raised
from torch import Tensor

from specdecode.targets.arguments import cache_argument
from specdecode.targets.transformers import SlotCache
from vargen.video.models.architectures.catalogue import ARCHITECTURES
from vargen.video.models.attention import attention_of_rows, watch_attention
from vargen.video.models.request import VideoRequest, prepare_request
from vargen.video.models.target import VideoTarget

Models = Callable[..., Any]
Inputs = Callable[..., dict[str, Tensor]]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def maps(request: pytest.FixtureRequest, models: Models, inputs_of: Inputs) -> tuple[Any, dict[str, Tensor], Tensor]:
    """A model, inputs, and the library's own maps [layers, heads, T, T] of them."""
    model, inputs = deepcopy(models(request.param)), inputs_of(request.param, 2)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = torch.cat(model(**inputs, output_attentions=True).attentions)
    model.set_attn_implementation("sdpa")
    return model, inputs, attentions


def watched(model: Any, inputs: dict[str, Tensor]) -> VideoTarget:
    target = VideoTarget(model, prepare_request(model, inputs), capture_attention=True)
    target.prefill()
    return target


def test_scores_are_those_of_the_whole_maps(maps):
    model, inputs, attentions = maps
    target = watched(model, inputs)
    visual = target.requests[0].is_visual
    after = int(visual.nonzero()[-1]) + 1
    of_video = attentions[:, :, after:][..., visual].mean(2)  # [layers, heads, m]
    torch.testing.assert_close(target.video_attention(), of_video.mean((0, 1)), rtol=0, atol=1e-5)
    assert len(target.prompts[0].attention) == 3
    for number, scores in enumerate(target.prompts[0].attention):
        assert scores.shape == (2, int(visual.sum())) and scores.dtype == torch.float32
        # Heads 0 and 1 share the first key head, 2 and 3 the second.
        wanted = torch.stack((of_video[number, :2].sum(0), of_video[number, 2:].sum(0)))
        torch.testing.assert_close(scores, wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(wanted[0], wanted[1], atol=1e-3), "key heads alike would prove nothing"


def test_watching_changes_nothing(architecture, models, inputs_of):
    model, inputs = models(architecture), inputs_of(architecture, 2)
    request = prepare_request(model, inputs)
    plain, target = VideoTarget(model, request).prefill(), VideoTarget(model, request, capture_attention=True)
    modules = [layer.self_attn for layer in target.language_model.layers]
    before = [len(module._forward_hooks) for module in modules]
    assert torch.equal(target.prefill().logits, plain.logits)
    assert target.forward_passes == 1
    assert [len(module._forward_hooks) for module in modules] == before


@pytest.mark.parametrize("rows", [[0], [7], [0, 3, 9], [41]])
def test_rows_see_themselves_and_what_is_before(maps, rows):
    model, inputs, attentions = maps
    request = prepare_request(model, inputs)
    rows = [min(row, request.input_ids.shape[1] - 1) for row in rows]
    found = first_layer_attention(model, request, torch.tensor(rows))
    torch.testing.assert_close(found, attentions[0][:, rows].mean(1), rtol=0, atol=1e-5)
    assert torch.equal(found[:, max(rows) + 1 :], torch.zeros_like(found[:, max(rows) + 1 :]))


def first_layer_attention(model: Any, request: VideoRequest, rows: Tensor) -> Tensor:
    language_model, kept, length = model.model.language_model, [], request.length
    caches = [SlotCache("model", len(language_model.layers), 1) for _ in range(2)]
    for each in caches:
        each.start_prompt(length + 1, length + 2)
        each.row = 0
    handle = watch_attention(language_model.layers[0].self_attn, caches[0], lambda: rows, kept.append)
    positions = request.position_ids if len(request.position_ids) > 1 else request.position_ids[0]
    given = {"inputs_embeds": request.inputs_embeds, "position_ids": positions}
    with torch.no_grad():
        for each in caches:  # another request's pass is not watched
            language_model(**given, **cache_argument(language_model, each))
    handle.remove()
    assert len(kept) == 1
    return kept[0]


def test_axes_mixed_by_the_module_are_mixed_alike(models, inputs_of):
    """Older releases give a layer cosines and sines of all three axes, and it takes its stretches of them."""
    model = models("qwen2_5_vl")
    module = model.model.language_model.layers[1].self_attn
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 20, 64, generator=generator)
    keys = torch.randn(1, 2, 20, 16, generator=generator)
    axes = torch.randn(2, 3, 1, 20, 16, generator=generator)
    # Of eight channels, repeated, the first two belong to time, three to height, three to width.
    owner = [0, 0, 1, 1, 1, 2, 2, 2] * 2
    mixed = torch.stack([axes[:, axis, ..., channel] for channel, axis in enumerate(owner)], dim=-1)
    rows = torch.tensor([4, 19])
    wanted = attention_of_rows(module, states, (mixed[0], mixed[1]), keys, rows)
    torch.testing.assert_close(attention_of_rows(module, states, (axes[0], axes[1]), keys, rows), wanted)


def test_scores_of_a_half_precision_model_are_float32(architecture, models, inputs_of):
    model = deepcopy(models(architecture)).to(torch.bfloat16)
    target = watched(model, inputs_of(architecture, 2))
    assert target.prompts[0].attention[0].dtype == torch.float32
    exact = watched(models(architecture), inputs_of(architecture, 2)).video_attention()
    assert torch.corrcoef(torch.stack((target.video_attention(), exact)))[0, 1] > 0.9


def test_what_cannot_be_scored_is_named(architecture, prepared):
    model, request = prepared(architecture)
    target = VideoTarget(model, request)
    target.prefill()
    raised(ValueError, "capture_attention=True", target.video_attention)
    unread = VideoTarget(model, request, capture_attention=True)
    raised(ValueError, "must have been prefilled first", unread.video_attention)
    end = int(request.is_visual.nonzero()[-1]) + 1
    cut = replace(
        request, input_ids=request.input_ids[:, :end], inputs_embeds=request.inputs_embeds[:, :end],
        position_ids=request.position_ids[..., :end], is_visual=request.is_visual[:end],
    )  # fmt: skip
    raised(ValueError, "no text after the video", VideoTarget(model, cut, capture_attention=True).prefill)
    assert request.question_places.tolist() == list(range(end, request.input_ids.shape[1]))
