"""Loading a pipeline for a command: device and precision by name, quietly, with errors in one line.

Belongs here: what every command that makes pictures does first. Library users call a pipeline's `from_pretrained`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging

from vargen.errors import UserError
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.llamagen import LlamaGenPipeline

ImagePipeline = LlamaGenPipeline | JanusPipeline
Pipeline = TypeVar("Pipeline", LlamaGenPipeline, JanusPipeline)


def place_and_precision(device: str, dtype: str) -> tuple[str, str]:
    """What "auto" stands for: a GPU in bfloat16 where there is one, else the CPU in float32.

    Raises:
        UserError: a GPU is asked for and absent.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.split(":")[0] == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r} is not available on this machine; use --device cpu")
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype


def load_pipeline(model_folder: Path, device: str, dtype: str) -> tuple[LlamaGenPipeline, str, str]:
    """A LlamaGen pipeline on its device, the device's name, and the name of the transformer's precision."""
    return _load(LlamaGenPipeline, model_folder, device, dtype)


def load_family(family: str, model_folder: Path, device: str, dtype: str) -> tuple[ImagePipeline, str, str]:
    """The same for a family that `vargen.models.description.describe_model` names."""
    if family == "janus":
        return _load(JanusPipeline, model_folder, device, dtype)
    return _load(LlamaGenPipeline, model_folder, device, dtype)


def _load(kind: type[Pipeline], model_folder: Path, device: str, dtype: str) -> tuple[Pipeline, str, str]:
    device, dtype = place_and_precision(device, dtype)
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    try:
        place = torch.device(device)
        pipeline = kind.from_pretrained(model_folder, dtype=getattr(torch, dtype)).to(place)
    except RuntimeError as error:
        raise UserError(f"device {device!r} cannot be used ({error}); use --device cpu") from error
    pipeline.set_progress_bar_config(disable=True)  # one bar over all batches instead
    return pipeline, device, dtype
