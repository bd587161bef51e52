"""Every architecture: exact methods say what the unmodified class's own `generate` says, and others are refused."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import raised, refused
from tiny_video_llms import by_generate
from torch import Tensor
from transformers import InternVLConfig, LlamaConfig

from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.methods.catalogue import methods_for
from vargen.video.drafters.video_head import KINDS
from vargen.video.drafters.video_head_folder import new_video_head
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.methods.parallelvlm import ParallelConfig
from vargen.video.methods.speculative import SpeculativeConfig
from vargen.video.models.architectures.catalogue import ARCHITECTURES, architecture_of, find_architecture, layer_classes
from vargen.video.models.request import keep_visual, prepare_request
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Generation, decode

NAMES = tuple(ARCHITECTURES)
LENGTH = 10
LONG = 12
"""Frames of a video whose last moment has a greater position than the question behind it."""


def answers(
    method: VideoMethodConfig, model: Any, inputs: list[dict[str, Tensor]], draft: Any = None, stop: int | None = None
) -> list[list[int]]:
    drafters = {kind: new_video_head(kind, model).eval() for kind in KINDS if kind == method.name}
    components = VideoLLMComponents(model, inputs, LENGTH, draft, load_draft_head=lambda kind, _: drafters[kind])
    trace = DecodeTrace(len(inputs), torch.device("cpu"))
    stops = () if stop is None else (stop,)
    generation = Generation(LENGTH, SamplingConfig(temperature=0), [0] * len(inputs), stops, trace)
    players = method.build(components)
    try:
        return decode(players, generation).token_ids
    finally:
        for lasting in components.lasting.values():
            lasting.close()


def one_of_each() -> list[VideoMethodConfig]:
    """Exact methods of our own."""
    ours = [method for method in methods_for("video").values() if method.exact]
    in_turn = {ParallelConfig.name: {"workers": "in_turn", "draft_length": 3}}
    return [method(**in_turn.get(method.name, {})) for method in ours]


def exact_methods() -> list[VideoMethodConfig]:
    """One of each, and pruned ones by every score."""
    pruned = [SpeculativeConfig(pruning=by, keep_ratio=0.3) for by in ("uniform", "attention", "visual_gain")]
    return [*one_of_each(), *pruned, SpeculativeConfig(drafter="self", keep_ratio=0.3)]


@pytest.mark.parametrize("name", NAMES)
def test_every_exact_method_says_what_generate_says(name, models, inputs_of):
    """Two requests, which take turns in one batch or on one model object; one of them long."""
    model, draft = models(name), models(name, 5, 2)
    inputs = [inputs_of(name, 1, 6), inputs_of(name, 3, 4, LONG)]
    expected = [by_generate(model, each, LENGTH) for each in inputs]
    assert all(len(set(each)) > 2 for each in expected), "a constant answer would prove nothing"
    for method in exact_methods():
        if method.name == "parallelvlm":
            found = [answers(method, model, [each], draft)[0] for each in inputs]
        else:
            found = answers(method, model, inputs, draft)
        assert found == expected, method


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_ends_at_its_end_wherever_that_is(name, models, inputs_of):
    """By every exact method; with the target drafting for itself nearly all is accepted, so ends lie inside drafts."""
    model, draft, inputs = models(name), models(name, 5, 2), inputs_of(name, 1)
    whole = by_generate(model, inputs, LENGTH)
    for method in [*one_of_each(), SpeculativeConfig(drafter="self", draft_length=4, keep_ratio=0.5)]:
        for stop in list(dict.fromkeys(whole))[::6]:
            expected = whole[: whole.index(stop) + 1]  # as `generate` ends one
            assert answers(method, model, [inputs], draft, stop) == [expected], (method, stop)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_seen_of_a_prompt_is_the_models_own(name, models, inputs_of):
    """Hidden states as the next layer reads them; `test_attention.py` has what attention is seen."""
    model, inputs = models(name), inputs_of(name, 3)
    request, read = prepare_request(model, inputs), {}
    target = VideoTarget(model, request, capture_layers=(0, 1, 2))
    target.prefill()
    (seen,) = target.prompts
    layers = architecture_of(slow := deepcopy(model)).decoder(slow).layers
    for number in (1, 2):
        layers[number].register_forward_pre_hook(lambda module, args, number=number: read.update({number: args[0][0]}))
    with torch.no_grad():
        slow(**inputs)
    for number, states in read.items():
        torch.testing.assert_close(seen.captured[number], states, rtol=1e-4, atol=1e-4)


def test_a_pruned_request_keeps_the_deepstack_of_what_is_left(models, inputs_of):
    model = models("qwen3_vl")
    request = prepare_request(model, inputs_of("qwen3_vl", 0))
    kept = torch.tensor([0, 9, 17, 31])  # of all four spans
    pruned = keep_visual(request, kept)
    for whole, left in zip(request.deepstack, pruned.deepstack, strict=True):
        assert torch.equal(left, whole[kept])
    # Tokens that nobody sees, masked in the whole prompt, must not have mattered.
    target = VideoTarget(model, pruned)
    stays = torch.ones(request.length, dtype=torch.bool)
    stays[request.is_visual.nonzero()[:, 0]] = False
    stays[request.is_visual.nonzero()[kept, 0]] = True
    mask = stays[None, None, None, :] & torch.ones(request.length, request.length, dtype=torch.bool).tril()
    mask |= torch.eye(request.length, dtype=torch.bool)
    given = {"inputs_embeds": request.inputs_embeds, "position_ids": request.position_ids, "use_cache": False}
    deep = {"visual_pos_masks": request.is_visual[None], "deepstack_visual_embeds": list(request.deepstack)}
    with torch.no_grad():
        states = model.model.language_model(**given, **deep, attention_mask=mask).last_hidden_state
    wanted = model.lm_head(states)[0, -1]
    torch.testing.assert_close(target.prefill().logits[0, -1], wanted, rtol=1e-3, atol=1e-3)


def test_every_input_that_an_architecture_needs_is_asked_for(models, inputs_of):
    for name, architecture in ARCHITECTURES.items():
        for needed in architecture.needs:
            inputs = {key: value for key, value in inputs_of(name).items() if key != needed}
            raised(ValueError, needed, prepare_request, models(name), inputs)


@pytest.mark.parametrize("config", [InternVLConfig(), LlamaConfig()])
def test_other_architectures_are_refused_by_name(config):
    refused(f"{config.model_type!r}.*Qwen3-VL", architecture_of, SimpleNamespace(config=config))
    refused("cannot answer about videos", find_architecture, None)
    raised(ValueError, "text_config", layer_classes, "mamba")
