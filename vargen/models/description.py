"""The description of a picture model of any family, read from the JSON files of its folder.

Belongs here: the family and the properties that commands use, without torch. Does not belong here: checks of weights
(`vargen.checkpoints.model_folder`), and loading (`vargen.pipelines.loading`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vargen.base.bounds import MAX_PIXELS, check_number
from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.checkpoints.model_folder import read_json
from vargen.checkpoints.options import OWN_QUANTIZATION, ModelOptions
from vargen.checkpoints.source import SETTINGS, find_files, is_hub_name
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import UNTRAINED, check_own_settings, resolve_method
from vargen.models.picture_size import Grid, asked_grid, grid_of_ratio
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES, check_not_refused, find_family, recognised
from vargen.models.token_images.description import References, Sizes, TokenImageFamily
from vargen.models.token_images.emu3 import EMU3


@dataclass(frozen=True)
class ModelDescription:
    """A model that makes pictures.

    Args:
        folder: of its files.
        family: "llamagen", "janus", "glm_image", "emu3", or one of `vargen.models.token_images.catalogue`.
        grid_size: tokens along a side of the default picture.
        image_size: pixels along a side of it.
        guidance_scale, top_k, temperature, top_p: defaults of its pipeline.
        own_methods: settings of methods that its folder holds, by method; None: a folder of its family holds none.
        num_classes: of a class-conditional model; None if it reads prompts.
        loading: names in `SamplingOptions.special` that it supports.
        quantized: for a pipeline of several networks, those that are quantized, with the library of each.
        usual_methods: methods of a comparison that names none.
        draws_scenes: whether it draws captions of rendered scenes.
        keeps_methods: whether its folder can hold settings of methods.
        name: for reports: on the hub, else that of the folder.
        beside_grid: places of drawn tokens outside the grid: those of a preview, and ends of lines.
        grid: tokens down and across; None: those of the default picture.
        at_grid: gives the same model drawing another grid; None: it draws one grid only.
        sizes: which grids it draws; None: any that `at_grid` takes.
        pixels_from_tokens: whether pixels follow from tokens alone, without a prompt and noise.
        references: pictures in its prompts; a text: why it reads none.
    """

    folder: Path
    family: str
    grid_size: int
    image_size: int
    guidance_scale: float | None
    top_k: int | None
    temperature: float = 1.0
    top_p: float = 1.0
    own_methods: Mapping[str, Mapping[str, Any]] | None = None
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
    sizes: Sizes | None = None
    references: References | str = "it learned to draw from words alone"

    @property
    def rows_and_columns(self) -> Grid:
        """Tokens down and across."""
        return self.grid or (self.grid_size, self.grid_size)

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture."""
        rows, columns = self.rows_and_columns
        return rows * columns + len(self.beside_grid)

    @property
    def published_in(self) -> str | None:
        """Precision of its weights as its config.json tells; None where that is silent, as a LlamaGen's."""
        for place in (self.folder, self.folder / "vision_language_encoder"):
            if (place / "config.json").is_file():
                config = read_json(place / "config.json")
                return config.get("dtype") or config.get("torch_dtype")
        return None

    def resolve_method(self, name: str, options: Mapping[str, Any] | None = None) -> ImageMethodConfig:
        """As `resolve_method` of its pipeline. Raises UserError likewise."""
        return resolve_method(name, options, self.own_methods).resolved(self.num_tokens)

    @property
    def size(self) -> dict[str, int]:
        """Height and width in pixels by name if they differ from the default; else empty."""
        if self.grid is None:
            return {}
        pixels = self.image_size // self.grid_size
        return {"height": self.grid[0] * pixels, "width": self.grid[1] * pixels}

    def sized(self, height: int | None = None, width: int | None = None, ratio: str | None = None) -> ModelDescription:
        """The same model drawing another size, given by both sides in pixels or a ratio such as "16:9". Raises
        UserError for a size that it does not draw."""
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
        if self.sizes is not None:
            grid = self.sizes.grid(height, width, ratio)
        else:
            side = self.image_size // self.grid_size
            of_ratio = partial(grid_of_ratio, area=self.image_size**2, pixels_a_token=side)
            grid = asked_grid(height, width, ratio, side, of_ratio)
        return self._at(grid)

    def _at(self, grid: Grid) -> ModelDescription:
        assert self.at_grid is not None
        return replace(self.at_grid(grid), folder=self.folder, name=self.name, grid=grid)

    def reading(self, sizes: Sequence[tuple[int, int]]) -> ModelDescription:
        """The same model with pictures of these widths and heights in its prompts: it draws in the size of the last
        one, unless it was sized. Raises UserError for a family that reads none, or for a picture of another shape."""
        if isinstance(self.references, str):
            raise UserError(
                f"reference_images cannot be used with a model of the family {self.family}: {self.references}; emu3_5 "
                f"and anole read them"
            )
        assert self.sizes is not None
        grids = [self.references.grid(size, self.sizes) for size in sizes]
        made = self if self.grid is not None else self._at(grids[-1])
        return replace(made, guidance_scale=self.references.scale or self.guidance_scale)

    def sampling(self, **asked: Any) -> dict[str, Any]:
        """Settings of sampling by name: those given, or the model's own in place of None."""
        return {name: getattr(self, name) if value is None else value for name, value in asked.items()}


def open_model(options: ModelOptions) -> ModelDescription:
    """The model that options name, with all its files fetched, unless its small files show that it cannot be used.

    Raises:
        UserError: there is no such model, its family is unknown, or it does not support an option.
    """
    model = describe_model(find_files(options.model, options.revision, SETTINGS), options.model, options.family)
    for name in options.special:
        if name not in model.loading:
            can = f"it takes {', '.join(model.loading)}" if model.loading else "leave it out"
            can = "leave it out" if name == "negative_prompt" else can
            can = f"it takes {' or '.join(OWN_QUANTIZATION)}, on a CPU" if name == "quantization" else can
            asked = f"quantization {options.quantization}" if name == "quantization" else name
            raise UserError(f"{asked} cannot be used with a model of the family {model.family}; {can}")
    folder = find_files(options.model, options.revision)
    name = options.model if options.model is not None and is_hub_name(options.model) else folder.name
    return replace(model, folder=folder, name=name)


def describe_model(
    folder: str | os.PathLike[str], called: str | os.PathLike[str] | None = None, family: str | None = None
) -> ModelDescription:
    """The model in a folder.

    Args:
        folder: of its files.
        called: its name in errors.
        family: of a model that draws token by token, where config.json fits several.

    Raises:
        UserError: a file is missing or damaged, or the family is unknown.
    """
    folder = Path(folder)
    if (folder / "model_index.json").is_file():
        file, key, families = "model_index.json", "_class_name", _OF_DIFFUSERS
    else:
        file, key, families = "config.json", "model_type", _OF_TRANSFORMERS
    content = read_json(folder / file)
    found = content.get(key)
    if file == "config.json":
        check_not_refused(content, called or folder)
        if recognised(content) or (family is not None and found not in families):
            return _describe_token_images(find_family(family, content, called or folder), folder)
    if not isinstance(found, str) or found not in families:
        known = ", ".join((*_OF_DIFFUSERS, *_OF_TRANSFORMERS, *TOKEN_IMAGE_FAMILIES))
        raise UserError(f"model: {called or folder} holds a {found!r}, which cannot be drawn with; known: {known}")
    with reading(folder / file, "its values are none; copy the whole folder again"):
        return families[found](folder)


def _describe_llamagen(folder: Path) -> ModelDescription:
    index, transformer = read_json(folder / "model_index.json"), read_json(folder / "transformer" / "config.json")
    drafted = any(index.get("drafter") or ())  # [null, null] in a pipeline saved without one
    own, grid_size = index.get("methods") or {}, transformer.get("grid_size", 16)
    by_class = transformer.get("condition_type") == "class"
    check_own_settings(own, f"{folder / 'model_index.json'}: methods")
    check_number(f"{folder / 'transformer' / 'config.json'}: grid_size", grid_size, 1, MAX_PIXELS)
    return ModelDescription(
        folder=folder,
        family="llamagen",
        grid_size=grid_size,
        image_size=index.get("image_size", 0),
        guidance_scale=index.get("default_guidance_scale"),
        top_k=index.get("default_top_k"),
        temperature=index.get("default_temperature", 1.0),
        own_methods=own,
        num_classes=transformer.get("num_classes", 1000) if by_class else None,
        loading=("guided_tokens",) if by_class else ("negative_prompt", "guided_tokens"),
        usual_methods=f"{UNTRAINED},eagle-chain,likeness-quality" if drafted else UNTRAINED,
        draws_scenes=True,
        keeps_methods=True,
    )


def _describe_janus(folder: Path) -> ModelDescription:
    config = read_json(folder / "config.json")
    vision, decoder = config.get("vision_config") or {}, config.get("vq_config") or {}
    # Defaults as in transformers' JanusVisionConfig, JanusVQVAEConfig and `generate`.
    grid_size = vision.get("image_size", 384) // vision.get("patch_size", 16)
    sampling = _sampling(folder)
    return ModelDescription(
        folder=folder,
        family="janus",
        grid_size=grid_size,
        image_size=grid_size * 2 ** (len(decoder.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1),
        guidance_scale=sampling.get("guidance_scale") or 5.0,
        loading=(*ModelDescription.loading, "negative_prompt", "guided_tokens", "tp_plan"),
        references="its authors say that it cannot edit untuned",
        **_generate_settings(sampling),
    )


def _describe_glm_image(folder: Path, grid: Grid | None = None) -> ModelDescription:
    decoder = read_json(folder / "vae" / "config.json")
    sampling = _sampling(folder / "vision_language_encoder")
    # Defaults as in diffusers' GlmImagePipeline and AutoencoderKL, the processor's preview, and `generate`.
    sample_size = read_json(folder / "transformer" / "config.json").get("sample_size", 128)
    image_size = sample_size * 2 ** (len(decoder.get("block_out_channels", (64, 64, 64, 64))) - 1)
    grid_size = image_size // 32
    rows, columns = grid or (grid_size, grid_size)
    preview = int(math.sqrt(rows / columns) * 16) * int(math.sqrt(columns / rows) * 16)
    return ModelDescription(
        folder=folder,
        family="glm_image",
        grid_size=grid_size,
        image_size=image_size,
        guidance_scale=None,
        **_generate_settings(sampling),
        quantized={"vision_language_encoder": "transformers", "transformer": "diffusers"},
        beside_grid=range(preview),
        pixels_from_tokens=False,
        at_grid=lambda grid: _describe_glm_image(folder, grid),
    )


def _describe_emu3(folder: Path) -> ModelDescription:
    # Defaults as in transformers' Emu3VQVAEConfig and Emu3Processor, and the authors' guidance.
    decoder = read_json(folder / "config.json").get("vq_config") or {}
    pixels_a_code = 2 ** (len(decoder.get("channel_multiplier", (1, 2, 2, 4))) - 1)
    side = round(720 / pixels_a_code)
    sampling = _sampling(folder)
    guidance = replace(EMU3.guidance, scale=sampling.get("guidance_scale") or EMU3.guidance.scale)
    family = replace(
        EMU3, sizes=Sizes(pixels_a_code, usual=(side, side)), guidance=guidance, **_generate_settings(sampling)
    )
    return replace(
        _describe_token_images(family, folder),
        loading=(*ModelDescription.loading, "negative_prompt", "guided_tokens", "tp_plan"),
    )


def _describe_token_images(family: TokenImageFamily, folder: Path, grid: Grid | None = None) -> ModelDescription:
    grid_size = family.sizes.usual[0]
    negative = ("negative_prompt",) if "{prompt}" in family.null_prompt else ()
    return ModelDescription(
        folder=folder,
        family=family.name,
        grid_size=grid_size,
        image_size=grid_size * family.sizes.pixels_a_code,
        guidance_scale=family.guidance.scale,
        temperature=family.temperature,
        top_k=family.top_k,
        top_p=family.top_p,
        loading=(*ModelDescription.loading, "family", "tokenizer", "vqvae", *negative, "guided_tokens", "tp_plan"),
        beside_grid=family.row_ends(grid or family.sizes.usual),
        at_grid=lambda grid: _describe_token_images(family, folder, grid),
        sizes=family.sizes,
        references=family.references,
    )


def _sampling(folder: Path) -> dict[str, Any]:
    """A model's own settings of `generate`, maybe empty."""
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def _generate_settings(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """A model's own settings of sampling, completed by the defaults of `generate`."""
    usual = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
    return {name: value if sampling.get(name) is None else sampling[name] for name, value in usual.items()}


_Families = dict[str, Callable[[Path], ModelDescription]]
_OF_DIFFUSERS: _Families = {"LlamaGenPipeline": _describe_llamagen, "GlmImagePipeline": _describe_glm_image}
_OF_TRANSFORMERS: _Families = {"janus": _describe_janus, "emu3": _describe_emu3}
