"""GLM-Image's autoregressive part in the loop draws what transformers draws with it, and nothing but codes."""

import copy

import glm_image_models
import pytest
import torch
from glm_image_models import CODES, END
from refusals import refused
from target_contract import TargetContract, run
from torch import Tensor
from transformers import GlmImageForConditionalGeneration

from specdecode.sampling import SamplingConfig
from vargen.methods.catalogue import resolve_method
from vargen.models.glm_image.glm_image_components import GlmImageComponents
from vargen.models.glm_image.glm_image_target import GlmImageTarget
from vargen.models.glm_image.positions import drawn_positions, prompt_positions
from vargen.models.glm_image.prior_request import read_request, upsampled
from vargen.models.reuse import Reuse

WITH_PICTURES = pytest.mark.parametrize("pictures", [False, True], ids=["text", "pictures"])


@pytest.fixture(scope="module")
def model() -> GlmImageForConditionalGeneration:
    return glm_image_models.make_model()


@pytest.fixture(scope="module")
def by_generate(model: GlmImageForConditionalGeneration) -> dict[bool, Tensor]:
    """Greedy codes [3, 10] or [3, 6] of transformers, from text and from pictures."""
    other, drawn = copy.deepcopy(model), {}  # `generate` leaves positions on the model
    for pictures, count in ((False, 10), (True, 6)):
        inputs = glm_image_models.inputs(pictures)
        made = other.generate(**inputs, generation_config=glm_image_models.greedy(other), max_new_tokens=count)
        drawn[pictures] = made[:, inputs["input_ids"].shape[1] :]
    return drawn


@pytest.fixture(params=[False, True], ids=["text", "pictures"])
def drawn(request: pytest.FixtureRequest, by_generate: dict[bool, Tensor]) -> tuple[bool, Tensor]:
    """Whether pictures are given, and what transformers draws."""
    return request.param, by_generate[request.param]


class TestGlmImageTarget(TargetContract):
    """See `TargetContract`; the setting is whether pictures are given."""

    def build(self, setting: bool, nodes: int = 1, disturbed: bool = False) -> GlmImageTarget:
        model, generator = glm_image_models.make_model(), torch.Generator().manual_seed(1)
        request = read_request(model, glm_image_models.inputs(setting))
        with torch.no_grad():
            for parameter in model.model.language_model.parameters() if disturbed else ():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        return GlmImageTarget(model, request, max_draft_nodes=nodes)


# ---------------------------------------------------------------------------------------------------------------------
# Positions


@WITH_PICTURES
def test_positions_are_those_of_the_model_which_keeps_none_of_them(model, pictures):
    inputs = glm_image_models.inputs(pictures)
    request = read_request(model, inputs)
    run(GlmImageTarget(model, request))
    assert model.model.rope_deltas is None and model.model._cached_decode_position_ids is None
    stateful = copy.deepcopy(model).model
    names = ("input_ids", "image_grid_thw", "images_per_sample", "attention_mask")
    wanted, _ = stateful.get_rope_index(**{name: inputs[name] for name in names})
    seen = inputs["attention_mask"].bool()
    assert torch.equal(request.position_ids[:, seen], wanted[:, seen])
    drawn = stateful._cached_decode_position_ids.transpose(0, 1)  # [3, B, N + 1], the last of an end
    assert torch.equal(request.drawn_positions, drawn[..., :-1])


def test_copies_of_a_row_stand_side_by_side(model):
    request = read_request(model, glm_image_models.inputs(True))
    twice = request.repeated(2)
    assert request.sources is not None and twice.sources is not None
    for row in range(3):
        for copied in (2 * row, 2 * row + 1):
            assert torch.equal(twice.input_ids[copied], request.input_ids[row])
            assert torch.equal(twice.position_ids[:, copied], request.position_ids[:, row])
            assert torch.equal(twice.drawn_positions[:, copied], request.drawn_positions[:, row])
            assert twice.sources[copied] is request.sources[row]


def test_text_goes_on_behind_the_longer_side_of_a_picture():
    positions, following = prompt_positions([7, 1, 5, 5, 5, 2, 8, 1], [(1, 3)], beginning=1, end=2)
    assert positions.tolist() == [[0, 1, 2, 2, 2, 5, 6, 7], [0, 1, 2, 2, 2, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert following == 8
    assert drawn_positions(8, [(1, 1), (2, 1)]).tolist() == [[8, 9, 9], [8, 9, 10], [8, 9, 9]]


def test_two_batches_at_a_time_do_not_touch_each_other(model, by_generate):
    """The other batch is prefilled and fed between two passes of the first one."""
    first, second = (
        GlmImageTarget(model, read_request(model, glm_image_models.inputs(pictures))) for pictures in (False, True)
    )
    one = torch.ones(3, 1, 1, dtype=torch.bool)
    logits, nothing = first.prefill().logits, torch.zeros(3, 1).long()
    for place in range(10):
        tokens = logits[:, -1:].argmax(-1)
        assert torch.equal(tokens[:, 0], by_generate[False][:, place])
        if place == 9:
            break
        second.prefill()
        second.forward(nothing, one, nothing)
        logits = first.forward(tokens, one, nothing).logits
        first.commit(None, torch.ones(3).long())


def test_codes_become_squares_as_diffusers_makes_them():
    from diffusers import GlmImagePipeline

    codes = torch.randint(0, 99, (2, 3, 4))
    wanted = [GlmImagePipeline._upsample_token_ids(each, 3, 4) for each in codes]
    assert torch.equal(upsampled(codes), torch.cat(wanted))


# ---------------------------------------------------------------------------------------------------------------------
# What may not be said


@pytest.mark.parametrize("method", ["scd", "gsd"])
def test_an_end_that_is_most_probable_everywhere_is_never_drawn(method):
    model = glm_image_models.make_model()
    with torch.no_grad():
        model.lm_head.weight[END] = 50 * model.lm_head.weight[:CODES].mean(0)
        model.lm_head.weight[CODES:] *= 9
    request = read_request(model, glm_image_models.inputs())
    target = GlmImageTarget(model, request, max_draft_nodes=6)
    assert target.prefill().logits.shape[-1] == CODES < model.lm_head.out_features
    players = resolve_method(method, {"window": 5}).build(GlmImageComponents(model, target, Reuse()))
    result = run(target, players.drafter, SamplingConfig(), verifier=players.verifier)
    assert result.lengths.tolist() == [10] * 3 and int(result.tokens.max()) < CODES


def test_what_there_is_none_of_is_refused_in_one_line(model):
    target = GlmImageTarget(model, read_request(model, glm_image_models.inputs()))
    components = GlmImageComponents(model, target, Reuse())
    refused("drafter: GLM-Image came without one; train one with `v", resolve_method("eagle").build, components)
    refused("needs no draft model", resolve_method("draft-model").build, components)
    assert components.num_tokens == 10 and components.neighbours(3).shape == (CODES, 3)


def test_codes_are_compared_as_the_model_compares_pictures_with_them(model):
    target = GlmImageTarget(model, read_request(model, glm_image_models.inputs()))
    codebook = GlmImageComponents(model, target, Reuse()).codebook()
    features = torch.randn(1, 8, 5, 7, dtype=torch.float64)
    codes = model.model.vqmodel.quantize(features)[2]
    unit = torch.nn.functional.normalize(features.permute(0, 2, 3, 1).reshape(-1, 8).float(), dim=-1)
    assert torch.equal((unit @ codebook.T).argmax(-1), codes)
