"""The shipped Video-LLM with everything that came with it, on a video that training never showed."""

import statistics

import pytest
from video_order import order_answers

from scenes.captions.story_captions import written_accuracy
from scenes.cases import scene_video_cases
from scenes.shipped import VIDEO_FRAMES, VIDEO_SIDE
from scenes.training.grounding import cell_attributes
from specdecode.kernels.quantized import quantization_of
from vargen.methods.catalogue import resolve_method
from vargen.video.jobs.cases import VideoCase
from vargen.video.methods.base import SPREADS
from vargen.video.models.frames import processor_inputs
from vargen.video.models.pruning import keep_by_attention, keep_highest, token_budget
from vargen.video.models.request import keep_spread, prepare_request, visual_gain_scorer
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.answering import Answer, VideoAnswerer
from vargen.video.pipelines.options import VideoOptions

QUESTION = "describe the video in detail."
LAYER = 3  # a quarter of the target's


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Answer]]:
    """Of a video, by method; the same words from all."""
    cases = scene_video_cases(1, "heldout", VIDEO_FRAMES, VIDEO_SIDE)
    methods = {name: resolve_method(name, task="video") for name in ("ar", "sd", "flash")}
    methods["sparrow"] = resolve_method("sparrow", {"depth": None}, task="video")  # by default as many as pay
    with VideoAnswerer.from_pretrained() as answerer:
        assert set(answerer.drafters) == {"sparrow", "flash"}
        found = {
            name: [answerer.answer(case.frames, QUESTION, method) for case in cases] for name, method in methods.items()
        }
    for case, answer in zip(cases, found["ar"], strict=True):
        right, wrong = order_answers(case.truth, answer.text)
        assert accuracy(case, answer) > 0.6 and right >= wrong
    return found


def accuracy(case: VideoCase, answer: Answer) -> float:
    """F1 of what a caption claims."""
    assert case.truth is not None
    return written_accuracy(case.truth, answer.text)


def test_what_is_kept_by_visual_gain_shows_objects():
    """UV-Prune's claim, of a tenth of the tokens: more of them on objects than attention picks, and far more than lie
    there. By the patches that an object covers, rendered without the model."""
    answerer = VideoAnswerer.from_pretrained()
    shares: dict[str, list[float]] = {}
    for case in scene_video_cases(3, "heldout", VIDEO_FRAMES, VIDEO_SIDE):
        request = prepare_request(answerer.model, processor_inputs(answerer.processor, case.frames, QUESTION))
        target = VideoTarget(answerer.model, request, (0, LAYER), capture_attention=True, max_new_tokens=2)
        target.prefill()
        patches = round((request.num_visual * 2 / VIDEO_FRAMES) ** 0.5)  # of a frame's side; two frames share a token
        on_object = cell_attributes(case.truth.frames[1::2], patches)["shape"].flatten() > 0
        assert len(on_object) == request.num_visual
        captured, budget = target.prompts[0].captured, token_budget(request.num_visual, 0.1)
        ways = {
            "visual_gain": keep_highest(visual_gain_scorer(request)(captured[0], captured[LAYER]), budget),
            "attention": keep_by_attention(target.video_attention(0), budget),
            **{by: keep_spread(request, 0.1, by, 0) for by in SPREADS},
        }
        for name, kept in ways.items():
            shares.setdefault(name, []).append(float(on_object[kept].float().mean()))
        shares.setdefault("all", []).append(float(on_object.float().mean()))
    share = {name: statistics.fmean(values) for name, values in shares.items()}
    assert share["visual_gain"] > 0.85 and share["visual_gain"] > share["attention"] + 0.1
    assert share["all"] < 0.4
    assert all(abs(share[name] - share["all"]) < 0.1 for name in ("uniform", "random"))


def test_in_int8_the_answer_is_about_the_same_video_and_drafting_changes_nothing(own_kernels):
    (case,) = scene_video_cases(1, "heldout", VIDEO_FRAMES, VIDEO_SIDE)
    with VideoAnswerer.from_options(VideoOptions(quantization="int8", draft_quantization="int8")) as answerer:
        plain, drafted = [answerer.answer(case.frames, QUESTION, name) for name in ("ar", "sd")]
        decoder = answerer.architecture.decoder(answerer.model)
        parts = decoder.layers, answerer.draft_model.load().model, answerer.load_draft_head("sparrow")
        assert all(quantization_of(part) == "int8" for part in parts)
    assert accuracy(case, plain) > 0.6
    assert drafted.token_ids == plain.token_ids and drafted.trace.mean_accepted_length > 1.5


def test_in_int4_what_came_with_it_drafts_still(own_kernels):
    (case,) = scene_video_cases(1, "heldout", VIDEO_FRAMES, VIDEO_SIDE)
    with VideoAnswerer.from_options(VideoOptions(quantization="int4")) as answerer:
        plain, drafted = [answerer.answer(case.frames, QUESTION, name) for name in ("ar", "flash")]
    assert drafted.token_ids == plain.token_ids and drafted.trace.mean_accepted_length > 1.5


@pytest.mark.parametrize(("method", "accepted"), [("sd", 2.5), ("sparrow", 3.0), ("flash", 2.0)])
def test_what_came_with_it_drafts_well(answers, method, accepted):
    for plain, drafted in zip(answers["ar"], answers[method], strict=True):
        assert drafted.token_ids == plain.token_ids
        assert drafted.trace.mean_accepted_length > accepted
