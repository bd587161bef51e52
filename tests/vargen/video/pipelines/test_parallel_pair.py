"""Parallel decoding of Video-LLMs: plain decoding's tokens, with a drafter that learns mid-prefill what to look at."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode.loop import decode
from specdecode.runs.parallel.draft_length import measure_draft_length
from specdecode.runs.parallel.drafter import InTurnChannel
from specdecode.runs.parallel.loop import ParallelResult, decode_parallel
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.video.models.pruning import keep_highest, token_budget, visual_gain
from vargen.video.models.request import VideoRequest, keep_visual, prepare_request
from vargen.video.models.target import VideoTarget

GREEDY, SAMPLED = SamplingConfig(temperature=0.0), SamplingConfig(temperature=1.0)
LENGTH, LAYER = 20, 1


def parallel(
    target: VideoTarget, channel: Any, sampling: SamplingConfig = GREEDY, prompt: Any = None, **options: Any
) -> ParallelResult:
    streams = RandomStreams.from_seeds([7], device=target.device)
    settings: dict[str, Any] = {"draft_length": 4, "max_new_tokens": LENGTH, "streams": streams, **options}
    return decode_parallel(target, channel, sampling=sampling, prompt=prompt, **settings)


def hinting(model: Any, request: VideoRequest, keep_ratio: float, give: Callable[[Tensor], None]) -> VideoTarget:
    """A target that gives the numbers of the visual tokens that gained most (UV-Prune) in the middle of its prefill."""
    visual, text = request.is_visual.nonzero()[:, 0], (~request.is_visual).nonzero()[:, 0]
    before, budget = request.inputs_embeds[0], token_budget(request.num_visual, keep_ratio)

    def choose(states: Tensor) -> None:
        give(keep_highest(visual_gain(before[visual], states[visual], before[text], states[text]), budget))

    return VideoTarget(model, request, on_layer={LAYER: choose}, capture_layers=(0, LAYER))


def source_of(model: Any, seen: list[int] | None = None) -> Callable[..., VideoTarget]:
    """A drafter that reads the video itself and sees of it what it is told to."""

    def source(inputs: Any, hint: Callable[[], Tensor | None]) -> VideoTarget:
        request = prepare_request(model, inputs)
        kept = hint()
        if kept is not None:
            request = keep_visual(request, kept)
        if seen is not None:
            seen.append(request.num_visual)
        return VideoTarget(model, request)

    return source


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_drafter_that_sees_everything_is_always_right(architecture, models, inputs_of, sampling):
    model, inputs = models(architecture), inputs_of(architecture, 3)
    target = VideoTarget(model, prepare_request(model, inputs))
    result = parallel(target, InTurnChannel(source_of(model)), sampling, inputs)
    assert result.account.run_lengths == [LENGTH] and result.trace.target_passes == 1 + -(-(LENGTH - 1) // 4)


def test_the_hint_comes_before_later_layers(architecture, prepared):
    model, request = prepared(architecture, 2)
    events: list[Any] = []
    target = hinting(model, request, 0.3, events.append)
    with model.model.language_model.layers[LAYER].register_forward_pre_hook(lambda *_: events.append("next layer")):
        target.prefill()
    assert events[1] == "next layer"
    before, after, seen = target.prompts[0].captured[0], target.prompts[0].captured[LAYER], request.is_visual
    gain = visual_gain(before[seen], after[seen], before[~seen], after[~seen])
    assert torch.equal(events[0], keep_highest(gain, round(0.3 * request.num_visual)))


def test_a_drafter_in_another_thread_is_not_taken_for_the_target(architecture, prepared, inputs_of):
    """Both run through the same layers; what the drafter computes there must not be seen as the target's."""
    model, request = prepared(architecture, 2)
    other = VideoTarget(model, prepare_request(model, inputs_of(architecture, 9)))
    hints: list[Tensor] = []

    def let_the_other_run(numbers: Tensor) -> None:
        hints.append(numbers)
        thread = threading.Thread(target=other.prefill)
        thread.start()
        thread.join()

    target, alone = hinting(model, request, 0.3, let_the_other_run), hinting(model, request, 0.3, lambda _: None)
    target.prefill()
    alone.prefill()
    assert len(hints) == 1 and torch.equal(target.prompts[0].captured[LAYER], alone.prompts[0].captured[LAYER])


def test_the_draft_length_is_measured_with_the_pruned_drafter(architecture, models, inputs_of):
    model, inputs = models(architecture), inputs_of(architecture, 3)
    request = prepare_request(model, inputs)
    seen: list[int] = []
    channel = InTurnChannel(source_of(model, seen))
    target = hinting(model, request, 0.25, channel.hint)
    measured = measure_draft_length(target, channel, prompt=inputs, repeats=2)
    assert measured.tokens >= 1 and seen == [round(0.25 * request.num_visual)]
    result = parallel(target, channel, GREEDY, inputs, draft_length=min(measured.tokens, 9))
    target, streams = VideoTarget(model, request), RandomStreams.from_seeds([7])
    assert torch.equal(result.tokens, decode(target, max_new_tokens=LENGTH, sampling=GREEDY, streams=streams).tokens)
