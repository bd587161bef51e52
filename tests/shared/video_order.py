"""What the order of a video's frames alone decides: a video told backwards, and answers that depend on the order.

Every frame of a video and of the same video backwards is the same, so a model that does not see the order of frames is
right in half of what is asked here. Belongs here: both kinds of videos of `scenes`. Does not belong here: tables
(`what_videos_show.py`), and captions (`scenes.captions`).
"""

from __future__ import annotations

from dataclasses import replace

from scenes.captions.story_caption_parser import Claim
from scenes.captions.story_caption_parser import read_claims as read_story_claims
from scenes.captions.story_captions import happening
from scenes.captions.video_captions import TIMES, read_claims
from scenes.rendering.story import Story
from scenes.rendering.video import Event, VideoScene

BACKWARDS = {
    "goes left": "goes right",
    "goes right": "goes left",
    "comes closer": "goes away",
    "goes away": "comes closer",
    "appears": "leaves",
    "leaves": "appears",
}


def backwards(video: VideoScene) -> VideoScene:
    """The same frames from the last to the first, and what then happens in them."""
    return _backwards_story(video) if isinstance(video, Story) else _backwards_video(video)


def order_answers(video: VideoScene, text: str) -> tuple[int, int]:
    """How a text answers what the order of frames alone decides.

    Each event could as well have happened backwards, and of each two events one comes first, in whichever order the
    text names them.

    Returns:
        How many answers of the text are right, and how many wrong. Events that it does not mention do not count.
    """
    return _story_order(video, text) if isinstance(video, Story) else _video_order(video, text)


def _backwards_video(video: VideoScene) -> VideoScene:
    """Of a video in which each object has one event at most."""
    ends = [video.end_of(number) for number in range(len(video.objects))]
    objects, columns, distances = [], [], []
    for item, end, column, distance in zip(video.objects, ends, video.columns, video.distances, strict=True):
        if end is not None:
            colour, column, distance = end
            item = next(each for each in video.frames[-1].objects if (each.colour, each.shape) == (colour, item.shape))
        objects.append(item)
        columns.append(column)
        distances.append(distance)
    last_frame = len(video.frames) - 1
    events = [
        replace(
            event,
            kind=BACKWARDS.get(event.kind, event.kind),
            first=last_frame - event.last,
            last=last_frame - event.first,
            colour=None if event.colour is None else video.objects[event.subject].colour,
        )
        for event in reversed(video.events)
    ]
    return replace(
        video,
        frames=video.frames[::-1],
        objects=tuple(objects),
        columns=tuple(columns),
        distances=tuple(distances),
        events=tuple(events),
    )


def _backwards_story(story: Story) -> Story:
    """Of a story, in which an object may have several events."""
    firsts = story.states(len(story.events))
    last_frame = len(story.frames) - 1
    events = []
    for turn, event in reversed(list(enumerate(story.events))):
        events.append(
            replace(
                event,
                kind=BACKWARDS.get(event.kind, event.kind),
                first=last_frame - event.last,
                last=last_frame - event.first,
                colour=None if event.colour is None else story.name_in(turn)[0],
            )
        )
    return replace(
        story,
        frames=story.frames[::-1],
        objects=tuple(state.item for state in firsts),
        columns=tuple(state.column for state in firsts),
        distances=tuple(state.distance for state in firsts),
        events=tuple(events),
    )


def _video_order(video: VideoScene, text: str) -> tuple[int, int]:
    """Of a plain caption; a collision looks the same backwards, so it does not count."""
    told = {claim for claim in read_claims(text) if claim[0] == "event"}
    right = wrong = 0
    mentioned = []
    other_story = _backwards_video(video)
    for event, other_way in zip(video.events, reversed(other_story.events), strict=True):
        wordings = [_event_claim(video, event), _event_claim(other_story, other_way)]
        times = [{claim[1] for claim in told if claim[2:] == wording} for wording in wordings]
        if wordings[0] != wordings[1]:
            right += bool(times[0]) and not times[1]
            wrong += bool(times[1]) and not times[0]
        said = times[0] | times[1]
        mentioned.append(TIMES.index(said.pop()) if len(said) == 1 else None)
    for number, time in enumerate(mentioned):
        for later in mentioned[number + 1 :]:
            if time is not None and later is not None and time != later:
                right += time < later
                wrong += time > later
    return right, wrong


def _event_claim(video: VideoScene, event: Event) -> tuple[str, ...]:
    """What a claim of an event says after its time."""
    item = video.objects[event.subject]
    said = (item.colour, item.shape, event.kind)
    if event.kind == "turns":
        return (*said, str(event.colour))
    if event.kind == "bumps into":
        assert event.other is not None
        other = video.objects[event.other]
        return (*said, other.colour, other.shape)
    return said


def _story_order(story: Story, text: str) -> tuple[int, int]:
    """Of a written caption."""
    told = read_story_claims(text)
    forwards = [happening(story, turn) for turn in range(len(story.events))]
    other_story = _backwards_story(story)
    other_way = [happening(other_story, turn) for turn in range(len(story.events))][::-1]
    right = wrong = 0
    turn_of: dict[Claim, int] = {}
    for turn, (true, false) in enumerate(zip(forwards, other_way, strict=True)):
        if true != false and false not in forwards:
            right += ("event", *true) in told and ("event", *false) not in told
            wrong += ("event", *false) in told and ("event", *true) not in told
            turn_of[false] = turn
        turn_of[true] = turn
    for claim in told:
        if claim[0] != "order":
            continue
        middle = claim.index("then")
        before, after = (turn_of.get(each) for each in (claim[1:middle], claim[middle + 1 :]))
        if before is not None and after is not None:
            right += before < after
            wrong += before > after
    return right, wrong
