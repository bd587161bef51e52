"""Janus in the loop draws what transformers draws with it: greedy token for token, sampled in distribution."""

from typing import Any

import janus_models
import pytest
import torch
from janus_models import BOI, BOS, PAD
from random_heads import save_random_head
from refusals import refused
from target_contract import TargetContract, p_value, picture_probabilities
from torch import Tensor
from transformers import JanusForConditionalGeneration
from transformers.generation import (
    ClassifierFreeGuidanceLogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdecode.sampling import SamplingConfig
from vargen.models.janus.janus_components import JanusComponents
from vargen.models.janus.janus_target import JanusTarget, SpecialTokens
from vargen.models.janus.vq import intensities
from vargen.models.reuse import Reuse

NODES = 8


@pytest.fixture(scope="module")
def model() -> JanusForConditionalGeneration:
    return janus_models.make()


@pytest.fixture(scope="module", params=[5.0, 1.0], ids=["guided", "unguided"])
def drawn(request: pytest.FixtureRequest, model: JanusForConditionalGeneration) -> tuple[float, Tensor]:
    """A guidance scale, and what the model draws with it."""
    if request.param > 1:
        return request.param, janus_models.by_generate(model, *janus_models.prompts(), request.param)
    return request.param, janus_models.without_guidance(model, *janus_models.prompts())


class TestJanusTarget(TargetContract):
    """See `TargetContract`; the setting is a guidance scale."""

    def build(self, setting: float, nodes: int = 1, disturbed: bool = False) -> JanusTarget:
        model = janus_models.make()
        model = janus_models.disturbed(model, 0.01) if disturbed else model
        return JanusTarget(model, *janus_models.prompts(), guidance_scale=setting, max_draft_nodes=nodes)


def test_the_null_prompt_keeps_the_beginnings_of_text_and_image():
    special = SpecialTokens(BOS, BOI, PAD)
    input_ids = torch.tensor([[PAD, BOS, 9, 8, BOI], [BOS, 7, 7, 7, BOI]])
    assert special.null_prompt(input_ids).tolist() == [[PAD, BOS, PAD, PAD, BOI], [BOS, PAD, PAD, PAD, BOI]]


def test_guidance_needs_every_token_of_a_null_prompt():
    model = janus_models.make()
    model.generation_config.generation_kwargs = {}
    prompts = janus_models.prompts()
    refused("at most 1 .* generation_kwargs.boi_token_id", JanusTarget, model, *prompts, guidance_scale=3.0)
    JanusTarget(model, *prompts, guidance_scale=1.0)


# ---------------------------------------------------------------------------------------------------------------------
# Sampling: sequences of four tokens, each of which has a known probability

LIBRARY = LogitsProcessorList([TemperatureLogitsWarper(1.3), TopKLogitsWarper(5), TopPLogitsWarper(0.9)])
SAMPLING = SamplingConfig(temperature=1.3, top_k=5, top_p=0.9)
PROMPT, SCALE, CODES, DRAWS = [BOS, 8, 9, BOI], 2.0, 6, 3000


@pytest.fixture(scope="module")
def small_model() -> JanusForConditionalGeneration:
    model = janus_models.make(3, codes=CODES, grid=2)
    with torch.no_grad():
        model.model.generation_head.vision_head.weight.mul_(0.2)  # no token is sure
    return model


@pytest.fixture(scope="module")
def probabilities(small_model: JanusForConditionalGeneration) -> Tensor:
    """[V ** 4] float64 of every picture, with guidance and filters as transformers applies them."""
    null = [BOS, PAD, PAD, BOI]
    guide = ClassifierFreeGuidanceLogitsProcessor(SCALE)

    def of_next(before: Tensor) -> Tensor:
        both = torch.cat([janus_models.fresh_logits(small_model, ids, before) for ids in (PROMPT, null)])
        return LIBRARY(before, guide(before, both)).softmax(-1)

    return picture_probabilities(of_next, CODES, 4)


def many(model: JanusForConditionalGeneration) -> JanusComponents:
    target = JanusTarget(model, torch.tensor([PROMPT] * DRAWS), guidance_scale=SCALE, max_draft_nodes=NODES)
    return JanusComponents(model, target, Reuse())


@pytest.mark.parametrize("name", ["ar", "eagle", "draft-model"])
def test_pictures_come_as_often_as_they_should(small_model, probabilities, tmp_path, name):
    """By itself, and with drawn children of a random head and of a model much like this one."""
    options: dict[str, Any] = {}
    if name == "eagle":
        options = {"drafter": save_random_head(tmp_path, CODES, 2), "tree": [[0], [1], [0, 0]], "children": "sampled"}
    elif name == "draft-model":
        janus_models.disturbed(small_model, 0.05).save_pretrained(tmp_path)
        options = {"draft_model": str(tmp_path), "draft_length": 2}
    assert p_value(many(small_model), name, options, SAMPLING, probabilities) > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# What Janus offers methods


def test_codes_are_compared_as_the_decoder_looks_them_up(model):
    components = JanusComponents(model, JanusTarget(model, *janus_models.prompts()), Reuse())
    grid = model.model.vqmodel.quantize.get_codebook_entry(torch.arange(16)[None])  # [1, d, 4, 4]
    torch.testing.assert_close(components.codebook()[:16], grid.flatten(2)[0].T.float())
    assert components.neighbours(3).shape == (40, 3) and components.neighbours(3) is components.neighbours(3)


def test_intensities_stay_between_black_and_white():
    pictures = torch.tensor([-9.0, -1.0, 0.0, 1.0, 9.0])[:, None].expand(1, 1, 5, 3)
    assert intensities(pictures, [0.5] * 3, [0.5] * 3)[0, 0, :, 1].tolist() == pytest.approx([0, 0, 127.5, 255, 255])
