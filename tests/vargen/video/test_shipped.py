"""The shipped Video-LLM with everything that came with it, on a video that training never showed."""

from __future__ import annotations

import pytest

from vargen.jobs.cases import VideoCase
from vargen.kernels.int8 import is_quantized
from vargen.resources import VIDEO_FRAMES, VIDEO_SIDE
from vargen.video.answering import Answer, VideoAnswerer
from vargen.video.options import VideoOptions
from vargen.world.captions.languages import language_of
from vargen.world.cases import scene_video_cases

QUESTION = "describe the video in detail."


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Answer]]:
    """Of two videos, by method; the same words from all."""
    cases = scene_video_cases(2, "heldout", VIDEO_FRAMES, VIDEO_SIDE)
    methods = ("ar", "sd", "sparrow", "flash")
    with VideoAnswerer.from_pretrained() as answerer:
        assert set(answerer.drafters) == {"sparrow", "flash"}
        found = {name: [answerer.answer(case.frames, QUESTION, name) for case in cases] for name in methods}
    for case, answer in zip(cases, found["ar"], strict=True):
        right, wrong = language_of(case.truth).order_answers(case.truth, answer.text)
        assert accuracy(case, answer) > 0.6 and right >= wrong
    return found


def accuracy(case: VideoCase, answer: Answer) -> float:
    """F1 of what a caption claims."""
    assert case.truth is not None
    return language_of(case.truth).accuracy(case.truth, answer.text, "all")


def test_in_int8_the_answer_is_about_the_same_video_and_drafting_changes_nothing(own_kernels: None) -> None:
    (case,) = scene_video_cases(1, "heldout", VIDEO_FRAMES, VIDEO_SIDE)
    with VideoAnswerer.from_options(VideoOptions(quantization="int8", draft_quantization="int8")) as answerer:
        plain, *drafted = [answerer.answer(case.frames, QUESTION, name) for name in ("ar", "sd", "sparrow")]
        decoder = answerer.architecture.decoder(answerer.model)
        parts = decoder.layers, answerer.draft_model.load().model, answerer.trained_drafter("sparrow")
        assert all(is_quantized(part) for part in parts)
    assert accuracy(case, plain) > 0.6
    assert all(answer.token_ids == plain.token_ids for answer in drafted)


@pytest.mark.parametrize(("method", "accepted"), [("sd", 2.5), ("sparrow", 3.0), ("flash", 2.0)])
def test_what_came_with_it_drafts_well(answers: dict[str, list[Answer]], method: str, accepted: float) -> None:
    for plain, drafted in zip(answers["ar"], answers[method], strict=True):
        assert drafted.token_ids == plain.token_ids
        assert drafted.trace.mean_accepted_length > accepted
