"""Skipping with a real transformer: after post verification nothing tells that a token was ever skipped."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import raised
from synthetic import decoded
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Draft, Schedule, Selection
from specdecode.sampling import SamplingConfig
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.transformer_layers import condition_attention_mask
from vargen.methods.vvs.feature_cache import FeatureCache
from vargen.methods.vvs.schedule import UniformSchedule
from vargen.methods.vvs.selector import PathSelector
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.training.teachers import masked_features

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]
SIZE = DraftSize(10, 3)
SHAPES = {
    "dynamic": DynamicTree(4),
    "static": StaticTree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]),
    "sampled": StaticTree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]),
}


@dataclass
class Pattern(Schedule):
    """Skips whole paths as a list of rows by step says."""

    steps: list[list[bool]]
    turn: int = 0

    def start(self, state: DecodeState) -> None:
        self.turn = 0

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        wanted = self.steps[self.turn % len(self.steps)]
        self.turn += 1
        if not any(wanted):
            return None
        selection = PathSelector()(draft, state)
        return Selection(selection.path, selection.counts * torch.tensor(wanted) * (state.lengths > 1))


@dataclass
class Run:
    result: DecodeResult
    target: LlamaGenTarget
    drafter: EagleDrafter
    features: FeatureCache
    condition: Tensor
    mask: Tensor


@torch.no_grad()
def run(
    pipeline: LlamaGenPipeline,
    schedule: Pattern | UniformSchedule | None,
    shape: str = "dynamic",
    refresh: bool = False,
    guidance_scale: float = 3.0,
    depth_behind_skip: int | None = None,
) -> Run:
    embeds, mask = pipeline.encode_prompt(PROMPTS)
    condition = pipeline.transformer.embed_condition(caption_embeds=embeds)
    target = LlamaGenTarget(
        pipeline.transformer, condition, mask, guidance_scale=guidance_scale,
        max_draft_nodes=SIZE.total_tokens + SIZE.depth,
    )  # fmt: skip
    assert isinstance(pipeline.drafter, EagleHead)
    head = LlamaGenDraftHead(pipeline.drafter, target, EagleDrafter.most_new_pairs(SHAPES[shape], SIZE))
    features = FeatureCache(16)
    drafter = EagleDrafter(
        head, SHAPES[shape], FixedDraftSize(SIZE), "sampled" if shape == "sampled" else "top", feature_reuse=features,
        refresh=refresh, depth_behind_skip=depth_behind_skip,
    )  # fmt: skip
    result = decoded(target, 16, SamplingConfig(), [1, 2, 3], drafter=drafter, schedule=schedule)
    return Run(result, target, drafter, features, condition, mask)


patterns = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns, st.sampled_from(sorted(SHAPES)), st.booleans(), st.sampled_from([None, 1, 2]))
@torch.no_grad()
def test_keys_values_and_features_are_those_of_teacher_forcing(drafting_pipeline, steps, shape, refresh, behind):
    done = run(drafting_pipeline, Pattern(steps), shape, refresh, depth_behind_skip=behind)
    tokens, target = done.result.tokens, done.target
    transformer = drafting_pipeline.transformer

    forced = LlamaGenTarget(transformer, done.condition, done.mask, guidance_scale=3.0, max_draft_nodes=15)
    forced.prefill()
    causal = torch.ones(3, 15, 15, dtype=torch.bool).tril()
    forced.forward(tokens[:, :15], causal, torch.arange(15).expand(3, -1))
    forced.commit(torch.arange(15).expand(3, -1), torch.full((3,), 15))
    length = done.condition.shape[1] + 15
    assert torch.equal(target.kv_cache.lengths, forced.kv_cache.lengths)
    for layer in range(target.kv_cache.num_layers):
        for kind in ("keys", "values"):
            ours, theirs = (getattr(each.kv_cache, kind)[layer][:, :, :length] for each in (target, forced))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    null = transformer.null_condition(3, done.condition.shape[1])
    seen = condition_attention_mask(torch.cat((done.mask, done.mask)), 15)
    wanted = masked_features(transformer, torch.cat((done.condition, null)), seen, tokens.repeat(2, 1))[:, -15:]
    kept = done.features.at(torch.arange(15).expand(3, -1))
    torch.testing.assert_close(kept, torch.cat(wanted.chunk(2), dim=-1), rtol=1e-4, atol=1e-4)
    assert done.result.trace.row_tokens == [16, 16, 16]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns)
@torch.no_grad()
def test_a_refreshed_drafter_has_read_true_features_only(drafting_pipeline, steps):
    """Its cache is that of a drafter fed once with every pair; without refreshing it is not, where rows skipped."""
    for refresh in (True, False):
        done = run(drafting_pipeline, Pattern(steps), refresh=refresh)
        head = done.drafter.head
        assert isinstance(head, LlamaGenDraftHead) and isinstance(drafting_pipeline.drafter, EagleHead)
        fed = int(head.kv_cache.lengths.min()) - (done.condition.shape[1] - 1)
        again = LlamaGenDraftHead(drafting_pipeline.drafter, done.target, 20)
        first = again.start(done.target.prefill())
        features = torch.cat((first, done.features.at(torch.arange(15).expand(3, -1))), dim=1)[:, :fed]
        causal = torch.ones(1, fed, fed, dtype=torch.bool).tril()
        again.forward(done.result.tokens[:, :fed], features, causal, torch.arange(fed)[None])
        end = done.condition.shape[1] - 1 + fed
        # Slots before a row's text hold nothing that anybody sees.
        if refresh or not done.result.trace.skipped_tokens:
            ours, theirs = (each.kv_cache.values[0][:, :, :end] for each in (head, again))
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_without_refreshing_the_drafter_keeps_what_it_made_of_stand_ins(drafting_pipeline):
    caches = []
    for refresh in (True, False):
        head = run(drafting_pipeline, Pattern([[True] * 3]), refresh=refresh).drafter.head
        assert isinstance(head, LlamaGenDraftHead)
        caches.append(head.kv_cache.values[0])
    assert not torch.allclose(*caches, atol=1e-2)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_schedule_that_never_skips_is_plain_speculation(drafting_pipeline, shape):
    plain = run(drafting_pipeline, None, shape).result
    late = UniformSchedule(2, PathSelector())
    late.min_tokens = 16
    for schedule in (Pattern([[False] * 3]), late):
        result = run(drafting_pipeline, schedule, shape).result
        assert torch.equal(result.tokens, plain.tokens)
        assert result.trace.accepted_lengths == plain.trace.accepted_lengths
        assert result.trace.target_passes == plain.trace.target_passes


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_what_is_drafted_behind_a_skip_is_as_shallow_as_asked(drafting_pipeline, shape, monkeypatch):
    propose = EagleDrafter.propose
    depths: list[tuple[bool, int]] = []

    def spy(drafter: EagleDrafter, state: DecodeState) -> Draft:
        behind = drafter._draft_behind_a_skip
        draft = propose(drafter, state)
        depths.append((behind, draft.tree.max_depth))
        return draft

    monkeypatch.setattr(EagleDrafter, "propose", spy)
    run(drafting_pipeline, Pattern([[True] * 3]), shape, depth_behind_skip=1)
    assert {depth for behind, depth in depths if behind} == {1}
    assert {depth for behind, depth in depths if not behind} == {SIZE.depth}


def test_nobody_drafts_again_where_nobody_skipped(drafting_pipeline):
    """A schedule may look at a draft and take nothing of it; then that draft is the one to be judged."""
    plain = run(drafting_pipeline, None)

    @dataclass
    class TakesNothing(Schedule):
        def start(self, state: DecodeState) -> None:
            pass

        def select(self, draft: Draft, state: DecodeState) -> Selection:
            path = PathSelector()(draft, state)
            return Selection(path.path, path.counts * 0)

    head = drafting_pipeline.drafter
    assert isinstance(head, EagleHead)
    calls: list[int] = []
    counts = []
    for schedule in (None, TakesNothing()):
        calls.clear()
        with head.register_forward_hook(lambda *_: calls.append(1)):
            result = run(drafting_pipeline, schedule).result  # type: ignore[arg-type]
        assert torch.equal(result.tokens, plain.result.tokens)
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_nothing_behind_a_skip_is_refused(drafting_pipeline):
    raised(ValueError, "depth_behind_skip must be at least 1", run, drafting_pipeline, None, depth_behind_skip=0)


def test_skipping_without_stand_ins_is_refused(drafting_pipeline):
    done = run(drafting_pipeline, None)
    drafter = EagleDrafter(done.drafter.head, SHAPES["dynamic"], FixedDraftSize(SIZE))
    players = {"drafter": drafter, "schedule": Pattern([[True] * 3])}
    raised(ValueError, "schedule needs .* but `skipping` of EagleDrafter is None", decoded, done.target, 16, **players)
