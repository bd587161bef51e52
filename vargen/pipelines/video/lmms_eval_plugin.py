"""lmms-eval finds `--model vargen_video` here.

Belongs here: the answer to lmms-eval's entry point `lmms_eval.models`, and nothing that needs a model: it is imported
whenever lmms-eval starts. The model itself is in `lmms_eval_model.py`. lmms-eval is not a dependency of this project.
"""

from __future__ import annotations

from typing import Any

MODEL_NAME = "vargen_video"


def manifest() -> Any:
    """What lmms-eval's registry reads: a name, and where its chat model is."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id=MODEL_NAME, chat_class_path="vargen.pipelines.video.lmms_eval_model.VargenVideo")
