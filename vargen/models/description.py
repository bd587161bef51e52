"""What a model folder says of the pictures its model makes, before anything is loaded, whatever the family.

Belongs here: which family a folder holds, read from its JSON files without torch, and what commands ask of every one.
Does not belong here: whether its weights are whole, and loading (`vargen.pipelines.loading`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import UNTRAINED, resolve_method
from vargen.models.model_folder import method_resolver, read_json
from vargen.models.options import OWN_QUANTIZATION, ModelOptions
from vargen.models.picture_size import Grid, asked_grid
from vargen.models.source import SETTINGS, find_files, is_hub_name


@dataclass(frozen=True)
class ModelDescription:
    """A model that makes pictures.

    Args:
        folder: of its files.
        family: "llamagen", "janus", "glm_image" or "emu3".
        grid_size: tokens a side of the usual picture.
        image_size: pixels a side of it.
        guidance_scale, top_k, temperature, top_p: what its pipeline takes where a call does not say.
        resolve_method: what a method's name and options stand for, as its pipeline's `resolve_method` says.
        num_classes: of a class-conditional model; None where it reads prompts.
        loading: which of `ModelOptions.special` its loader can use.
        quantized: where it is a pipeline of several networks, those that quantization is for: by name the library of
            each.
        usual_methods: what a comparison compares that names no methods.
        draws_scenes: whether captions of the project's own world are prompts for it.
        keeps_methods: whether its folder has a place for settings of methods.
        name: for reports: on the hub, else that of the folder.
        beside_grid: places of drawn tokens that are none of the grid's: those of a preview, and ends of lines.
        grid: tokens down and across; None: the usual picture's.
        at_grid: the same model drawing another grid; None: it draws but one.
        pixels_from_tokens: whether tokens alone make pixels, without a prompt and noise.
    """

    folder: Path
    family: str
    grid_size: int
    image_size: int
    guidance_scale: float | None
    top_k: int | None
    resolve_method: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]
    temperature: float = 1.0
    top_p: float = 1.0
    num_classes: int | None = None
    loading: tuple[str, ...] = ("device_map", "quantization", "attn_implementation")
    quantized: Mapping[str, str] = field(default_factory=dict)
    usual_methods: str = UNTRAINED
    draws_scenes: bool = False
    keeps_methods: bool = False
    name: str = ""
    beside_grid: Collection[int] = ()
    pixels_from_tokens: bool = True
    grid: Grid | None = None
    at_grid: Callable[[Grid], ModelDescription] | None = None

    @property
    def rows_and_columns(self) -> Grid:
        """Tokens down and across."""
        return self.grid or (self.grid_size, self.grid_size)

    @property
    def num_tokens(self) -> int:
        """Of a picture."""
        rows, columns = self.rows_and_columns
        return rows * columns + len(self.beside_grid)

    @property
    def size(self) -> dict[str, int]:
        """Height and width in pixels by name, where another size than the usual was asked for; else empty."""
        if self.grid is None:
            return {}
        pixels = self.image_size // self.grid_size
        return {"height": self.grid[0] * pixels, "width": self.grid[1] * pixels}

    def sized(self, height: int | None = None, width: int | None = None, ratio: str | None = None) -> ModelDescription:
        """The same model drawing pictures of another size: of both sides in pixels, or of a ratio such as "16:9".

        Raises:
            UserError: a size that it does not draw.
        """
        if self.at_grid is None:
            for name, asked in (("height", height), ("width", width), ("ratio", ratio)):
                if asked not in (None, self.image_size):
                    raise UserError(
                        f"{name} cannot be chosen with a model of the family {self.family}: its pictures are "
                        f"{self.image_size} x {self.image_size}; leave it out"
                    )
            return self
        if height is None and width is None and ratio is None:
            return self
        grid = asked_grid(height, width, ratio, self.image_size**2, self.image_size // self.grid_size)
        return replace(self.at_grid(grid), folder=self.folder, name=self.name, grid=grid)

    def sampling(self, **asked: Any) -> dict[str, Any]:
        """Settings of sampling by name: those asked for, else (None) the model's own."""
        return {name: getattr(self, name) if value is None else value for name, value in asked.items()}


def open_model(options: ModelOptions) -> ModelDescription:
    """The model that options name, all its files fetched; of one on the hub that cannot be used, only small ones are.

    Raises:
        UserError: there is none, its family is not known here, or it cannot use an option.
    """
    model = describe_model(find_files(options.model, options.revision, SETTINGS), options.model)
    for name in options.special:
        if name not in model.loading:
            can = f"it takes {', '.join(model.loading)}" if model.loading else "leave it out"
            can = f"it takes {' or '.join(OWN_QUANTIZATION)}, on a CPU" if name == "quantization" else can
            asked = f"quantization {options.quantization}" if name == "quantization" else name
            raise UserError(f"{asked} cannot be used with a model of the family {model.family}; {can}")
    folder = find_files(options.model, options.revision)
    name = options.model if options.model is not None and is_hub_name(options.model) else folder.name
    return replace(model, folder=folder, name=name)


def describe_model(folder: str | os.PathLike[str], called: str | os.PathLike[str] | None = None) -> ModelDescription:
    """The model in a folder, which errors call as given.

    Raises:
        UserError: a file is missing or damaged, or the family is not known here.
    """
    folder = Path(folder)
    if (folder / "model_index.json").is_file():
        file, key, families = "model_index.json", "_class_name", _OF_DIFFUSERS
    else:
        file, key, families = "config.json", "model_type", _OF_TRANSFORMERS
    found = read_json(folder / file).get(key)
    if not isinstance(found, str) or found not in families:
        known = ", ".join((*_OF_DIFFUSERS, *_OF_TRANSFORMERS))
        raise UserError(f"model: {called or folder} holds a {found!r}, which cannot be drawn with; known: {known}")
    with reading(folder / file, "its values are none; copy the whole folder again"):
        return families[found](folder)


def _describe_llamagen(folder: Path) -> ModelDescription:
    index, transformer = read_json(folder / "model_index.json"), read_json(folder / "transformer" / "config.json")
    drafted = any(index.get("drafter") or ())  # a pipeline saved without one has [null, null] there
    return ModelDescription(
        folder=folder,
        family="llamagen",
        grid_size=transformer.get("grid_size", 16),
        image_size=index.get("image_size", 0),
        guidance_scale=index.get("default_guidance_scale"),
        top_k=index.get("default_top_k"),
        resolve_method=method_resolver(folder),
        num_classes=transformer.get("num_classes", 1000) if transformer.get("condition_type") == "class" else None,
        loading=(),
        usual_methods=f"{UNTRAINED},eagle-chain,likeness-quality" if drafted else UNTRAINED,
        draws_scenes=True,
        keeps_methods=True,
    )


def _describe_janus(folder: Path) -> ModelDescription:
    config = read_json(folder / "config.json")
    vision, decoder = config.get("vision_config") or {}, config.get("vq_config") or {}
    # Where a file is silent: transformers' JanusVisionConfig, JanusVQVAEConfig, and what `generate` takes.
    grid_size = vision.get("image_size", 384) // vision.get("patch_size", 16)
    sampling = _sampling(folder)
    return ModelDescription(
        folder=folder,
        family="janus",
        grid_size=grid_size,
        image_size=grid_size * 2 ** (len(decoder.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1),
        guidance_scale=sampling.get("guidance_scale") or 5.0,
        **_generate_settings(sampling),
        resolve_method=lambda name, options: resolve_method(name, options).resolved(grid_size**2),
    )


def _describe_glm_image(folder: Path, grid: Grid | None = None) -> ModelDescription:
    decoder = read_json(folder / "vae" / "config.json")
    sampling = _sampling(folder / "vision_language_encoder")
    # Where a file is silent: diffusers' GlmImagePipeline and AutoencoderKL, the processor's preview, and `generate`.
    sample_size = read_json(folder / "transformer" / "config.json").get("sample_size", 128)
    image_size = sample_size * 2 ** (len(decoder.get("block_out_channels", (64, 64, 64, 64))) - 1)
    grid_size = image_size // 32
    rows, columns = grid or (grid_size, grid_size)
    preview = int(math.sqrt(rows / columns) * 16) * int(math.sqrt(columns / rows) * 16)
    num_tokens = rows * columns + preview
    return ModelDescription(
        folder=folder,
        family="glm_image",
        grid_size=grid_size,
        image_size=image_size,
        guidance_scale=None,
        **_generate_settings(sampling),
        resolve_method=lambda name, options: resolve_method(name, options).resolved(num_tokens),
        quantized={"vision_language_encoder": "transformers", "transformer": "diffusers"},
        beside_grid=range(preview),
        pixels_from_tokens=False,
        at_grid=lambda grid: _describe_glm_image(folder, grid),
    )


def _describe_emu3(folder: Path, grid: Grid | None = None) -> ModelDescription:
    # Where a file is silent: transformers' Emu3VQVAEConfig and Emu3Processor, and what its authors draw with.
    decoder = read_json(folder / "config.json").get("vq_config") or {}
    pixels_a_code = 2 ** (len(decoder.get("channel_multiplier", (1, 2, 2, 4))) - 1)
    grid_size = round(720 / pixels_a_code)
    rows, columns = grid or (grid_size, grid_size)
    num_tokens = rows * (columns + 1) - 1
    sampling = _sampling(folder)
    return ModelDescription(
        folder=folder,
        family="emu3",
        grid_size=grid_size,
        image_size=grid_size * pixels_a_code,
        guidance_scale=sampling.get("guidance_scale") or 3.0,
        resolve_method=lambda name, options: resolve_method(name, options).resolved(num_tokens),
        beside_grid=range(columns, num_tokens, columns + 1),
        at_grid=lambda grid: _describe_emu3(folder, grid),
        **_generate_settings(sampling),
    )


def _sampling(folder: Path) -> dict[str, Any]:
    """A model's own settings of `generate`; empty where there are none."""
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _generate_settings(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of sampling as `generate` completes a model's own."""
    usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
    return {name: value if sampling.get(name) is None else sampling[name] for name, value in usual.items()}


_Families = dict[str, Callable[[Path], ModelDescription]]
_OF_DIFFUSERS: _Families = {"LlamaGenPipeline": _describe_llamagen, "GlmImagePipeline": _describe_glm_image}
_OF_TRANSFORMERS: _Families = {"janus": _describe_janus, "emu3": _describe_emu3}
