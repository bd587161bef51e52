"""Tiny pairs of both architectures with random weights, saved with their processors, and drafters of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_video_llms import ARCHITECTURES, build_talkative, save_both

from scenes.cases import scene_video_cases
from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig
from vargen.video.drafters.video_head import KINDS
from vargen.video.drafters.video_head_folder import new_video_head, save_video_head
from vargen.video.jobs.cases import VideoCase
from vargen.video.models.frames import VideoFrames

SIZE, FRAMES = 64, 4


def build_pair(folder: Path, architecture: str) -> None:
    """A target of three layers, and its disturbed copy of the same size as a drafter that is often right."""
    sizes = TextModelConfig(64, 96, 3, 4, 2), TowerConfig(32, 64, 2, 2)
    model, processor = build_talkative(VideoLLMConfig(SIZE, 8, FRAMES, *sizes), architecture)
    for name in ("target", "draft"):
        save_both(folder / name, model, processor)
        if name == "target":
            for kind in KINDS:
                save_video_head(new_video_head(kind, model.eval()), folder / name / "drafters" / kind)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    parameter.add_(0.02 * parameter.std() * torch.randn_like(parameter))


@pytest.fixture(scope="session", params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/ and draft/."""
    folder = tmp_path_factory.mktemp(request.param)
    build_pair(folder, request.param)
    return folder


@pytest.fixture(scope="session")
def qwen_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, of Qwen2.5-VL only."""
    folder = tmp_path_factory.mktemp("pair")
    build_pair(folder, "qwen2_5_vl")
    return folder


@pytest.fixture(scope="session")
def cases() -> list[VideoCase]:
    """Two videos, of which every other frame is shown."""
    stories = scene_video_cases(2, "heldout", 2 * FRAMES, SIZE)
    return [VideoCase(VideoFrames.from_frames(story.frames.frames[1::2]), story.truth) for story in stories]


@pytest.fixture(scope="session")
def answerer_of() -> Callable[[Path], Any]:
    """`answerer_of(folder)`, each loaded once."""
    from vargen.video.pipelines.answering import VideoAnswerer

    loaded: dict[Path, VideoAnswerer] = {}

    def get(folder: Path) -> VideoAnswerer:
        if folder not in loaded:
            loaded[folder] = VideoAnswerer.from_pretrained(str(folder / "target"), str(folder / "draft"))
        return loaded[folder]

    return get
