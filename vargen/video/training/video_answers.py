"""A Video-LLM's own answers about videos, as every training that learns from them has them.

Belongs here: settings of the videos and of the answers, which questions are asked, and having them answered. Does not
belong here: learning from the answers (`video_drafter.py`, `video_draft_model.py`), and the protocols of videos and
questions (`video_questions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vargen.base.bounds import MAX_FRAMES, MAX_PIXELS
from vargen.base.options import SAMPLING, option
from vargen.base.path_roles import READ, READ_FOLDER, writes_in
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.runs.files import own_folder
from vargen.training.config import FromTargetConfig, check
from vargen.video.models.frames import CAPTION_PROMPTS
from vargen.video.pipelines.answering import VideoAnswerer
from vargen.video.pipelines.loading import open_video_model
from vargen.video.pipelines.options import VideoOptions
from vargen.video.training.video_questions import AskedVideo, Questions, VideoSource, generate_answers, render
from vargen.video.training.video_states import StatesFolder, TeacherForcing


@dataclass
class VideoAnswersConfig(FromTargetConfig):
    """Settings of every run that learns from a Video-LLM's answers, beside those of `FromTargetConfig`."""

    num_videos: int = option(2048, least=1)
    """Number of rendered videos, each with an answer to learn from."""
    videos: str | None = option(None, path=READ_FOLDER)
    """Folder of videos to learn from instead. Every tenth is kept apart for evaluation."""
    questions: str | None = option(None, path=READ)
    """Questions about a folder's videos: a .txt file, each line of which is asked about every video, or a .csv or
    .jsonl file with a "video" and a "question" in each row; null asks for descriptions."""
    num_frames: int | None = option(None, least=1, most=MAX_FRAMES)
    """Number of frames that the model sees; null for the world's own number, and for the processor's own choice of
    others."""
    fps: float | None = option(None, above=0.0)
    """Number of frames per second of a folder's videos that the model sees, instead of `num_frames`."""
    max_pixels: int | None = option(None, least=1)
    """Largest number of pixels of a frame of a folder's videos; null for the processor's own limit."""
    image_size: int | None = option(None, least=1, most=MAX_PIXELS)
    """Side of the rendered frames in pixels; null for the side of the world's own videos."""
    answers: str = option("", path=writes_in())
    """Folder of the target's answers, which several runs can share; empty for output/answers."""
    max_new_tokens: int = option(220, least=1, group=SAMPLING)
    """Largest number of tokens of an answer."""
    states: str = option("", path=writes_in())
    """Folder in which the target's hidden states are kept, a MiB for 1,000 tokens of the shipped target. Runs that
    differ only in the head share them, and a resumed run reads them again. Empty keeps them in memory."""
    memory_gib: float = option(4.0, least=0.0)
    """The most memory for them in GiB; states that do not fit are computed again at every step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.videos is not None:
            both = self.num_frames is not None and self.fps is not None
            check(not both, "fps", self.fps, "and num_frames cannot both be given; leave out one of them")
            return
        for name in ("questions", "fps", "max_pixels"):
            value = getattr(self, name)
            check(value is None, name, value, "belongs to a folder of videos; name one with videos, or leave it out")
        frames = self.num_frames
        check(frames is None or frames >= 4, "num_frames", frames, "must be at least 4: something has to happen")


Ask = Callable[[VideoAnswerer], tuple[Questions, Questions]]
"""Gives, for a target, the questions whose answers are learned from and those kept apart."""


def rendered_questions(config: VideoAnswersConfig, source: VideoSource, first_seeds: Mapping[str, int]) -> Ask:
    """Questions for a trainer about rendered videos, which have seeds as numbers.

    Args:
        config: its num_frames and image_size are those of the source.
        source: renders the videos.
        first_seeds: of the videos to learn from, "train", and of those kept apart, "heldout".
    """

    def ask(answerer: VideoAnswerer) -> tuple[Questions, Questions]:
        size = config.generation_batch_size

        def about(split: str, count: int, first: int) -> Questions:
            described = {"frames": [config.num_frames, config.image_size], "first_seed": first}
            videos = [
                AskedVideo(
                    partial(render, source, first + number, split),
                    CAPTION_PROMPTS[number // size % len(CAPTION_PROMPTS)],
                )
                for number in range(count)
            ]
            return Questions(answerer.processor, answerer.architecture, videos, described, split, size)

        return (
            about("train", config.num_videos, first_seeds["train"] + config.seed),
            about("heldout", config.evaluation_size, first_seeds["heldout"]),
        )

    return ask


def open_target(config: VideoAnswersConfig, draft_model: str | None = None) -> tuple[VideoAnswerer, str]:
    """The target, with a draft model if one is named, and the fingerprint of the target's weights.

    Raises:
        UserError: no such model, or the two have different vocabularies.
    """
    on_gpu = config.device == "cuda" and config.autocast
    options = VideoOptions(
        model=config.model or None,
        revision=config.revision,
        draft_model=draft_model,
        device=config.device,
        dtype="bfloat16" if on_gpu else "float32",
    )
    found = open_video_model(options.model, options.revision)
    return VideoAnswerer.from_options(options, found), weights_fingerprint(found.folder)


def teachers(
    config: VideoAnswersConfig, answerer: VideoAnswerer, fingerprint: str, ask: Ask, layer: int | None = None
) -> list[TeacherForcing]:
    """The target over its own answers: to the questions that are learned from, then to those kept apart.

    Args:
        fingerprint: of the target's weights, by which kept answers and states are recognised.
        layer: see `TeacherForcing`.

    Raises:
        UserError: a folder that holds answers of another target, or that cannot be written.
    """
    folder, target = None, {"target": fingerprint}
    if config.states:
        with own_folder(config.states, argument="states"):  # refuses a place that cannot be written
            folder = StatesFolder(Path(config.states), target)
    kept = Path(config.answers or Path(config.output) / "answers")
    dtype = torch.bfloat16 if config.autocast else torch.float32
    readers = []
    for questions in ask(answerer):
        count, most = len(questions.videos), config.max_new_tokens
        answers = generate_answers(answerer.model, questions, count, kept, target, most)
        memory = config.memory_gib * 2**30
        readers.append(TeacherForcing(answerer.model, questions, answers, layer, dtype, memory, folder))
    return readers
