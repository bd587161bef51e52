"""Arguments of calls in Python that are of another kind, by walking the signature of every family's call and of
`specdecode.generate`."""

import inspect
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import language_models
import pytest
import torch
from language_models import ragged_prompts
from refusals import raised, refused
from tiny_pipelines import build_tiny_pipeline
from transformers import GenerationConfig

import specdecode
from vargen.base.errors import UserError
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.token_images import TokenImages
from vargen.video.models.frames import VideoFrames
from vargen.video.pipelines.answering import VideoAnswerer

CALLS: dict[str, Callable[..., Any]] = {
    "llamagen": LlamaGenPipeline.__call__, "janus": JanusPipeline.__call__, "token images": TokenImages.__call__,
    "emu3": Emu3Pipeline.__call__, "glm-image": GlmImagePriorPipeline.__call__, "an answer": VideoAnswerer.answer,
}  # fmt: skip
NOT_CHECKED = {"image", "reference_images", "frames", "questions"}
"""Checked by what reads them: classes of transformers and of our own."""
ARGUMENTS = [
    (call, name)
    for call, function in CALLS.items()
    for name, parameter in inspect.signature(function).parameters.items()
    if name not in NOT_CHECKED | {"self"} and parameter.kind is not parameter.VAR_KEYWORD
]


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_every_argument_of_another_kind_is_named(call, name):
    """Before anything of the pipeline is asked: there is none here."""
    function = CALLS[call]
    required = [
        each.name
        for each in list(inspect.signature(function).parameters.values())[1:]
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]
    frames = VideoFrames.from_frames(torch.zeros(2, 3, 4, 4))
    known = {"frames": frames, "questions": [(frames, "what?")]}
    with pytest.raises(UserError, match=f"^{name} must be"):
        function(Mock(), **{each: known.get(each, "a cube") for each in required} | {name: object()})


@pytest.fixture(scope="module")
def pipelines() -> dict[str, LlamaGenPipeline]:
    return {kind: build_tiny_pipeline(condition_type=kind) for kind in ("text", "class")}


EMBEDS = torch.zeros(1, 3, 12)


def test_it_is_refused(pipelines):
    for arguments, expected in (
        ({"prompt": {"a cube": 1}}, "prompt must be text or a list"),
        ({"prompt": ["a cube", 7]}, "got a list that holds int 7"),
        ({"prompt": b"a cube"}, "prompt must be text"),
        ({"prompt": iter(["a cube"])}, "prompt must be text"),
        ({"prompt": "a \ud800 cube"}, "prompt is not UTF-8 text"),
        ({"prompt": "a\0cube"}, "prompt holds a zero character"),
        ({"prompt": "a " * 5_000_000}, "prompt has 10,000,000 characters"),
        ({"prompt": "a cube", "max_sequence_length": 1.5}, "max_sequence_length must be an integer or None"),
        ({"prompt": "a cube", "max_sequence_length": True}, "max_sequence_length must be an integer"),
        ({"prompt": "a cube", "num_images_per_prompt": True}, "num_images_per_prompt must be an integer"),
        ({"prompt": "a cube", "generator": [torch.Generator(), None]}, "got a list that holds NoneType"),
        ({"prompt_embeds": EMBEDS.long()}, "prompt_embeds must hold floating-point numbers"),
        ({"prompt_embeds": EMBEDS, "prompt_attention_mask": torch.full((1, 3), 2)}, "must hold 0 and 1 only"),
        ({"class_labels": "3"}, "class_labels must be an integer"),
        ({"class_labels": 10**30}, "class_labels must be at most"),
        ({"class_labels": [1, -(10**30)]}, "class_labels must be at least"),
        ({"class_labels": True}, "class_labels must be an integer"),
        ({"class_labels": [1, True]}, "got a list that holds bool True"),
        ({"prompt": "a cube", "num_inference_steps": 50}, "num_inference_steps cannot be used: tokens are drawn, not"),
        ({"prompt": "a cube", "cross_attention_kwargs": {}}, "cross_attention_kwargs cannot be used: tokens are drawn"),
        ({"prompt": "a cube", "method": dict}, "got the class <class 'dict'>; give an instance"),
        ({"prompt": "a cube", "temprature": 1.0}, "temprature is no argument of this call (did you mean"),
    ):
        pipeline = pipelines["class" if "class_labels" in arguments else "text"]
        refused(re.escape(expected), pipeline, **arguments)
        if arguments.get("prompt") == "a cube" and "num_images_per_prompt" not in arguments:
            refused(re.escape(expected), pipeline.stream, **{**arguments, "prompt": ["a cube"]})


def test_a_call_that_somebody_wrapped_draws(pipelines, monkeypatch):
    call = LlamaGenPipeline.__call__

    def wrapper(self: Any, prompt: Any, **options: Any) -> Any:
        return call(self, prompt, **options)

    monkeypatch.setattr(LlamaGenPipeline, "__call__", wrapper)
    drawn = pipelines["text"]("a cube", generator=torch.Generator().manual_seed(0), output_type="latent").tokens
    (streamed,) = pipelines["text"].stream(["a cube"], generator=torch.Generator().manual_seed(0), output_type="latent")
    assert torch.equal(drawn[0], streamed.tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Text: `specdecode.generate`


@pytest.fixture(scope="module")
def model() -> Any:
    return language_models.make("llama")


TEXT_ARGUMENTS = inspect.signature(specdecode.generate).parameters


@pytest.mark.parametrize("name", [name for name in TEXT_ARGUMENTS if name != "settings"])
def test_every_argument_of_text_that_is_of_another_kind_is_named(name, model):
    asked = {"model": model, "input_ids": ragged_prompts()[0], name: object()}
    asked |= {"stop_strings": ["a"]} if name == "tokenizer" else {}  # which else nobody asks for
    raised(ValueError, rf"^{name}(: model)? must be|^{name} must (lie|have)", specdecode.generate, **asked)


def test_text_is_refused(model):
    for options, message in (
        ({"method": "medusa"}, "method must be one of ar, jacobi, prompt-lookup, got 'medusa'"),
        ({"method": "ar", "draft_model": object()}, "draft_model is a method of its own; leave out method='ar'"),
        ({"method": "ar", "draft_length": 3}, "draft_length goes with a method that drafts"),
        ({"draft_length": 0}, "draft_length must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"generator": [torch.Generator()]}, "generator must be one, or one for each of 3 rows, got 1"),
        ({"eos_token_id": 99}, "eos_token_id must lie in"),
        ({"attention_mask": torch.ones(3, 4)}, "attention_mask must be"),
        ({"input_ids": torch.ones(3)}, "input_ids must be int64 of shape"),
        ({"input_ids": torch.full((3, 4), 77)}, "input_ids must lie in"),
        ({"assistant_model": object()}, "assistant_model is called draft_model here"),
        ({"draft_model": 7, "drafter": 7}, "draft_model and drafter both draft; leave out one of them"),
        ({"drafter": "runs/head"}, "drafter must be a trained head for this model, .*, got 'runs/head'"),
        ({"method": "ar", "drafter": type("Head", (), {"draft_length": 1})}, "drafter is a method of its own"),
        ({"input_ids": {"input_ids": 1}}, r"input_ids must be a tensor, got a dict; give it as \*\*inputs"),
        # Of the wrong kind, or of no meaning.
        ({"max_new_tokens": 2.5}, "max_new_tokens must be an integer, at least 1, got 2.5"),
        ({"max_new_tokens": True}, "max_new_tokens must be an integer"),
        ({"max_new_tokens": 2 * 10**9}, "max_new_tokens must leave room in memory, got 2000000000"),
        ({"max_new_tokens": 10**12}, r"max_new_tokens must be below 2\*\*31, got 1000000000000"),
        ({"draft_length": 1.5}, "draft_length must be an integer, at least 1, got 1.5"),
        ({"eos_token_id": "a"}, "eos_token_id must lie in .* got 'a'"),
        ({"eos_token_id": [1, None]}, "eos_token_id must lie in .* got None"),
        ({"eos_token_id": True}, "eos_token_id must lie in .* got True"),
        ({"pad_token_id": 10**30}, "pad_token_id must lie in"),
        ({"pad_token_id": -7}, "pad_token_id must lie in .* got -7"),
        ({"attention_mask": [[1] * 9] * 3}, "attention_mask must be .* got a list"),
        ({"generator": [1, 2, 3]}, "generator must be a torch.Generator, or one for each row, got 1"),
        ({"top_k": 1.5}, "top_k must be"),
        ({"top_p": True}, "top_p must be"),
    ):
        given = {"input_ids": ragged_prompts()[0], **options}
        raised(ValueError, message, specdecode.generate, model, given.pop("input_ids"), **given)


def test_what_is_no_model_is_named():
    for wrong in (7, None, "gpt2", torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="model must be a causal language model of transformers, got"):
            specdecode.generate(wrong, ragged_prompts()[0])


def test_a_wrong_value_is_shown_in_one_line(model):
    raised(ValueError, r"got a LlamaForCausalLM$", specdecode.generate, model, ragged_prompts()[0], drafter=model)


@pytest.mark.filterwarnings("ignore")
def test_a_setting_of_none_is_one_that_is_not_given(model):
    ids, plainly = ragged_prompts()[0], None
    for name in ("", *GenerationConfig().to_dict()):
        if name != "max_new_tokens":
            given: dict[str, Any] = {name: None} if name else {}
            said = specdecode.generate(model, ids, max_new_tokens=3, **given).sequences
            plainly = said if plainly is None else plainly
            assert torch.equal(said, plainly), name
