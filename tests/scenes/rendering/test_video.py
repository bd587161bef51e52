"""Videos: what happens is in the frames, captions say what is true and are read back."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from scene_truth import render_video
from video_order import backwards, order_answers

from scenes.captions.video_captions import (
    caption_accuracy,
    compose_questions,
    compose_video_caption,
    read_claims,
    video_vocabulary,
)
from scenes.rendering import camera
from scenes.rendering.scene import is_heldout_object
from scenes.rendering.video import KINDS, VideoScene, sample_video

SEEDS = range(300)
VIDEOS = [sample_video(seed, split="all") for seed in SEEDS]


def place_of(video: VideoScene, frame: int, number: int) -> tuple[float, float] | None:
    """Screen position and depth of an object in a frame; None if it is not there."""
    item = video.objects[number]
    event = video.event_of(number)
    colours = {item.colour, event.colour if event is not None and event.kind == "turns" else item.colour}
    found = [each for each in video.frames[frame].objects if each.shape == item.shape and each.colour in colours]
    if len(found) != 1:
        assert not found
        return None
    return camera.screen_position(found[0].x, found[0].depth), found[0].depth


def test_the_same_seed_gives_the_same_video_and_all_kinds_happen() -> None:
    assert sample_video(7) == sample_video(7) != sample_video(8)
    assert {event.kind for video in VIDEOS for event in video.events} == set(KINDS)
    counts = [len(video.objects) for video in VIDEOS]
    assert all(counts.count(number) > 40 for number in (1, 2, 3))


def test_objects_do_in_the_frames_what_their_events_say() -> None:
    for video in [*VIDEOS, *map(backwards, VIDEOS)]:
        last = len(video.frames) - 1
        for event in video.events:
            before, after = place_of(video, 0, event.subject), place_of(video, last, event.subject)
            if event.kind == "appears":
                assert before is None and after is not None
                continue
            assert before is not None
            if event.kind == "leaves":
                assert after is None
                continue
            assert after is not None
            across, away = after[0] - before[0], after[1] - before[1]
            wanted = {
                "goes left": (-0.62, 0),
                "goes right": (0.62, 0),
                "comes closer": (0, -2.2),
                "goes away": (0, 2.2),
            }
            dx, dz = wanted.get(event.kind, (0, 0))
            assert math.isclose(across, dx, abs_tol=1e-6) and math.isclose(away, dz, abs_tol=1e-6), event
            if event.kind == "turns":
                shown = [item.colour for item in video.frames[last].objects]
                assert event.colour in shown and video.objects[event.subject].colour != event.colour
            if event.kind == "bumps into":
                assert event.other is not None
                closest = min(
                    math.dist(a, b)
                    for frame in range(last + 1)
                    if (a := place_of(video, frame, event.subject)) and (b := place_of(video, frame, event.other))
                )
                start = math.dist(before, place_of(video, 0, event.other) or (0, 0))
                assert closest < start


def test_nothing_stands_in_anything() -> None:
    for video in VIDEOS:
        for scene in video.frames:
            for place, item in enumerate(scene.objects):
                for other in scene.objects[place + 1 :]:
                    distance = math.hypot(item.x - other.x, item.depth - other.depth)
                    assert distance >= 0.999 * (item.footprint + other.footprint)


def test_names_are_unique_before_and_after() -> None:
    for video in VIDEOS:
        names = [(item.colour, item.shape) for item in video.objects]
        names += [(event.colour, video.objects[event.subject].shape) for event in video.events if event.kind == "turns"]
        assert len(set(names)) == len(names)


def test_events_follow_each_other_inside_the_video() -> None:
    for video in VIDEOS:
        assert len(video.events) == len(video.objects)
        for event in video.events:
            assert 0 < event.first < event.last < len(video.frames)
        for before, after in itertools.pairwise(video.events):
            assert before.last <= after.first + 1 and before.first < after.first


def test_splits_are_by_combination() -> None:
    for split, wanted in (("train", False), ("heldout", True)):
        for seed in range(40):
            objects = sample_video(seed, split=split).objects
            assert any(is_heldout_object(item.shape, item.colour, item.material) for item in objects) == wanted


def test_frames_are_drawn_and_only_what_happens_changes() -> None:
    video = next(video for video in VIDEOS if [event.kind for event in video.events] == ["goes right"])
    frames = render_video(video, 64)
    assert frames.shape == (8, 3, 64, 64) and float(frames.min()) >= 0 and float(frames.max()) <= 1
    moved = (frames[-1] - frames[0]).abs().sum(0)  # [64, 64]
    assert float(moved[:10].max()) < 1e-5  # the sky stays
    assert float((moved > 0.1).float().mean()) > 0.01
    assert torch.equal(render_video(video, 64), frames)


def test_captions_are_long_and_claim_what_is_true() -> None:
    lengths = []
    for seed, video in enumerate(VIDEOS):
        caption = compose_video_caption(video, seed)
        lengths.append(len(re.findall(r"\w+|[.,]", caption.text)))
        assert caption.claims == compose_video_caption(video, seed + 1).claims
        assert ("count", {1: "one", 2: "two", 3: "three"}[len(video.objects)]) in caption.claims
        assert sum(claim[0] == "event" for claim in caption.claims) == len(video.events)
        assert sum(claim[0] == "object" for claim in caption.claims) == len(video.objects)
        assert caption_accuracy(video, caption.text) == 1.0
    assert min(lengths) >= 60 and max(lengths) <= 200


def test_wrong_captions_are_less_right() -> None:
    scores = []
    for video, other in itertools.pairwise(VIDEOS):
        text = compose_video_caption(video, 0).text
        assert caption_accuracy(video, "") == 0 and caption_accuracy(video, "nothing of this world") == 0
        half = text[: len(text) // 2]
        assert 0 < caption_accuracy(video, half) < 1
        scores.append(caption_accuracy(video, compose_video_caption(other, 0).text))
    assert sum(scores) / len(scores) < 0.25


def test_one_wrong_word_costs_what_it_claims() -> None:
    video = next(video for video in VIDEOS if [event.kind for event in video.events] == ["goes left"])
    caption = compose_video_caption(video, 0)
    wrong = caption.text.replace("to the left.", "to the right.")
    assert wrong != caption.text
    assert len(read_claims(wrong) ^ caption.claims) == 2


def test_spaces_before_marks_and_capitals_are_read_too() -> None:
    caption = compose_video_caption(VIDEOS[0], 0)
    spaced = caption.text.replace(",", " ,").replace(".", " .").upper()
    assert read_claims(spaced) == caption.claims


def test_questions_have_answers_from_the_truth() -> None:
    for video in VIDEOS[:60]:
        questions = compose_questions(video)
        assert len(questions) >= 2 and len({question for question, _ in questions}) == len(questions)
        assert dict(questions)["how many objects are there in the video?"] in ("one", "two", "three")


def test_the_vocabulary_covers_everything_said() -> None:
    known = set(video_vocabulary())
    for seed, video in enumerate(VIDEOS):
        said = compose_video_caption(video, seed).text
        said += " ".join(f"{question} {answer}" for question, answer in compose_questions(video))
        assert set(re.findall(r"\w+", said)) <= known


@pytest.mark.parametrize(("options", "message"), [({"split": "test"}, "split"), ({"num_frames": 3}, "num_frames")])
def test_videos_that_cannot_be_drawn_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_video(0, **options)  # type: ignore[arg-type]


def test_backwards_and_backwards_again_is_the_same_story() -> None:
    for video in VIDEOS[:100]:
        again = backwards(backwards(video))
        assert (again.frames, again.events, again.columns, again.distances) == (
            video.frames,
            video.events,
            video.columns,
            video.distances,
        )
        assert compose_video_caption(again, 0) == compose_video_caption(video, 0)


def test_order_is_what_the_two_stories_of_the_same_frames_disagree_about() -> None:
    for video in VIDEOS[:100]:
        forwards, back = (compose_video_caption(each, 3).text for each in (video, backwards(video)))
        right, wrong = order_answers(video, forwards)
        assert wrong == 0 and order_answers(video, back) == (0, right) == order_answers(backwards(video), forwards)
        turning = {event.subject for event in video.events if event.kind == "turns"}
        # A collision looks the same backwards, unless its other side has another colour then.
        decided = sum(event.kind != "bumps into" or event.other in turning for event in video.events)
        assert right == decided + math.comb(len(video.events), 2)
        assert order_answers(video, "nothing else happens in the video.") == (0, 0)
    happening = next(video for video in VIDEOS if len(video.events) == 2 and video.events[0].kind == "goes left")
    told = compose_video_caption(happening, 0).text.split(". ")
    first = next(sentence for sentence in told if sentence.startswith("first"))
    assert order_answers(happening, first + ".") == (1, 0)  # the other thing is not mentioned
    assert order_answers(happening, first.replace("first", "finally") + ".") == (1, 0)
    other = next(sentence for sentence in told if sentence.startswith("finally"))
    swapped = f"{first.replace('first', 'finally')}. {other.replace('finally', 'first')}."
    assert order_answers(happening, swapped)[1] == 1  # both happen, the other way round
