"""What methods are built from: visual tokens that a drafter is shown, sizes that fit two models, lasting workers."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor

from vargen.video.methods.base import Pruning
from vargen.video.models.pruning import keep_by_attention, keep_highest, visual_gain
from vargen.video.models.request import keep_share
from vargen.video.pipelines import components as module
from vargen.video.pipelines.components import VideoLLMComponents, kept_tokens


def test_a_drafter_is_shown_what_its_own_settings_choose(architecture, models, inputs_of):
    parts = VideoLLMComponents(models(architecture), [inputs_of(architecture, 2)], 4)
    pruning = Pruning(0.3, "attention")
    target = parts.target(1, **pruning.captured)
    target.prefill()
    scores = target.video_attention(0)
    chosen = [kept_tokens(target, pruning, 0).tolist()]
    by_attention = keep_share(parts.requests[0], 0.3, lambda shown, budget: keep_by_attention(scores[:shown], budget))
    assert chosen[-1] == by_attention.tolist()
    for layer in (1, 2):
        pruning = Pruning(0.3, "visual_gain", layer)
        target = parts.target(1, **pruning.captured)
        target.prefill()
        seen, request = target.prompts[0].captured, parts.requests[0]
        visual, asks = request.is_visual, request.question_places
        gain = visual_gain(seen[0][visual], seen[layer][visual], seen[0][asks], seen[layer][asks])

        def by_gain(shown: int, budget: int, gain: Tensor = gain) -> Tensor:
            return keep_highest(gain[:shown], budget)

        chosen.append(kept_tokens(target, pruning, 0).tolist())
        assert chosen[-1] == keep_share(request, 0.3, by_gain).tolist()
    assert len({tuple(each) for each in chosen}) > 2, "choices that are alike would prove little"


def test_a_model_that_drafts_for_itself_sees_its_video_once(models, inputs_of):
    model, seen = models("qwen2_5_vl"), []
    parts = VideoLLMComponents(model, [inputs_of("qwen2_5_vl", 2)], 4)
    with model.model.visual.register_forward_hook(lambda *_: seen.append(1)):
        parts.pruned_draft(parts.target(1), "self", Pruning(1.0), 1)
    assert len(seen) == 1


def test_logits_are_as_long_as_the_shorter_vocabulary():
    target, draft = (
        SimpleNamespace(config=SimpleNamespace(get_text_config=lambda size=size: SimpleNamespace(vocab_size=size)))
        for size in (12, 9)
    )
    for model, drafting, size in ((target, None, 12), (target, draft, 9), (draft, target, 9)):
        assert VideoLLMComponents(model, [], 4, drafting).vocab_size == size


def test_workers_last_for_answers_of_their_own_kind(monkeypatch):
    monkeypatch.setattr(module, "ParallelPair", lambda model, workers: (model, workers))
    monkeypatch.setattr(module, "ParallelLoop", lambda pair, *_: pair)
    monkeypatch.setattr(VideoLLMComponents, "sizes", lambda self, nodes: {})
    lasting: dict[Any, Any] = {}
    parts = VideoLLMComponents("target", [{}], 4, "draft", lasting=lasting)
    wanted = [(drafter, workers) for drafter in ("self", "pair") for workers in ("processes", "in_turn")]
    found = [parts.parallel_pair(*each, Pruning(1.0), 2) for each in wanted]
    assert found == [({"self": "target", "pair": "draft"}[drafter], workers) for drafter, workers in wanted]
    again = VideoLLMComponents("target", [{}], 4, "draft", lasting=lasting)
    assert again.parallel_pair("self", "processes", Pruning(1.0), 2) is found[0]
