"""Quantization that a user asks for: configurations for `from_pretrained`, and the project's own rounded layers.

Belongs here: bitsandbytes and torchao, by the names of their own fields, and errors for users. Does not belong here:
rounding (these libraries do it while they load; `specdecode.kernels.quantized`), and the names of quantizations
(`vargen.checkpoints.options`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import transformers
from diffusers import PipelineQuantizationConfig

from specdecode.kernels.quantized import quantize_linears
from vargen.base.errors import UserError
from vargen.checkpoints.options import quantization_fields


def quantize_layers(module: Any, quantization: str) -> None:
    """`specdecode.kernels.quantized.quantize_linears`. Raises UserError where no layer can be quantized."""
    try:
        quantize_linears(module, quantization)
    except ValueError as error:
        raise UserError(str(error)) from error


def quantization_config(quantization: str | Mapping[str, Any], library: ModuleType = transformers) -> Any:
    """The configuration for `from_pretrained(quantization_config=...)`.

    Args:
        quantization: as `ModelOptions.quantization`.
        library: transformers, or diffusers: each has a BitsAndBytesConfig and a TorchAoConfig of its own.

    Raises:
        UserError: an unknown name or field, a wrong value, or a package that is missing or too old.
    """
    settings = quantization_fields(quantization)
    method = settings.pop("quant_method")
    try:
        if method == "bitsandbytes":
            return library.BitsAndBytesConfig(**_known(settings, library.BitsAndBytesConfig))
        return _torchao_config(settings, library.TorchAoConfig)
    except (ValueError, TypeError, ImportError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"quantization: {' '.join(str(error).split())}") from error


def pipeline_quantization(
    quantization: str | Mapping[str, Any], parts: Mapping[str, ModuleType]
) -> PipelineQuantizationConfig:
    """The same for a pipeline of diffusers; `parts` are the components to quantize, with the library of each. Raises
    UserError as `quantization_config`."""
    return PipelineQuantizationConfig(
        quant_mapping={name: quantization_config(quantization, library) for name, library in parts.items()}
    )


def _torchao_config(settings: dict[str, Any], config: type) -> Any:
    import torchao.quantization

    name = settings.pop("quant_type", None)
    kind = getattr(torchao.quantization, str(name), None)
    if not (isinstance(kind, type) and str(name).endswith("Config")):
        raise UserError(
            f"quantization.quant_type must name a configuration of torchao.quantization, such as "
            f"Int8WeightOnlyConfig, got {name!r}"
        )
    own = _fields(config) - {"quant_type"}
    of_kind = {field: settings.pop(field) for field in [*settings] if field not in own}
    return config(kind(**_known(of_kind, kind)), **settings)


def _fields(kind: type) -> set[str]:
    return {
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }


def _known(settings: dict[str, Any], kind: type) -> dict[str, Any]:
    """The same settings. Raises UserError for one that a configuration does not have; transformers only logs it."""
    known = _fields(kind)
    for name in settings:
        if name not in known:
            raise UserError(f"quantization: {kind.__name__} has no {name!r}; it has: {', '.join(sorted(known))}")
    return settings
