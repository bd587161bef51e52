"""SpecVLM: a drafter that sees a part of the video, which is chosen when it is asked."""

import torch
from torch import Tensor

from vargen.video.models.pruned_draft import PrunedDraft
from vargen.video.models.pruning import keep_uniform
from vargen.video.models.request import keep_visual
from vargen.video.models.target import VideoTarget


def test_it_chooses_when_asked_and_keeps_what_is_chosen(architecture, prepared):
    model, request = prepared(architecture)
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
