"""What a model folder says of the pictures its model makes, before anything is loaded, whatever the family.

Belongs here: which family a folder holds, read from its JSON files without torch, and what commands ask of every one.
Does not belong here: whether its weights are whole, and loading (`vargen.pipelines.loading`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vargen.errors import UserError
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.models.model_folder import method_resolver, read_json


@dataclass(frozen=True)
class ModelDescription:
    """A model that makes pictures.

    Args:
        family: "llamagen" or "janus".
        grid_size: tokens a side.
        image_size: pixels a side.
        guidance_scale, top_k: what its pipeline takes where a call does not say.
        resolve_method: what a method's name and options stand for, as its pipeline's `resolve_method` says.
        num_classes: of a class-conditional model; None where it reads prompts.
    """

    family: str
    grid_size: int
    image_size: int
    guidance_scale: float | None
    top_k: int | None
    resolve_method: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]
    num_classes: int | None = None

    @property
    def num_tokens(self) -> int:
        """Of a picture."""
        return self.grid_size**2


def describe_model(folder: str | os.PathLike[str]) -> ModelDescription:
    """The model in a folder.

    Raises:
        UserError: a file is missing or damaged, or the family is not known here.
    """
    folder = Path(folder)
    if (folder / "model_index.json").is_file():
        file, key, families = "model_index.json", "_class_name", _OF_DIFFUSERS
    else:
        file, key, families = "config.json", "model_type", _OF_TRANSFORMERS
    found = read_json(folder / file).get(key)
    if found not in families:
        known = ", ".join((*_OF_DIFFUSERS, *_OF_TRANSFORMERS))
        raise UserError(f"model: {folder} holds a {found!r}, which cannot be drawn with; known: {known}")
    return families[found](folder)


def _describe_llamagen(folder: Path) -> ModelDescription:
    index, transformer = read_json(folder / "model_index.json"), read_json(folder / "transformer" / "config.json")
    return ModelDescription(
        family="llamagen",
        grid_size=transformer.get("grid_size", 16),
        image_size=index.get("image_size", 0),
        guidance_scale=index.get("default_guidance_scale"),
        top_k=index.get("default_top_k"),
        resolve_method=method_resolver(folder),
        num_classes=transformer.get("num_classes", 1000) if transformer.get("condition_type") == "class" else None,
    )


def _describe_janus(folder: Path) -> ModelDescription:
    config = read_json(folder / "config.json")
    vision, decoder = config.get("vision_config") or {}, config.get("vq_config") or {}
    # Where a file is silent: transformers' JanusVisionConfig, JanusVQVAEConfig, and what `generate` takes.
    grid_size = vision.get("image_size", 384) // vision.get("patch_size", 16)
    sampling = read_json(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    return ModelDescription(
        family="janus",
        grid_size=grid_size,
        image_size=grid_size * 2 ** (len(decoder.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1),
        guidance_scale=sampling.get("guidance_scale") or 5.0,
        top_k=50 if sampling.get("top_k") is None else sampling["top_k"],
        resolve_method=lambda name, options: resolve_method(name, options).resolved(grid_size**2),
    )


_Families = dict[str, Callable[[Path], ModelDescription]]
_OF_DIFFUSERS: _Families = {"LlamaGenPipeline": _describe_llamagen}
_OF_TRANSFORMERS: _Families = {"janus": _describe_janus}
