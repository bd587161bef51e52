"""The nodes: load a model, draw with a method, show which pass drew which token, compare two methods.

Belongs here: ComfyUI's names for vargen's arguments and results. Does not belong here: anything that draws.

An IMAGE of ComfyUI is float32 [B, H, W, 3] in [0, 1], which is vargen's `output_type="np"` as a tensor.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from vargen.base.bounds import (
    MAX_BATCH_SIZE,
    MAX_GUIDANCE_SCALE,
    MAX_PIXELS,
    MAX_SEED,
    MAX_TOP_K,
    TEMPERATURES,
    check_number,
    check_text,
)
from vargen.base.errors import UserError
from vargen.base.resources import shipped_models
from vargen.checkpoints.options import DTYPES, ModelOptions
from vargen.drawing.trace_image import draw_trace
from vargen.methods.catalogue import find_presets, methods_for, resolve_method
from vargen.models.description import ModelDescription, open_model
from vargen.pipelines.loading import load_pipeline

CATEGORY = "vargen"
_EXACT = {name: resolve_method(name).exact for name in (*methods_for("image"), *find_presets("image"))}
METHODS = sorted(_EXACT, key=lambda name: (name != "jacobi", not _EXACT[name]))
"""The default, then exact ones, then relaxed ones."""
METHOD = {"tooltip": f"relaxed, so that quality may drop: {', '.join(name for name in METHODS if not _EXACT[name])}"}
SHIPPED = shipped_models() or [""]
PROMPT = ("STRING", {"multiline": True, "default": "a large green cone on grass"})
MOST = 64
"""The most pictures of one node."""
SEED = ("INT", {"default": 0, "min": 0, "max": MAX_SEED - MAX_BATCH_SIZE})
GUIDANCE = (
    "FLOAT",
    {"default": 0.0, "min": 0.0, "max": MAX_GUIDANCE_SCALE, "step": 0.5, "tooltip": "0: the model's own"},
)
OWN = {"tooltip": "-1: the model's own"}
SAMPLING = {
    "negative_prompt": ("STRING", {"multiline": True, "default": ""}),
    "temperature": ("FLOAT", {"default": -1.0, "min": -1.0, "max": TEMPERATURES[1], "step": 0.05, **OWN}),
    "top_k": ("INT", {"default": -1, "min": -1, "max": MAX_TOP_K, **OWN}),
    "top_p": ("FLOAT", {"default": -1.0, "min": -1.0, "max": 1.0, "step": 0.05, **OWN}),
}
EDITED = {
    "image": ("IMAGE",),
    "mask": ("MASK",),
    "start_rows": ("INT", {"default": 0, "min": 0, "max": MAX_PIXELS, "tooltip": "so many rows of codes stay"}),
}


def _drawing(**between: Any) -> dict[str, Any]:
    """The inputs of a node that draws."""
    required = {"model": ("VARGEN_MODEL",), "prompt": PROMPT, **between, "guidance_scale": GUIDANCE}
    return {"required": required, "optional": SAMPLING}


class Model:
    """A loaded pipeline and the description of its model."""

    def __init__(self, description: ModelDescription, pipeline: Any) -> None:
        self.description, self.pipeline = description, pipeline

    def draw(
        self,
        prompt: str,
        method: str,
        seed: int,
        count: int,
        guidance_scale: float,
        sampling: Mapping[str, Any],
        edited: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pictures with seeds from `seed` on. Raises UserError for an argument that cannot be used."""
        check_number("seed", seed, 0, MAX_SEED - MAX_BATCH_SIZE)
        check_number("count", count, 1, MOST)
        return self.pipeline(
            prompt,
            method=method,
            num_images_per_prompt=count,
            generator=[torch.Generator().manual_seed(seed + number) for number in range(count)],
            guidance_scale=guidance_scale or None,
            **{name: value for name, value in sampling.items() if value not in (-1, "")},
            **(edited or {}),
            output_type="np",
            callback_on_step_end=_watch(self.description.num_tokens),
        )


def _watch(num_tokens: int) -> Callable[..., None] | None:
    """A callback that moves ComfyUI's progress bar and obeys its Stop button; None outside of ComfyUI."""
    if importlib.util.find_spec("comfy") is None:
        return None
    import comfy.model_management
    import comfy.utils

    bar = comfy.utils.ProgressBar(num_tokens)

    def step(pipeline: Any, number: int, lengths: torch.Tensor, tensors: dict[str, Any]) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        bar.update_absolute(int(lengths.min()), num_tokens)

    return step


class LoadModel:
    """A model by folder, name on the hub, or the name of a shipped one; empty: the shipped default."""

    CATEGORY, FUNCTION = CATEGORY, "load"
    RETURN_TYPES = ("VARGEN_MODEL",)
    DESCRIPTION = __doc__

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"model": ("STRING", {"default": "", "tooltip": "a folder, or a name on the hub"})},
            "optional": {
                "device": (["auto", "cpu", "cuda"],),
                "dtype": ([*DTYPES],),
                "shipped": (SHIPPED, {"default": SHIPPED[0], "tooltip": "taken where model is empty"}),
            },
        }

    def load(self, model: str, device: str = "auto", dtype: str = "auto", shipped: str | None = None) -> tuple[Model]:
        check_text("model", model)
        options = ModelOptions(model=model.strip() or shipped or None, device=device, dtype=dtype)
        description = open_model(options)
        if description.num_classes is not None or not description.pixels_from_tokens:
            raise UserError(
                f"model: {description.name} is not served by these nodes, which draw prompts by tokens alone"
            )
        return (Model(description, load_pipeline(description, options, quiet=True)[0]),)


class Draw:
    """Pictures of a prompt by a decoding method. The same seed gives the same picture."""

    CATEGORY, FUNCTION = CATEGORY, "draw"
    RETURN_TYPES = ("IMAGE", "VARGEN_DRAWN", "INT")
    RETURN_NAMES = ("images", "drawn", "passes")
    DESCRIPTION = __doc__

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        count = ("INT", {"default": 1, "min": 1, "max": MOST})
        asked = _drawing(method=(METHODS, {"default": "jacobi", **METHOD}), seed=SEED, count=count)
        return {**asked, "optional": {**asked["optional"], **EDITED}}

    def draw(
        self,
        model: Model,
        prompt: str,
        method: str,
        seed: int,
        count: int = 1,
        guidance_scale: float = 0.0,
        image: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        start_rows: int = 0,
        **sampling: Any,
    ) -> tuple[torch.Tensor, tuple[Model, Any], int]:
        edited: dict[str, Any] = {"start_rows": start_rows or None}
        for name, value in (("image", image), ("mask", mask)):
            if value is not None and len(value) != 1:
                raise UserError(f"{name} must be one picture, got a batch of {len(value)}")
        if image is not None:
            edited |= {"image": image[0].permute(2, 0, 1)[:3], "paste_back": True}
        if mask is not None:
            edited["mask_image"] = mask[0]
        output = model.draw(prompt, method, seed, count, guidance_scale, sampling, edited)
        return torch.from_numpy(output.images), (model, output), output.trace.target_passes


class Trace:
    """For each picture, which forward pass drew which token, and how."""

    CATEGORY, FUNCTION = CATEGORY, "trace"
    RETURN_TYPES = ("IMAGE",)
    OUTPUT_IS_LIST = (True,)
    DESCRIPTION = __doc__

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"drawn": ("VARGEN_DRAWN",)}}

    def trace(self, drawn: tuple[Model, Any]) -> tuple[list[torch.Tensor]]:
        model, output = drawn
        grid, beside = model.description.rows_and_columns, model.description.beside_grid
        sheets = []
        for row, pixels in enumerate(output.images):
            picture = Image.fromarray((pixels * 255).round().astype(np.uint8))
            sheet = np.asarray(draw_trace(picture, output.trace, row, grid, beside), dtype=np.float32) / 255
            sheets.append(torch.from_numpy(sheet)[None])
        return (sheets,)


class Compare:
    """The same prompt and seed by two methods: both pictures, and a line about each."""

    CATEGORY, FUNCTION = CATEGORY, "compare"
    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("images", "report")
    DESCRIPTION = __doc__

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        first, second = ((METHODS, {"default": name, **METHOD}) for name in ("ar", "jacobi"))
        return _drawing(first_method=first, second_method=second, seed=SEED)

    def compare(
        self,
        model: Model,
        prompt: str,
        first_method: str,
        second_method: str,
        seed: int,
        guidance_scale: float = 0.0,
        **sampling: Any,
    ) -> tuple[torch.Tensor, str]:
        methods = (first_method, second_method)
        outputs = [model.draw(prompt, method, seed, 1, guidance_scale, sampling) for method in methods]
        lines = [
            f"{method}: {output.trace.target_passes} forward passes, {sum(output.trace.phase_seconds.values()):.2f} s"
            for method, output in zip(methods, outputs, strict=True)
        ]
        same = torch.equal(outputs[0].tokens, outputs[1].tokens)
        lines.append("the same tokens" if same else "other tokens")
        return torch.cat([torch.from_numpy(output.images) for output in outputs]), "\n".join(lines)


NODE_CLASS_MAPPINGS = {
    "VargenLoadModel": LoadModel,
    "VargenDraw": Draw,
    "VargenTrace": Trace,
    "VargenCompare": Compare,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "VargenLoadModel": "Load model (vargen)",
    "VargenDraw": "Draw pictures (vargen)",
    "VargenTrace": "Trace of a picture (vargen)",
    "VargenCompare": "Compare two methods (vargen)",
}
