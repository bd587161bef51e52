"""What the order of a video's frames alone decides: a video told backwards, and answers that depend on the order.

Every frame of a video and of the same video backwards is the same, so a model that does not see the order of frames is
right in half of what is asked here. Does not belong here: captions (`scenes.captions`).
"""

from __future__ import annotations

from dataclasses import replace

from scenes.captions.story_caption_parser import Claim, read_claims
from scenes.captions.story_captions import happening
from scenes.rendering.story import Story

BACKWARDS = {
    "goes left": "goes right", "goes right": "goes left", "comes closer": "goes away", "goes away": "comes closer",
    "appears": "leaves", "leaves": "appears",
}  # fmt: skip


def backwards(story: Story) -> Story:
    """The same frames from the last to the first, and what then happens in them."""
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
        story, frames=story.frames[::-1], objects=tuple(state.item for state in firsts),
        columns=tuple(state.column for state in firsts), distances=tuple(state.distance for state in firsts),
        events=tuple(events),
    )  # fmt: skip


def order_answers(story: Story, text: str) -> tuple[int, int]:
    """How a text answers what the order of frames alone decides.

    Each event could as well have happened backwards, and of each two events one comes first, in whichever order the
    text names them.

    Returns:
        How many answers of the text are right, and how many wrong. Events that it does not mention do not count.
    """
    told = read_claims(text)
    forwards = [happening(story, turn) for turn in range(len(story.events))]
    other_story = backwards(story)
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
