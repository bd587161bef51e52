"""Loading a pipeline for a command: from a user's options to a pipeline of any family, quietly.

Belongs here: the first steps of every command that draws pictures, and how each family is loaded. Does not belong here:
`from_pretrained` of a pipeline, which users of the library call. Only the family of the loaded model is imported.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import logging as diffusers_logging
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from specdecode.kernels.build import why_not
from vargen.base.errors import UserError
from vargen.base.precision import bfloat16_pays
from vargen.base.reading import reason_of
from vargen.checkpoints.options import OWN_QUANTIZATION, LoadingOptions, ModelOptions
from vargen.checkpoints.quantization import pipeline_quantization, quantization_config
from vargen.models.description import ModelDescription
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES
from vargen.pipelines.compilation import check_compiler
from vargen.pipelines.quantization import DECODER, DRAFTS, check_kernels, check_quantization

ImagePipeline = Any
"""A pipeline of any family. Its class is not imported here, so that one family alone is loaded."""

_PIPELINES = {
    "llamagen": ("llamagen", "LlamaGenPipeline"),
    "janus": ("janus", "JanusPipeline"),
    "glm_image": ("glm_image", "GlmImagePriorPipeline"),
    "emu3": ("emu3", "Emu3Pipeline"),
    **dict.fromkeys(TOKEN_IMAGE_FAMILIES, ("token_images", "TokenImagePipeline")),
}
"""The module of `vargen.pipelines` and its class, by family. Its `from_pretrained` takes a folder, `dtype`, and those
of `device_map`, `quantization_config` and `attn_implementation` that `ModelDescription.loading` names."""


def pipeline_class(family: str) -> Any:
    """The pipeline class of a family, by its name in `ModelDescription.family`."""
    module, name = _PIPELINES[family]
    return getattr(importlib.import_module(f"vargen.pipelines.{module}"), name)


def place_and_precision(device: str, dtype: str, published: str | None = None) -> tuple[str, str]:
    """Device and precision with "auto" resolved: a GPU in bfloat16 where there is one, else the CPU. That computes in
    bfloat16 if it has instructions for it and the model was `published` in it, else in float32. Raises UserError for a
    GPU that is not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.split(":")[0] == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r} is not available on this machine; use --device cpu")
    try:
        place = torch.device(device)
        torch.empty(1, device=place).cpu()  # fails on "meta", and on words that are no device
    except (RuntimeError, NotImplementedError, ImportError, AssertionError) as error:
        raise UserError(f"device {device!r} cannot be used ({reason_of(error)}); use --device cpu") from error
    if dtype == "auto":
        of_model = device != "cpu" or published == "bfloat16"
        dtype = "bfloat16" if of_model and bfloat16_pays(device) else "float32"
    return device, dtype


def loading_arguments(
    options: LoadingOptions, quantized: Mapping[str, str] | None = None, published: str | None = None
) -> tuple[dict[str, Any], str, str]:
    """Arguments for `from_pretrained`, the name of the device, and the name of the precision.

    Args:
        options: how to load a model.
        quantized: see `ModelDescription.quantized`; None: a model of transformers, quantized as a whole.
        published: see `place_and_precision`.

    Raises:
        UserError: a device is absent, quantization is not possible, or `VARGEN_KERNELS` is unknown.
    """
    check_kernels()
    device, dtype = place_and_precision(options.device, options.dtype, published)
    arguments: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if options.device_map is not None:
        arguments["device_map"] = options.device_map
    if options.attn_implementation is not None:
        arguments["attn_implementation"] = options.attn_implementation
    if (quantization := options.library_quantization) is not None:
        # A model that is quantized while it loads cannot be moved afterwards.
        if quantized:
            parts = {name: importlib.import_module(library) for name, library in quantized.items()}
            arguments["quantization_config"] = pipeline_quantization(quantization, parts)
            arguments.setdefault("device_map", device)
        else:
            arguments["quantization_config"] = quantization_config(quantization)
            arguments.setdefault("device_map", {"": device})
    return arguments, device, dtype


def load_pipeline(
    model: ModelDescription, options: ModelOptions, quiet: bool = False
) -> tuple[ImagePipeline, str, str]:
    """A pipeline on the device of the options, the name of that device, and the name of the transformer's precision.

    Args:
        model: of `vargen.models.description.open_model(options)`.
        options: how to load it.
        quiet: print nothing about precision and compiled passes.

    Raises:
        UserError: a device is absent, a file is damaged, an option does not fit the family, or there is no compiler.
    """
    arguments, device, dtype = loading_arguments(options, model.quantized, model.published_in)
    if options.dtype == "auto" and (device, dtype) == ("cpu", "bfloat16") and not quiet:
        what = f"{dtype}, in which {model.name or model.folder} was published and this processor multiplies"
        print(f"dtype: {what}; --dtype float32 draws the same on every processor", file=sys.stderr)
    arguments |= options.beside_model
    if options.compile:
        check_compiler(torch.device(device))  # before anything is loaded
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns of missing CUDA
    asked = {DECODER: options.quantization, DRAFTS: options.draft_quantization}
    own = {part: str(each) for part, each in asked.items() if each in OWN_QUANTIZATION}
    for quantization in own.values():
        check_quantization(quantization, torch.device(device), dtype)
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    with _device_errors(device):
        place = torch.device(device)
    pipeline = pipeline_class(model.family).from_pretrained(Path(model.folder), **arguments)
    if "device_map" not in arguments:
        with _device_errors(device):
            pipeline = pipeline.to(place)
    for part, quantization in own.items():
        pipeline.quantize(quantization, parts=[part])
    pipeline.set_progress_bar_config(disable=True)  # one bar over all batches instead
    if options.compile:
        pipeline.compile(bucket=options.compile_bucket, on_compiled=None if quiet else _tell)
        if not quiet and model.family == "llamagen" and device == "cpu" and why_not() is None:
            what = "LlamaGen's steps stay in vargen's own kernels on this CPU, which are faster than compiled code"
            print(f"compile: {what}; VARGEN_KERNELS=plain has them compiled", file=sys.stderr)
    return pipeline, device if "device_map" not in arguments else str(pipeline.device), dtype


def _tell(most_tokens: int, seconds: float) -> None:
    """Print a line to standard error, above a progress bar where there is one."""
    tokens = f"{most_tokens} token{'s' * (most_tokens > 1)}"
    tqdm.write(f"compiling a decoding step of at most {tokens}: {seconds:.0f} s", sys.stderr)


@contextmanager
def _device_errors(device: str) -> Iterator[None]:
    """Turn errors about a device into one line."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"device {device!r} cannot be used ({error}); use --device cpu") from error
