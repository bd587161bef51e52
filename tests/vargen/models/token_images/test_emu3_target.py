"""Emu3 in the loop draws what transformers draws with it, and lines end where they end."""

import emu3_models
import language_models
import pytest
import torch
from emu3_models import CODES, COLUMNS, PROMPTS, ROWS, Emu3Components, Emu3Target
from refusals import refused
from target_contract import TargetContract, p_value, picture_probabilities, run
from torch import Tensor
from transformers import Emu3ForConditionalGeneration
from transformers.generation import (
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdecode.drafters.forced_tokens import ForcedTokensDrafter
from specdecode.roles import TargetOutput
from specdecode.sampling import SamplingConfig
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.catalogue import resolve_method
from vargen.models.reuse import Reuse
from vargen.models.token_images.emu3 import EMU3
from vargen.models.token_images.grammar import vocabulary_of

ONES = {"grids": [(ROWS, COLUMNS)]}


@pytest.fixture(scope="module")
def model() -> Emu3ForConditionalGeneration:
    return emu3_models.make()


@pytest.fixture(scope="module", params=[3.0, 1.0], ids=["guided", "unguided"])
def drawn(request: pytest.FixtureRequest, model: Emu3ForConditionalGeneration) -> tuple[float, Tensor]:
    """A guidance scale, and what `generate` draws with it."""
    return request.param, emu3_models.as_drawn(model, emu3_models.by_generate(model, request.param))


class TestEmu3Target(TargetContract):
    """See `TargetContract`; the setting is a guidance scale."""

    def build(self, setting: float, nodes: int = 1, disturbed: bool = False) -> Emu3Target:
        model = emu3_models.make()
        return emu3_models.target(language_models.disturbed(model, 0.01) if disturbed else model, setting, nodes=nodes)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (4, 2)])
def test_other_shapes(model, rows, columns):
    made = emu3_models.by_generate(model, 1.0, rows, columns)
    wanted = emu3_models.as_drawn(model, made)
    target = Emu3Target(model, *emu3_models.tokens(PROMPTS, rows, columns), grids=[(rows, columns)])
    assert torch.equal(run(target).tokens, wanted)
    assert torch.equal(vocabulary_of(EMU3, model).text(wanted), made[:, :-3]), "but for the end of the picture"
    codes = vocabulary_of(EMU3, model).codes(wanted, rows, columns)
    assert codes.shape == (3, rows, columns) and int(codes.max()) < CODES


def test_the_model_must_name_its_codes(model):
    broken = emu3_models.make()
    del broken.model.vocabulary_mapping.vocab_map["<|visual token 000003|>"]
    refused("model must name each of its 24 codes and the end of a line in vocabulary_map", vocabulary_of, EMU3, broken)
    with pytest.raises(ValueError, match="negative_input_ids must be given for every prompt where guidance is on"):
        Emu3Target(model, *emu3_models.tokens(PROMPTS), guidance_scale=3.0, **ONES)


# ---------------------------------------------------------------------------------------------------------------------
# Ends of lines


LOOSE = {"gsd": {}, "vvs-jacobi": {"schedule": "likeness", "threshold": 0.0}}
"""Settings with which relaxed methods take whatever they may."""


@pytest.mark.parametrize("window", [1, 4, 13])
@pytest.mark.parametrize("method", ["sjd", "scd", "jacobi", "gsd", "vvs-jacobi"])
def test_lines_end_where_they_end_and_nowhere_else(model, method, window):
    settings = resolve_method(method, {"window": window, **LOOSE.get(method, {})})
    target = emu3_models.target(model, 3.0, nodes=settings.max_draft_nodes(14))
    players = settings.build(Emu3Components(model, target, Reuse()))
    assert players.drafter is not None
    drafter = ForcedTokensDrafter(players.drafter, target.forced_tokens, target.vocab_size)
    judged = {"verifier": players.verifier, "schedule": players.schedule}
    result = run(target, drafter, SamplingConfig(temperature=3.0), **judged)
    assert method != "vvs-jacobi" or result.trace.skipped_tokens > 0
    assert torch.equal(result.tokens == CODES, (target.forced_tokens >= 0).expand(3, -1))


def test_logits_leave_one_choice_at_the_end_of_a_line(model):
    """At every offset of a chain, whatever it holds, and whatever was kept before."""
    target = emu3_models.target(model, 3.0, nodes=9)
    target.prefill()
    chain, depths = torch.ones(3, 9, 9).tril().bool(), torch.arange(9).expand(3, -1)
    for committed in range(5):
        logits = target.forward(torch.randint(0, CODES + 1, (3, 9)), chain, depths).logits
        for offset in range(9):
            open_to = (logits[:, offset] > -torch.inf).nonzero()[:, 1].tolist()
            is_end = (committed + offset + 1) % (COLUMNS + 1) == COLUMNS
            assert open_to == ([CODES] * 3 if is_end else [*range(CODES)] * 3)
        target.commit(None, torch.ones(3).long())


@pytest.mark.parametrize("scale", [3.0, 1.0])
def test_heads_on_the_models_features_hold_the_end_of_a_line_for_least_likely(model, scale):
    """They know no places; where a line ends, `ForcedTokensDrafter` says so."""
    target = emu3_models.target(model, scale)
    states = torch.randn(3 * target.rows_per_sequence, 5, 32, dtype=torch.float64)
    logits = target.combine(TargetOutput(target.logits(states))).logits
    assert bool((logits.argmin(-1) == CODES).all()) and bool(logits.isfinite().all())


# ---------------------------------------------------------------------------------------------------------------------
# Sampling: two lines of two codes, each picture of a known probability

FEW, DRAWS, SCALE = 4, 1500, 2.0
PROMPT, NULL = (emu3_models.tokens([text], 2, 2)[0] for text in ("the red dog", "sand"))
SAMPLING = SamplingConfig(temperature=1.3, top_k=3, top_p=0.9)


@pytest.fixture(scope="module")
def small_model() -> Emu3ForConditionalGeneration:
    model = emu3_models.make(3, codes=FEW)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.3)  # no token is sure
    return model


@pytest.fixture(scope="module")
@torch.no_grad()
def probabilities(small_model: Emu3ForConditionalGeneration) -> Tensor:
    """[(FEW + 1) ** 5]: guidance, then the constraint, then filters, as `generate` applies them."""
    vocabulary = small_model.vocabulary_mapping
    names = torch.tensor([*(vocabulary.img2bpe[code] for code in range(FEW)), vocabulary.eol_token_id])
    only_pictures = PrefixConstrainedLogitsProcessor(emu3_models.only_pictures(small_model, 2, 2), 1)
    filters = TemperatureLogitsWarper(1.3), TopKLogitsWarper(3), TopPLogitsWarper(0.9)
    library = LogitsProcessorList([only_pictures, *filters])

    def of_next(before: Tensor) -> Tensor:
        both = [torch.cat((ids.expand(len(before), -1), names[before]), 1) for ids in (PROMPT, NULL)]
        asked, away = (small_model(ids).logits[:, -1].log_softmax(-1) for ids in both)
        return library(both[0], away + SCALE * (asked - away)).softmax(-1)[:, names]

    return picture_probabilities(of_next, FEW + 1, 5)


EXACT = [("ar", {}), ("sjd", {"window": 3, "branches": 2, "branch_depth": 1}), ("scd", {"window": 4})]


@pytest.mark.parametrize(("method", "options"), EXACT)
def test_pictures_come_as_often_as_they_should(small_model, probabilities, method, options):
    target = Emu3Target(
        small_model, PROMPT.repeat(DRAWS, 1), negative_input_ids=NULL.repeat(DRAWS, 1), guidance_scale=SCALE,
        max_draft_nodes=6, grids=[(2, 2)],
    )  # fmt: skip
    components = Emu3Components(small_model, target, Reuse())
    assert p_value(components, method, options, SAMPLING, probabilities) > 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# Faults, and what Emu3 offers methods


def test_codes_are_compared_as_the_tokenizer_looks_them_up(model):
    components = Emu3Components(model, emu3_models.target(model, 1.0), Reuse())
    codebook = components.codebook()
    codes = model.model.vqmodel.quantize.embedding.weight.float()
    torch.testing.assert_close(codebook.norm(dim=1), torch.ones(CODES + 1))
    torch.testing.assert_close(codebook[:-1, :4] * codes.norm(dim=1).max(), codes)
    assert torch.equal(codebook[:-1] @ codebook[-1], torch.zeros(CODES)) and components.num_tokens == 14
    refused("drafter: Emu3 came without one; train one with `v", resolve_method("eagle").build, components)


def test_a_drafter_that_cannot_be_read_is_named(model, tmp_path):
    components = Emu3Components(model, emu3_models.target(model, 1.0), Reuse())
    drafter = EagleHead(dim=32, num_attention_heads=4, intermediate_size=48, vocab_size=CODES + 1, grid_size=4)
    drafter.norm2.weight.data[1] = torch.nan
    drafter.save_pretrained(tmp_path / "broken")
    for name, message in (("broken", "norm2.weight are not finite"), ("missing", "missing is not a folder")):
        refused(message, resolve_method("eagle", {"drafter": str(tmp_path / name)}).build, components)
    assert components.reuse.models == {}
