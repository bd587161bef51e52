"""Training runs of the video half, with the questions they take from outside.

Belongs here: giving a trainer questions about a user's videos, or about videos that the world renders. Does not belong
here: any trainer (`vargen.video.training`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from vargen.base.world import require_world
from vargen.runs.identity import digest
from vargen.training.run import RunResult, prepare
from vargen.video.jobs.clips import ask_about, describe_clips, set_apart
from vargen.video.models.frames import CAPTION_PROMPTS, frame_sampler
from vargen.video.pipelines.answering import VideoAnswerer
from vargen.video.training.video_answers import Ask, VideoAnswersConfig, rendered_questions
from vargen.video.training.video_draft_model import VideoDraftModelTrainingConfig, train_video_draft_model
from vargen.video.training.video_drafter import VideoDrafterTrainingConfig, train_video_drafter
from vargen.video.training.video_questions import AskedVideo, Questions

Config = TypeVar("Config", bound=VideoAnswersConfig)


def train_drafter(config: VideoDrafterTrainingConfig) -> RunResult:
    """The recipe `video-drafter`. Raises UserError as `train_video_drafter` does, or where no world renders videos."""
    return train_video_drafter(*_with_questions(config))


def train_draft_model(config: VideoDraftModelTrainingConfig) -> RunResult:
    """The recipe `video-draft-model`, likewise."""
    return train_video_draft_model(*_with_questions(config))


def _with_questions(config: Config) -> tuple[Config, Ask]:
    """The settings as the videos have them, and the questions about the user's videos or the world's."""
    if config.videos is not None:
        return config, _own_questions(config)
    world = require_world("videos", "name a folder of videos")
    config = replace(
        config,
        num_frames=config.num_frames or world.video_frames,
        image_size=config.image_size or world.video_side,
    )
    source, seeds = world.training_videos(config.num_frames, config.image_size, prepare(config))
    return config, rendered_questions(config, source, seeds)


def _own_questions(config: VideoAnswersConfig) -> Ask:
    """Questions about the videos of a folder."""

    def ask(answerer: VideoAnswerer) -> tuple[Questions, Questions]:
        choose = frame_sampler(answerer.processor, config.num_frames, config.fps)
        usual = CAPTION_PROMPTS if config.questions is None else CAPTION_PROMPTS[:1]
        folder = config.videos or ""
        clips = [clip for each in usual for clip in ask_about(folder, config.questions, each, choose, config.fps)]

        def about(split: str, chosen: Sequence[AskedVideo]) -> Questions:
            shown = {"frames": [config.num_frames, config.fps], "max_pixels": config.max_pixels}
            described = {"clips": digest(describe_clips(chosen)), **shown}
            size = config.generation_batch_size
            processor, architecture = answerer.processor, answerer.architecture
            return Questions(processor, architecture, chosen, described, split, size, config.max_pixels)

        train, heldout = set_apart(clips)
        return about("train", train), about("heldout", heldout[: config.evaluation_size])

    return ask
