"""A tiny pipeline of any family over a model of transformers, by the family's name."""

from __future__ import annotations

from typing import Any

import emu3_models
import janus_models
import token_image_models

from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.token_images import TokenImagePipeline


def build(family: str) -> Any:
    """With whatever makes tokens of prompts and pixels of codes, and without a progress bar."""
    if family == "janus":
        made: Any = JanusPipeline(janus_models.make(), janus_models.processor())
    elif family == "emu3":
        made = Emu3Pipeline(emu3_models.make(), emu3_models.processor())
    else:
        description = token_image_models.tiny_family(family)
        model, vqvae = token_image_models.tiny_model(description), token_image_models.tiny_vqvae(description)
        made = TokenImagePipeline(model, token_image_models.tiny_tokenizer(description), vqvae, description)
    made.set_progress_bar_config(disable=True)
    return made
