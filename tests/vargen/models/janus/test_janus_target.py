"""Janus in the loop draws what transformers draws with it: greedy token for token, sampled in distribution."""

import itertools

import janus_models
import pytest
import torch
from janus_models import BOI, BOS, PAD, PROMPTS
from target_contract import TargetContract, p_value, run
from torch import Tensor
from transformers import JanusForConditionalGeneration
from transformers.generation import (
    ClassifierFreeGuidanceLogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdecode.roles import TargetOutput
from specdecode.sampling import SamplingConfig
from vargen.base.errors import UserError
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.catalogue import resolve_method
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


def test_features_of_the_prompt_stand_before_those_of_the_null_prompt(model):
    prompts = janus_models.prompts()
    guided, plain = (JanusTarget(model, *prompts, guidance_scale=each).prefill().hidden_states for each in (5.0, 1.0))
    read = prompts[1].bool()
    torch.testing.assert_close(guided[..., :32][read], plain[read])
    assert not torch.allclose(guided[..., 32:][read], plain[read], atol=1e-3)


def test_the_null_prompt_keeps_the_beginnings_of_text_and_image():
    special = SpecialTokens(BOS, BOI, PAD)
    input_ids = torch.tensor([[PAD, BOS, 9, 8, BOI], [BOS, 7, 7, 7, BOI]])
    assert special.null_prompt(input_ids).tolist() == [[PAD, BOS, PAD, PAD, BOI], [BOS, PAD, PAD, PAD, BOI]]


def test_guidance_needs_every_token_of_a_null_prompt():
    model = janus_models.make()
    model.generation_config.generation_kwargs = {}
    with pytest.raises(UserError, match=r"guidance_scale must be at most 1 .* lacks generation_kwargs.boi_token_id"):
        JanusTarget(model, *janus_models.prompts(), guidance_scale=3.0)
    JanusTarget(model, *janus_models.prompts(), guidance_scale=1.0)


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
    joint = torch.ones(1, dtype=torch.float64)
    for length in range(4):
        before = torch.tensor(list(itertools.product(range(CODES), repeat=length))).view(CODES**length, length).long()
        both = torch.cat([janus_models.fresh_logits(small_model, ids, before) for ids in (PROMPT, null)])
        each = LIBRARY(before, guide(before, both)).softmax(-1)  # [V ** length, V]
        joint = (joint[:, None] * each).flatten()
    return joint


def many(model: JanusForConditionalGeneration, scale: float = SCALE) -> JanusComponents:
    target = JanusTarget(model, torch.tensor([PROMPT] * DRAWS), guidance_scale=scale, max_draft_nodes=NODES)
    return JanusComponents(model, target, Reuse())


METHODS = [("ar", {}), ("sjd", {"window": 3}), ("scd", {"window": 3}), ("scd", {"window": 2, "coupling": "maximal"})]


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_pictures_come_as_often_as_they_should(small_model, probabilities, method, options):
    assert p_value(many(small_model), method, options, SAMPLING, probabilities) > 1e-3


@pytest.mark.parametrize("name", ["eagle", "draft-model"])
def test_drafted_pictures_come_as_often_as_they_should(small_model, probabilities, tmp_path, name):
    """Drawn children, of a random head and of a model much like this one."""
    torch.manual_seed(0)
    if name == "eagle":
        drafter = EagleHead(dim=32, num_attention_heads=4, intermediate_size=48, vocab_size=CODES, grid_size=2)
        drafter.save_pretrained(tmp_path)
        options = {"drafter": str(tmp_path), "tree": [[0], [1], [0, 0]], "children": "sampled"}
    else:
        janus_models.disturbed(small_model, 0.05).save_pretrained(tmp_path)
        options = {"draft_model": str(tmp_path), "draft_length": 2}
    assert p_value(many(small_model), name, options, SAMPLING, probabilities) > 1e-3


def test_another_guidance_is_noticed(small_model, probabilities):
    assert p_value(many(small_model, 3.0), "ar", {}, SAMPLING, probabilities) < 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# Faults


class _GuidesTheOtherWay(JanusTarget):
    """Away from the prompt."""

    def combine(self, output: TargetOutput, places: Tensor | None = None) -> TargetOutput:
        return super().combine(TargetOutput(torch.cat(output.logits.chunk(2)[::-1]), output.hidden_states), places)


class _ReadsTheWordsTable(JanusTarget):
    """Image tokens are embedded as if they were words."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.embed = lambda tokens: self.model.get_input_embeddings()(tokens % len(janus_models.WORDS))


class _NullMissesThePadding(JanusTarget):
    """Null rows see padding, and so one place off."""

    def __init__(self, model: JanusForConditionalGeneration, ids: Tensor, mask: Tensor, **options: float) -> None:
        super().__init__(model, ids, mask, **options)  # type: ignore[arg-type]
        assert self.prompt_mask is not None
        self.prompt_mask[3:] = True


@pytest.mark.parametrize("fault", [_GuidesTheOtherWay, _ReadsTheWordsTable, _NullMissesThePadding])
def test_planted_faults_change_tokens(model, fault):
    wanted = janus_models.by_generate(model, *janus_models.prompts(), 5.0)
    assert not torch.equal(run(fault(model, *janus_models.prompts(), guidance_scale=5.0)).tokens, wanted)


def test_words_that_are_left_in_the_null_prompt_are_noticed(model, monkeypatch):
    wanted = janus_models.by_generate(model, *janus_models.prompts(), 5.0)
    monkeypatch.setattr(SpecialTokens, "null_prompt", lambda self, ids: torch.full_like(ids, self.padding))
    assert not torch.equal(run(JanusTarget(model, *janus_models.prompts(), guidance_scale=5.0)).tokens, wanted)


# ---------------------------------------------------------------------------------------------------------------------
# What Janus offers methods


def test_what_there_is_none_of_is_refused_in_one_line(model):
    components = JanusComponents(model, JanusTarget(model, *janus_models.prompts()), Reuse())
    assert components.num_tokens == 16 and len(PROMPTS) == components.target.batch_size
    with pytest.raises(UserError, match="drafter: Janus came without one; train one with `vargen train drafter`"):
        resolve_method("eagle").build(components)
    with pytest.raises(UserError, match="draft_model: Janus came without one; name a smaller Janus"):
        resolve_method("draft-model").build(components)


def test_codes_are_compared_as_the_decoder_looks_them_up(model):
    components = JanusComponents(model, JanusTarget(model, *janus_models.prompts()), Reuse())
    grid = model.model.vqmodel.quantize.get_codebook_entry(torch.arange(16)[None])  # [1, d, 4, 4]
    torch.testing.assert_close(components.codebook()[:16], grid.flatten(2)[0].T.float())
    assert components.neighbours(3).shape == (40, 3) and components.neighbours(3) is components.neighbours(3)


def test_intensities_stay_between_black_and_white():
    pictures = torch.tensor([-9.0, -1.0, 0.0, 1.0, 9.0])[:, None].expand(1, 1, 5, 3)
    assert intensities(pictures, [0.5] * 3, [0.5] * 3)[0, 0, :, 1].tolist() == pytest.approx([0, 0, 127.5, 255, 255])
