"""Which architectures can answer about videos, and the refusal of all others.

Belongs here: the list and looking things up in it. Does not belong here: any architecture.
"""

from __future__ import annotations

import importlib
from typing import Any

from vargen.base.errors import UserError
from vargen.video.models.architectures.base import Architecture
from vargen.video.models.architectures.llava_next_video import LlavaNextVideo
from vargen.video.models.architectures.llava_onevision import LlavaOnevision
from vargen.video.models.architectures.qwen2_5_vl import Qwen25VL
from vargen.video.models.architectures.qwen2_vl import Qwen2VL
from vargen.video.models.architectures.qwen3_vl import Qwen3VL

ARCHITECTURES: dict[str, Architecture] = {
    each.model_type: each for each in (Qwen2VL(), Qwen25VL(), Qwen3VL(), LlavaOnevision(), LlavaNextVideo())
}
"""The architectures by `model_type`."""


def find_architecture(model_type: object, called: object = "model") -> Architecture:
    """What `config.json` calls so.

    Args:
        model_type: its `model_type`.
        called: what the error says it is.

    Raises:
        UserError: it is none of those that can be served, which are named.
    """
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    known = ", ".join(f"{each.title} ({name})" for name, each in ARCHITECTURES.items())
    raise UserError(f"{called} is of type {model_type!r}, which cannot answer about videos here; known: {known}")


def architecture_of(model: Any) -> Architecture:
    """The architecture of a loaded model. Raises UserError for one that cannot be served."""
    return find_architecture(getattr(model.config, "model_type", None), f"model: {type(model).__name__}")


def layer_classes(text_type: object) -> tuple[Any, Any]:
    """transformers' decoder layer and rotary embedding of a text model.

    Args:
        text_type: `model_type` of its configuration.

    Raises:
        ValueError: no architecture here has such a text model.
    """
    known = {name: place for each in ARCHITECTURES.values() for name, place in each.layers.items()}
    if not isinstance(text_type, str) or text_type not in known:
        raise ValueError(f"text_config must be of a language model of {' or '.join(known)}, got {text_type!r}")
    module_name, _, prefix = known[text_type].rpartition(".")
    module = importlib.import_module(f"transformers.models.{module_name}")
    return getattr(module, f"{prefix}DecoderLayer"), getattr(module, f"{prefix}RotaryEmbedding")
