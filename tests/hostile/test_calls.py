"""Arguments of calls in Python that are of another kind, by walking the signature of every family's call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tiny_pipelines import build_tiny_pipeline

from vargen.base.errors import UserError
from vargen.models.video_llms.frames import VideoFrames
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.token_images import TokenImages
from vargen.pipelines.video.answering import VideoAnswerer

CALLS: dict[str, Callable[..., Any]] = {
    "llamagen": LlamaGenPipeline.__call__,
    "janus": JanusPipeline.__call__,
    "token images": TokenImages.__call__,
    "emu3": Emu3Pipeline.__call__,
    "glm-image": GlmImagePriorPipeline.__call__,
    "an answer": VideoAnswerer.answer,
    "answers": VideoAnswerer.answer_batch,
}
NOT_CHECKED = {"image", "frames", "questions"}
"""Checked by what reads them: classes of transformers and of our own."""
ARGUMENTS = [
    (call, name)
    for call, function in CALLS.items()
    for name, parameter in inspect.signature(function).parameters.items()
    if name not in NOT_CHECKED | {"self"} and parameter.kind is not parameter.VAR_KEYWORD
]


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_every_argument_of_another_kind_is_named(call: str, name: str) -> None:
    """Before anything of the pipeline is asked: there is none here."""
    function = CALLS[call]
    required = [
        each.name for each in list(inspect.signature(function).parameters.values())[1:] if each.default is each.empty
    ]
    frames = VideoFrames.from_frames(torch.zeros(2, 3, 4, 4))
    known = {"frames": frames, "questions": [(frames, "what?")]}
    with pytest.raises(UserError, match=f"^{name} must be"):
        function(Mock(), **{each: known.get(each, "a cube") for each in required} | {name: object()})


@pytest.fixture(scope="module")
def pipelines() -> dict[str, LlamaGenPipeline]:
    return {kind: build_tiny_pipeline(condition_type=kind) for kind in ("text", "class")}


EMBEDS = torch.zeros(1, 3, 12)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"prompt": 7}, "prompt must be text or a list"),
        ({"prompt": {"a cube": 1}}, "prompt must be text or a list"),
        ({"prompt": ["a cube", 7]}, "got a list that holds int 7"),
        ({"prompt": b"a cube"}, "prompt must be text"),
        ({"prompt": iter(["a cube"])}, "prompt must be text"),
        ({"prompt": "a \ud800 cube"}, "prompt is not UTF-8 text"),
        ({"prompt": "a\0cube"}, "prompt holds a zero character"),
        ({"prompt": "a " * 5_000_000}, "prompt has 10,000,000 characters"),
        ({"prompt": "a cube", "callback_on_step_end": 7}, "callback_on_step_end must be callable or None"),
        ({"prompt": "a cube", "max_sequence_length": 1.5}, "max_sequence_length must be an integer or None"),
        ({"prompt": "a cube", "max_sequence_length": True}, "max_sequence_length must be an integer"),
        ({"prompt": "a cube", "num_images_per_prompt": True}, "num_images_per_prompt must be an integer"),
        ({"prompt": "a cube", "generator": [torch.Generator(), None]}, "got a list that holds NoneType"),
        ({"prompt": "a cube", "generator": 3}, "generator must be a torch.Generator"),
        ({"prompt": "a cube", "temperature": "hot"}, "temperature must be a number"),
        ({"prompt": "a cube", "return_dict": 1}, "return_dict must be True or False"),
        ({"prompt_embeds": EMBEDS.long()}, "prompt_embeds must hold floating-point numbers"),
        ({"prompt_embeds": EMBEDS, "prompt_attention_mask": torch.full((1, 3), 2)}, "must hold 0 and 1 only"),
        ({"class_labels": "3"}, "class_labels must be an integer"),
        ({"class_labels": 10**30}, "class_labels must be at most"),
        ({"class_labels": [1, -(10**30)]}, "class_labels must be at least"),
        ({"class_labels": True}, "class_labels must be an integer"),
        ({"class_labels": [1, True]}, "got a list that holds bool True"),
    ],
)
def test_it_is_refused(arguments: dict[str, Any], expected: str, pipelines: dict[str, LlamaGenPipeline]) -> None:
    pipeline = pipelines["class" if "class_labels" in arguments else "text"]
    with pytest.raises(UserError) as caught:
        pipeline(**arguments)
    assert expected in str(caught.value) and "\n" not in str(caught.value)
