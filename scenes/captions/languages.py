"""The two kinds of video captions: "plain" for short videos, and "written" for stories.

A `Language` holds every function that depends on the kind, so other modules need not know which one they use. Models,
configurations and commands name it: `captions: plain` or `captions: written`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scenes.captions import story_captions, video_captions
from scenes.captions.video_captions import VideoCaption
from scenes.rendering.story import MIN_STORY_FRAMES, Story, sample_story
from scenes.rendering.video import VideoScene, sample_video
from vargen.base.errors import UserError


@dataclass(frozen=True)
class Language:
    """Videos and what is said about them.

    Args:
        sample: the video of a seed, a number of frames and a split.
        compose: a true caption of a video by a seed.
        questions: short ones with their answers.
        accuracy: F1 of a text's claims, of a kind or "all".
        claim_kinds: the kinds, and the first words of the claims of each.
        vocabulary: every word of captions, questions and answers.
        visual_words: those words that describe what is seen.
        min_frames: of a video.
        max_caption_tokens: no caption is longer.
    """

    sample: Callable[[int, int, str], Any]
    compose: Callable[[Any, int], VideoCaption]
    questions: Callable[[Any], list[tuple[str, str]]]
    accuracy: Callable[[Any, str, str], float]
    claim_kinds: Mapping[str, tuple[str, ...]]
    vocabulary: Callable[[], list[str]]
    visual_words: Callable[[], frozenset[str]]
    min_frames: int
    max_caption_tokens: int


LANGUAGES = {
    "plain": Language(
        sample_video,
        video_captions.compose_video_caption,
        video_captions.compose_questions,
        video_captions.caption_accuracy,
        video_captions.CLAIM_KINDS,
        video_captions.video_vocabulary,
        video_captions.visual_words,
        min_frames=4,
        max_caption_tokens=220,
    ),
    "written": Language(
        sample_story,
        story_captions.compose_written_caption,
        story_captions.compose_written_questions,
        story_captions.written_accuracy,
        story_captions.CLAIM_KINDS,
        story_captions.written_vocabulary,
        story_captions.visual_words,
        min_frames=MIN_STORY_FRAMES,
        max_caption_tokens=340,
    ),
}


def find_language(name: str, num_frames: int | None = None) -> Language:
    """A language by name. Raises UserError for an unknown one, or for too few frames for it."""
    if name not in LANGUAGES:
        raise UserError(f"captions: {name!r} is not one of {', '.join(LANGUAGES)}")
    fewest = LANGUAGES[name].min_frames
    if num_frames is not None and num_frames < fewest:
        raise UserError(f"num_frames: {num_frames} are too few with captions {name}; give {fewest}")
    return LANGUAGES[name]


def language_of(video: VideoScene) -> Language:
    """The language of a video's captions."""
    return LANGUAGES["written" if isinstance(video, Story) else "plain"]
