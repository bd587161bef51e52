"""Stories: what is in the frames is what the events say, at any length, and held-out objects stay held out."""

import functools
import itertools
import math

import pytest
import torch
from scene_truth import render_video
from video_order import backwards

from scenes.rendering import camera
from scenes.rendering.scene import MAX_OBJECTS, is_heldout_object
from scenes.rendering.story import MAX_EVENTS, Story, _looks, sample_story
from scenes.rendering.video import KINDS, on_the_way


@functools.cache
def stories() -> list[Story]:
    """Of 8 frames, then of 16, then of 32."""
    return [sample_story(seed, frames, "all") for frames in (8, 16, 32) for seed in range(60)]


def names_at(story: Story, frame: int) -> set[tuple[str, str]]:
    return {(item.colour, item.shape) for item in story.frames[frame].objects}


def test_the_same_seed_gives_the_same_story_and_longer_ones_say_more():
    assert sample_story(7) == sample_story(7) != sample_story(8)
    assert {event.kind for story in stories() for event in story.events} == set(KINDS)
    lengths = [sum(len(story.events) for story in stories()[start : start + 60]) / 60 for start in (0, 60, 120)]
    assert lengths[0] < lengths[1] < lengths[2] <= MAX_EVENTS
    assert any(len([each for each in story.events if each.subject == 0]) > 1 for story in stories())


def test_after_each_event_the_frames_show_what_the_states_say():
    """The states are an account of their own: colour, column, distance and presence, event by event."""
    for story in [*stories(), *map(backwards, stories())]:
        ends = [event.first for event in story.events[1:]] + [len(story.frames) - 1]
        for turn, frame in enumerate([story.events[0].first, *ends]):
            there = [state for state in story.states(turn) if state.is_there]
            assert names_at(story, frame) == {state.name for state in there}
            for state in there:
                (item,) = (each for each in story.frames[frame].objects if (each.colour, each.shape) == state.name)
                across = camera.screen_position(item.x, item.depth)
                assert {"left": across < -0.3, "middle": abs(across) < 0.3, "right": across > 0.3}[state.column]
                assert (item.depth < 1.2) == (state.distance == "near")


def test_at_most_three_are_there_apart_and_names_are_never_shared_as_events_follow_each_other():
    for story in stories():
        assert all(0 < event.first < event.last < len(story.frames) for event in story.events)
        assert all(one.last <= other.first for one, other in itertools.pairwise(story.events))
        for scene in story.frames:
            assert 1 <= len(scene.objects) <= MAX_OBJECTS
            for one, other in itertools.combinations(scene.objects, 2):
                apart = math.dist((one.x, one.depth), (other.x, other.depth))
                assert apart >= 0.999 * (one.footprint + other.footprint)
        names = [(item.colour, item.shape) for item in story.objects]
        names += [(event.colour, story.objects[event.subject].shape) for event in story.events if event.colour]
        assert len(set(names)) == len(names)
        told = [(story.name_in(turn), event.kind) for turn, event in enumerate(story.events)]
        assert len(set(told)) == len(told)


def test_an_object_goes_by_one_column_or_to_the_other_distance():
    item = stories()[0].objects[0]
    across = camera.screen_position(item.x, item.depth)
    for kind, columns, deeper in (
        ("goes right", 0.62, 0.0), ("goes left", -0.62, 0.0), ("comes closer", 0.0, -2.2), ("goes away", 0.0, 2.2),
    ):  # fmt: skip
        half, there = on_the_way(item, kind, 0.5), on_the_way(item, kind, 1.0)
        assert (half.depth - item.depth, there.depth - item.depth) == pytest.approx((deeper / 2, deeper))
        assert camera.screen_position(there.x, there.depth) - across == pytest.approx(columns)


def test_who_goes_is_on_the_way_in_between():
    seen = 0
    for story in stories():
        for turn, event in enumerate(story.events):
            if event.kind in ("goes left", "goes right", "comes closer", "goes away"):
                name = story.states(turn)[event.subject].name
                start, *between = (
                    next(each for each in story.frames[frame].objects if (each.colour, each.shape) == name)
                    for frame in range(event.first, event.last)
                )
                for number, item in enumerate(between, 1):
                    wanted = on_the_way(start, event.kind, number / (event.last - event.first))
                    assert (item.x, item.depth) == pytest.approx((wanted.x, wanted.depth)) != (start.x, start.depth)
                    seen += 1
    assert seen > 50


def test_the_place_on_the_screen_is_that_of_the_camera():
    for x, depth in ((1.0, 0.1), (-0.7, 2.3)):
        pixels = camera.project(torch.tensor([[x, 0.0, depth]]), 128)[0]
        assert float(pixels[0]) / 64 - 1 == pytest.approx(camera.screen_position(x, depth), abs=1e-5)


def test_every_object_is_asked_for_in_each_colour_that_it_has():
    story = next(story for story in stories() if any(event.kind == "turns" for event in story.events))
    turned = next(event for event in story.events if event.kind == "turns")
    looks = [(item.shape, colour) for item, colour in _looks(story)]
    assert (story.objects[turned.subject].shape, turned.colour) in looks
    assert len(looks) == len(story.objects) + sum(event.colour is not None for event in story.events)


def test_frames_are_drawn_and_only_what_happens_changes():
    story = next(story for story in stories() if "goes right" in [event.kind for event in story.events])
    event = next(event for event in story.events if event.kind == "goes right")
    frames = render_video(story, 64)
    assert frames.shape == (len(story.frames), 3, 64, 64) and 0 <= float(frames.min()) <= float(frames.max()) <= 1
    moved = (frames[event.last] - frames[event.first]).abs().sum(0)  # [64, 64]
    assert float(moved[:10].max()) < 1e-5  # the sky stays
    assert float((moved > 0.1).float().mean()) > 0.01
    assert torch.equal(render_video(story, 64), frames)


def test_training_shows_no_held_out_object_in_any_colour():
    for split, wanted in (("train", False), ("heldout", True)):
        for seed in range(60):
            seen = {item for scene in sample_story(seed, 16, split).frames for item in scene.objects}
            assert any(is_heldout_object(item.shape, item.colour, item.material) for item in seen) == wanted


def test_backwards_and_backwards_again_is_the_same_story():
    for story in stories():
        again = backwards(backwards(story))
        assert (again.frames, again.events) == (story.frames, story.events)
        count = range(len(story.objects))
        assert [again.end_of(number) for number in count] == [story.end_of(number) for number in count]
        assert [again.is_late(number) for number in count] == [story.is_late(number) for number in count]


@pytest.mark.parametrize(("options", "message"), [({"split": "test"}, "split"), ({"num_frames": 7}, "num_frames")])
def test_stories_that_cannot_be_drawn_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sample_story(0, **options)  # type: ignore[arg-type]
