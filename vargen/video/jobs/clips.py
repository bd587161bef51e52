"""A user's own videos, and the questions about them.

Belongs here: the videos of a folder, and files of questions. Does not belong here: decoding files
(`vargen.video.models.frames`), and the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.prompts import read_prompts, read_records
from vargen.base.reading import expanded
from vargen.video.models.frames import read_video
from vargen.video.training.video_questions import AskedVideo

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".gif", ".mpg", ".mpeg", ".ts", ".flv", ".wmv")
"""Suffixes of videos in a folder. A folder of pictures in it is a video, too."""


def find_videos(folder: str | Path) -> list[Path]:
    """The videos of a folder by name. Raises UserError for no such folder, or none in it."""
    place = expanded(folder)
    if not place.is_dir():
        raise UserError(f"videos: {place} is not a folder; name one that holds videos")
    shown = (path for path in place.iterdir() if not path.name.startswith("."))
    found = sorted(path for path in shown if path.suffix.lower() in VIDEO_SUFFIXES or path.is_dir())
    if not found:
        raise UserError(f"videos: {place} holds no videos ({', '.join(VIDEO_SUFFIXES)}); name another folder")
    return found


def ask_about(
    folder: str | Path,
    questions: str | None,
    usual: str,
    choose: Callable[[int, float], list[int]],
    fps: float | None = None,
) -> list[AskedVideo]:
    """Clips of a folder with their questions.

    Args:
        folder: of the videos.
        questions: a .txt file, whose lines are all asked about every video; or a .csv or .jsonl file with a "video" of
            the folder and a "question" in each row; None asks `usual` about all.
        choose, fps: of each clip.

    Raises:
        UserError: no folder, no videos, or a file without questions.
    """
    videos = find_videos(folder)
    if questions is None:
        pairs: Iterable[tuple[Path, str]] = [(path, usual) for path in videos]
    elif (suffix := Path(questions).suffix.lower()) in (".csv", ".jsonl"):
        named = {path.name: path for path in videos}
        rows = read_records(questions, "questions", ("question",))
        pairs = [_pair(row, where, named) for where, row in rows]
    elif suffix not in (".txt", ""):
        raise UserError(f"questions: {questions} must end in .txt, .csv or .jsonl")
    else:
        pairs = [(path, each) for path in videos for each in read_prompts(questions, "questions")]
    clips = [AskedVideo(partial(read_video, path, choose, fps), question, path) for path, question in pairs]
    if not clips:
        raise UserError(f"questions: {questions} holds none; write one a line")
    return clips


def set_apart(clips: Sequence[AskedVideo]) -> tuple[list[AskedVideo], list[AskedVideo]]:
    """Clips to train on, and those of every tenth video to evaluate on. Raises UserError for a single video."""
    names = sorted({clip.path for clip in clips})
    if len(names) < 2:
        raise UserError("videos: a tenth of them, one at least, is kept for evaluation; give two or more")
    apart = set(names[::10])
    return [clip for clip in clips if clip.path not in apart], [clip for clip in clips if clip.path in apart]


def describe_clips(clips: Sequence[AskedVideo]) -> list[list[Any]]:
    """The identity of clips: names, sizes and questions."""
    return [[clip.path.name, clip.path.stat().st_size, clip.question] for clip in clips]


def _pair(row: Mapping[str, Any], where: str, named: Mapping[str, Path]) -> tuple[Path, str]:
    video, question = row.get("video"), row.get("question")
    if not isinstance(video, str) or not isinstance(question, str) or not question.strip():
        raise UserError(f"{where} it needs a video and a question, both texts")
    if video not in named:
        raise UserError(f"{where} {video!r} is not among the videos")
    return named[video], question
