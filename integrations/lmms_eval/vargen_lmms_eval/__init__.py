"""lmms-eval finds `--model vargen_video` here.

Belongs here: lmms-eval's entry point `lmms_eval.models`. It is imported whenever lmms-eval starts, so nothing here
needs a model; that is `model.py`.
"""

from __future__ import annotations

from typing import Any

MODEL_NAME = "vargen_video"


def manifest() -> Any:
    """What lmms-eval's registry reads: a name, and where its chat model is."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id=MODEL_NAME, chat_class_path="vargen_lmms_eval.model.VargenVideo")
