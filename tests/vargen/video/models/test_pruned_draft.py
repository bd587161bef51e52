"""SpecVLM: a drafter that sees the part of the video that the target's attention chose, and drafts a tree."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import DecodeResult, decode
from specdecode.roles import Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.video.models.pruned_draft import PrunedDraft
from vargen.video.models.pruning import keep_by_attention, keep_uniform, token_budget
from vargen.video.models.request import VideoRequest, keep_visual, prepare_request
from vargen.video.models.target import VideoTarget

GREEDY = SamplingConfig(temperature=0.0)
TREE = StaticTree.published("mc_sim_7b_63")


def answer(target: VideoTarget, drafter: Drafter | None = None, sampling: SamplingConfig = GREEDY) -> DecodeResult:
    return decode(target, max_new_tokens=24, sampling=sampling, streams=RandomStreams.from_seeds([3]), drafter=drafter)


def pruned_by_attention(target: VideoTarget, model: Any, request: VideoRequest, keep_ratio: float) -> PrunedDraft:
    budget = token_budget(request.num_visual, keep_ratio)
    return PrunedDraft(model, request, lambda row: keep_by_attention(target.video_attention(), budget))


@pytest.mark.parametrize("keep_ratio", [1.0, 0.5])
def test_a_tree_needs_no_more_passes_than_a_chain(architecture, models, inputs_of, keep_ratio):
    model = models(architecture)
    for seed in range(2):
        request = prepare_request(model, inputs_of(architecture, seed))
        passes = []
        for kind in ("tree", "chain"):
            target = VideoTarget(model, request, capture_attention=True)
            draft = pruned_by_attention(target, model, request, keep_ratio)
            chain = DraftModelDrafter(draft, FixedDraftSize(DraftSize(6, 5)))
            result = answer(target, DraftModelTreeDrafter(draft, TREE) if kind == "tree" else chain)
            passes.append(result.trace.target_passes)
        assert passes[0] <= passes[1]
        if keep_ratio == 1:
            assert passes[0] == 1 + -(-23 // 6)  # all five of every path, and the bonus


def test_it_chooses_when_asked_and_keeps_what_is_chosen(architecture, models, inputs_of):
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture))
    kept = keep_uniform(request.num_visual, 5)
    asked: list[int] = []

    def choose(row: int) -> Tensor:
        asked.append(row)
        return kept

    draft = PrunedDraft(model, request, choose)
    assert not asked
    logits = draft.prefill().logits
    assert asked == [0]
    assert torch.equal(logits, VideoTarget(model, keep_visual(request, kept)).prefill().logits)
    assert torch.equal(draft.prefill().logits, logits), "a second answer starts from the whole request again"
