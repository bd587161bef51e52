"""A tiny pipeline of any family, by the family's name."""

from __future__ import annotations

from typing import Any

import emu3_models
import glm_image_models
import janus_models
import token_image_models
from tiny_pipelines import build_drafting_pipeline

from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.token_images import TokenImagePipeline

SIZES = {
    "emu3": emu3_models.SIZE,
    "glm_image": {"height": glm_image_models.HEIGHT, "width": glm_image_models.WIDTH},
    **{family: {"height": 32, "width": 64} for family in ("anole", "emu3_5", "liquid")},
    "lumina_mgpt_2": {"height": 32, "width": 32},
}
"""Arguments of a call for a small picture, where the usual one is large."""


def build(family: str, num_layers: int | None = None) -> Any:
    """With whatever makes tokens of prompts and pixels of codes, and without a progress bar.

    Args:
        family: its name.
        num_layers: of the decoder; None: as many as its tiny model has.
    """
    layers: Any = {} if num_layers is None else {"num_layers": num_layers}
    if family == "llamagen":
        made: Any = build_drafting_pipeline(**layers)
    elif family == "janus":
        made = JanusPipeline(janus_models.make(**layers), janus_models.processor())
    elif family == "emu3":
        processor = emu3_models.processor()
        processor.image_area = 24 * 24  # where a call names no size
        made = Emu3Pipeline(emu3_models.make(**layers), processor)
    elif family == "glm_image":
        pipe = glm_image_models.make(**layers)
        glm_image_models.mend(pipe)
        made = GlmImagePriorPipeline.from_pipe(pipe)
    else:
        description = token_image_models.tiny_family(family)
        layers = {} if num_layers is None else {"num_hidden_layers": num_layers}
        model, vqvae = (
            token_image_models.tiny_model(description, **layers),
            token_image_models.tiny_vqvae(description),
        )
        made = TokenImagePipeline(model, token_image_models.tiny_tokenizer(description), vqvae, description)
    made.set_progress_bar_config(disable=True)
    return made
