"""The models that this world ships: their folder, which of them are the defaults, and how their videos look.

Belongs here: names and sizes. Does not belong here: loading. Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).with_name("weights")
"""One folder a model."""

MODEL = "scenes-128"
"""The picture model that is loaded where none is named."""
VIDEO_MODEL = "video-llm"
"""The Video-LLM that is loaded where none is named. Its draft model has this name and "-draft"."""
VIDEO_FRAMES, VIDEO_SIDE = 32, 96
"""Frames of the videos that it was trained on, and their side in pixels."""
