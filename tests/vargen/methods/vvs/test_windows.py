"""Skipping on Jacobi windows: what is taken, what stands behind it, and that everything else is the target's own."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_chains import state_for
from refusals import refused
from seeds import seeded
from synthetic import decoded
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import COUPLINGS, JacobiDrafter
from specdecode.roles import DecodeState, Draft, Schedule, Selection, TargetOutput, Verdict
from specdecode.sampling import SamplingConfig
from specdecode.trace import TokenOrigin
from specdecode.tree import TokenTree
from vargen.methods.catalogue import resolve_method
from vargen.methods.vvs.schedule import DynamicWindowSchedule, path_likeness
from vargen.methods.vvs.selector import WindowSelector
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]
VOCAB, WINDOW = 24, 6


def make(pipeline: LlamaGenPipeline, method: str, options: dict[str, Any], rows: int = 3) -> Any:
    settled, generators = resolve_method(method, options), seeded(*range(100, 100 + rows))
    return pipeline(PROMPTS[:rows], generator=generators, method=settled, output_type="latent")


@dataclass
class Pattern(Schedule):
    """Takes as many guesses as a list of rows by step says."""

    steps: list[list[int]]
    turn: int = 0

    def start(self, state: DecodeState) -> None:
        self.turn = 0

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        wanted = torch.tensor(self.steps[self.turn % len(self.steps)])
        self.turn += 1
        selection = WindowSelector(4)(draft, state)
        return Selection(selection.path, torch.minimum(selection.counts, wanted)) if wanted.any() else None


patterns = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=5)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns, st.sampled_from(COUPLINGS), st.sampled_from([1.0, 3.0]))
@example(steps=[[1, 0, 0], [1, 0, 0], [0, 0, 1]], coupling="gumbel", guidance_scale=1.0)  # nearly as likely tokens
@torch.no_grad()
def test_what_is_not_skipped_is_what_the_target_says(drafting_pipeline, steps, coupling, guidance_scale):
    """Greedily, every token but the skipped ones is the likeliest after those before it, skipped ones among them.

    In float64: one forward pass over all places rounds otherwise than steps of a few, and float32 has come upon two
    logits that differ by less.
    """
    transformer = copy.deepcopy(drafting_pipeline.transformer).double()
    embeds, mask = drafting_pipeline.encode_prompt(PROMPTS)
    condition = transformer.embed_condition(caption_embeds=embeds.double())
    common: dict[str, Any] = {"guidance_scale": guidance_scale, "max_draft_nodes": 15}
    drafter = JacobiDrafter(VOCAB, FixedDraftSize(DraftSize(WINDOW + 1, WINDOW)), "random", coupling)
    target = LlamaGenTarget(transformer, condition, mask, **common)
    result = decoded(target, 16, seeds=[1, 2, 3], drafter=drafter, schedule=Pattern(steps))
    trace, origins = result.trace, result.trace.token_origins
    assert [len(row) for row in origins] == trace.row_tokens == [16, 16, 16]
    taken = [sum(step["skipped"][row] for step in trace.steps) for row in range(3)]
    assert taken == [row.count(TokenOrigin.UNVERIFIED) for row in origins]
    assert trace.skipped_tokens == sum(taken) and (any(taken) or not any(map(any, steps)))

    forced = LlamaGenTarget(transformer, condition, mask, **common)
    first = forced.prefill().logits[:, -1:]
    causal = torch.ones(3, 15, 15, dtype=torch.bool).tril()
    said = forced.forward(result.tokens[:, :-1], causal, torch.arange(15).expand(3, -1)).logits
    likeliest = torch.cat([first, said], 1).argmax(-1)
    verified = torch.tensor([[origin != TokenOrigin.UNVERIFIED for origin in row] for row in origins])
    assert torch.equal(likeliest[verified], result.tokens[verified])


@pytest.mark.parametrize("coupling", ["gumbel", "maximal"])
@pytest.mark.parametrize("never", [{"threshold": 1.0}, {"survival": 1.0}])
def test_skipping_nothing_is_scd(drafting_pipeline, coupling, never):
    window = {"window": WINDOW, "coupling": coupling}
    plain = make(drafting_pipeline, "scd", window)
    skipping = make(drafting_pipeline, "vvs-jacobi", {**window, **never})
    assert skipping.trace.skipped_tokens == 0
    assert torch.equal(plain.tokens, skipping.tokens)
    assert plain.trace.accepted_lengths == skipping.trace.accepted_lengths


DYNAMIC = {"schedule": "dynamic", "threshold": 0.0, "max_skip": 2}
UNIFORM = {"schedule": "uniform", "interval": 2, "max_skip": 3}


@pytest.mark.parametrize("options", [{"threshold": 0.0}, DYNAMIC, UNIFORM], ids=str)
def test_skipping_saves_passes_and_is_counted(drafting_pipeline, options):
    output = make(drafting_pipeline, "vvs-jacobi", {"window": WINDOW, **options})
    trace = output.trace
    assert output.tokens.shape == (3, 16) and trace.row_tokens == [16, 16, 16]
    assert 0 < trace.skipped_tokens <= options.get("max_skip", 4) * trace.skipped_steps
    assert trace.target_passes < make(drafting_pipeline, "scd", {"window": WINDOW}).trace.target_passes
    alone = make(drafting_pipeline, "vvs-jacobi", {"window": WINDOW, **options}, rows=1)
    assert torch.equal(alone.tokens[0], output.tokens[0])


def watched(coupling: str) -> tuple[JacobiDrafter, DecodeState, list[Tensor]]:
    """A drafter after two passes over two rows, and the distributions of both passes."""
    generator = torch.Generator().manual_seed(0)
    sizer = FixedDraftSize(DraftSize(WINDOW + 1, WINDOW))
    drafter = JacobiDrafter(VOCAB, sizer, "repeat", coupling, confident=coupling != "target")
    state = state_for(torch.tensor([1, 1]), SamplingConfig(), torch.zeros(2, 64, dtype=torch.long), most=64)
    drafter.start(TargetOutput(torch.randn(2, 1, VOCAB, generator=generator)), state)
    said = []
    for _ in range(2):
        draft = drafter.propose(state)
        logits = torch.randn(2, WINDOW + 1, VOCAB, generator=generator)
        said.append(logits.softmax(-1))
        path = torch.arange(WINDOW + 1).expand(2, -1)
        verdict = Verdict(path, torch.tensor([0, 2]), torch.tensor([3, 4]))
        state.lengths = state.lengths + verdict.accepted + 1
        drafter.observe(draft, TargetOutput(logits), verdict, state)
    return drafter, state, said


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_behind_a_skip_the_rest_of_the_window_stands(coupling):
    drafter, state, _ = watched(coupling)
    before = drafter.propose(state)
    counts = torch.tensor([3, 0])
    state.lengths = state.lengths + counts
    drafter.observe_skipped(before, Selection(torch.arange(5).expand(2, -1), counts), state)
    behind = drafter.propose(state)
    assert torch.equal(behind.tree.tokens[0, 1 : WINDOW - 2], before.tree.tokens[0, 4:])
    assert torch.equal(behind.tree.tokens[1], before.tree.tokens[1]), "a row that took nothing keeps its draft"
    if before.probabilities is not None and behind.probabilities is not None:
        assert torch.equal(behind.probabilities[0, 1 : WINDOW - 2], before.probabilities[0, 4:])


def test_confidence_is_what_two_passes_have_in_common():
    drafter, state, (first, second) = watched("gumbel")
    confidence = drafter.propose(state).confidence
    assert confidence is not None
    for row, accepted in enumerate((0, 2)):
        survival = 1.0
        for place in range(1, WINDOW + 1):
            # The place's position stood, in the first pass, behind node `accepted + place + accepted + 1`.
            new, old = accepted + place, 2 * accepted + place + 1
            known = new + 1 <= WINDOW
            earlier = first[row, min(old, WINDOW)]
            survival *= float(torch.minimum(second[row, min(new, WINDOW)], earlier).sum()) if known else 0.0
            assert float(confidence[row, place].exp()) == pytest.approx(survival, abs=1e-5)


def chain(tokens: Tensor, valid: Tensor, probabilities: Tensor, confidence: Tensor) -> Draft:
    count = tokens.shape[1]
    tree = TokenTree.from_parents(tokens, torch.arange(-1, count - 1).expand_as(tokens), valid, count - 1, 1)
    return Draft(tree, probabilities, confidence)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999),
    most=st.integers(1, 6),
    survival=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    kept=st.integers(1, 5),
)
def test_the_selector_and_the_dynamic_schedule_equal_slow_loops(seed, most, survival, kept):
    generator = torch.Generator().manual_seed(seed)
    codebook = torch.nn.functional.normalize(torch.randn(VOCAB, 3, generator=generator), dim=1)
    tokens = torch.randint(VOCAB, (1, 5), generator=generator)
    probabilities = torch.rand(1, 5, VOCAB, generator=generator).softmax(-1)
    confidence = -torch.rand(1, 5, generator=generator).cumsum(1) / 2
    draft = chain(tokens, torch.arange(5)[None] < kept, probabilities, confidence)
    state = state_for(torch.tensor([9]), SamplingConfig())
    taken = 0
    while taken < min(most, kept - 1) and (survival == 0 or confidence[0, taken + 1].exp() >= survival):
        taken += 1
    assert int(WindowSelector(most, survival)(draft, state).counts) == taken

    likeness = path_likeness(draft, torch.arange(5)[None], codebook)[0].tolist()
    looked = min(most, kept - 1)
    weights = [0.9**place for place in range(1, looked + 1)]
    mean = sum(w * x for w, x in zip(weights, likeness, strict=False)) / sum(weights) if looked else 0.0
    for threshold in (mean - 1e-3, mean + 1e-3):
        schedule = DynamicWindowSchedule(threshold, WindowSelector(most), codebook, most)
        selection = schedule.select(draft, state)
        assert (0 if selection is None else int(selection.counts)) == (looked if mean > threshold else 0)


def test_nothing_is_taken_behind_a_guess_that_has_not_settled():
    """However sure a drafter is of what comes then."""
    sure = torch.tensor([[1.0, 0.9, 0.1, 0.9, 0.9], [1.0, 0.1, 0.9, 0.9, 0.9]]).log()
    draft = chain(torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 5, 2), sure)
    assert WindowSelector(4, 0.5)(draft, state_for(torch.tensor([9, 9]), SamplingConfig())).counts.tolist() == [1, 0]


def test_uniform_skipping_needs_no_codebook(drafting_pipeline, monkeypatch):
    monkeypatch.setattr(drafting_pipeline, "vqvae", None)
    assert make(drafting_pipeline, "vvs-jacobi", {"schedule": "uniform"}).trace.skipped_tokens > 0
    refused("compares the codes of the image tokenizer", make, drafting_pipeline, "vvs-jacobi", {})
