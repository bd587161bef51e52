"""Videos of noise, and the settings of short trainings on a tiny Video-LLM's answers about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from small_video_llms import build_talkative, save_both

from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig
from vargen.video.training.video_questions import VideoBatch

SIZE, FRAMES = 32, 4
FIRST_SEEDS = {"train": 4_000_000_000, "heldout": 1_000_000_000}


class NoiseVideos:
    """Frames of noise, a function of the seed alone."""

    def __call__(self, first_seed: int, count: int, split: str) -> VideoBatch:
        generators = [torch.Generator().manual_seed(seed % 2**31) for seed in range(first_seed, first_seed + count)]
        return VideoBatch([], torch.stack([torch.rand(FRAMES, 3, SIZE, SIZE, generator=each) for each in generators]))


def save_target(folder: Path, architecture: str, num_layers: int) -> Path:
    """A small Video-LLM with its processor; its weights are drawn by torch's generator."""
    sizes = TextModelConfig(32, 48, num_layers, 4, 2), TowerConfig(32, 64, 1, 2)
    save_both(folder, *build_talkative(VideoLLMConfig(SIZE, 8, FRAMES, *sizes), architecture))
    return folder


def short_run(target: Path, folder: Path) -> dict[str, Any]:
    """Settings of a training of three steps."""
    return {
        "output": str(folder), "model": str(target), "num_videos": 6, "num_frames": FRAMES, "image_size": SIZE,
        "generation_batch_size": 3, "max_new_tokens": 10, "batch_size": 3, "steps": 3, "evaluation_size": 2,
        "warmup_steps": 1, "log_every": 1, "autocast": False,
    }  # fmt: skip
