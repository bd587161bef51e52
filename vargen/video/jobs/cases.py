"""Cases of jobs about videos, and the protocol of a world that knows the truth about videos.

Belongs here: data that passes between a job and a world, as `vargen.jobs.cases` has it for pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vargen.jobs.cases import World

if TYPE_CHECKING:
    from vargen.video.models.frames import VideoFrames
    from vargen.video.training.video_questions import VideoSource


@dataclass(frozen=True)
class VideoCase:
    """One video to describe.

    Args:
        frames: to look at.
        truth: to judge by, in the form that the judge takes; None where an answer cannot be judged.
        question: asked about it; None: what is asked about all.
    """

    frames: VideoFrames
    truth: Any
    question: str | None = None

    def forget(self) -> None:
        """Its turn is over. Nothing to do: the frames were there before."""


VideoJudge = Callable[[Any, str], Mapping[str, float]]
"""How right an answer is about a truth, 0 to 1: under "all" as a whole, and by kind."""


class VideoWorld(World, Protocol):
    """What jobs and trainers ask of a world that shows videos, too."""

    def video_cases(self, count: int, split: str, num_frames: int, image_size: int, seed: int) -> Sequence[VideoCase]:
        """So many videos with their truth. Raises UserError for too few frames."""

    def judge_answer(self, truth: Any, text: str) -> Mapping[str, float]:
        """Plays `VideoJudge`."""

    def training_videos(self, num_frames: int, image_size: int, device: Any) -> tuple[VideoSource, Mapping[str, int]]:
        """Videos that a drafter learns from, and the first seed of "train" and "heldout"."""
