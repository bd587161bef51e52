"""Weights that come to their device when a model is called are asked for before the model is asked other things."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from refusals import refused

from specdecode.graphs.static_step import StepCompiler
from vargen.models.llamagen.text_encoder import encode_text


def hook() -> SimpleNamespace:
    """In place of accelerate's: `pre_forward` counts how often the weights are asked for."""
    return SimpleNamespace(pre_forward=Mock(side_effect=lambda module, *arguments, **named: (arguments, named)))


def draw(pipeline: Any, method: str) -> Any:
    generator = torch.Generator().manual_seed(0)
    return pipeline("a red cube", generator=generator, method=method, output_type="latent")


@pytest.mark.parametrize(
    ("component", "method"), [("transformer", "ar"), ("drafter", "eagle"), ("draft_model", "draft-model")]
)
def test_a_part_that_is_used_before_it_is_called_is_moved(drafting_pipeline, component, method, monkeypatch):
    monkeypatch.setattr(getattr(drafting_pipeline, component), "_hf_hook", counting := hook(), raising=False)
    draw(drafting_pipeline, method)
    assert counting.pre_forward.call_count == 1


def test_text_features_and_their_mask_lie_together(tiny_pipeline):
    """An offloaded encoder is on the CPU when it is given tokens, and its states are not."""

    class Moved:
        config, device = SimpleNamespace(), torch.device("cpu")

        def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return SimpleNamespace(last_hidden_state=torch.zeros(*input_ids.shape, 3, device="meta"))

    embeds, mask = encode_text(tiny_pipeline.tokenizer, Moved(), ["a red cube"], 8)
    assert embeds.device == mask.device == torch.device("meta")


def test_what_is_moved_as_it_is_called_is_not_compiled(tiny_pipeline, monkeypatch):
    monkeypatch.setattr(tiny_pipeline.transformer.transformer_blocks[0], "_hf_hook", hook(), raising=False)
    monkeypatch.setattr(tiny_pipeline.reuse, "compiler", StepCompiler("eager", 32))
    refused(r"compile: parts of this model come .* \(enable_model_cpu_offload, or a", draw, tiny_pipeline, "ar")
