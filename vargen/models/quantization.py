"""Quantization as transformers' `from_pretrained` takes it, from what a user writes.

Belongs here: bitsandbytes and torchao, by the names of their own fields. Does not belong here: quantizing, which
transformers does while it loads, and which names there are (`vargen.models.options`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import BitsAndBytesConfig, TorchAoConfig

from vargen.errors import UserError
from vargen.models.options import quantization_fields


def quantization_config(quantization: str | Mapping[str, Any]) -> BitsAndBytesConfig | TorchAoConfig:
    """The configuration for `from_pretrained(quantization_config=...)`.

    Args:
        quantization: as `ModelOptions.quantization`.

    Raises:
        UserError: an unknown name or field, a wrong value, or a package that is missing or too old.
    """
    settings = quantization_fields(quantization)
    method = settings.pop("quant_method")
    try:
        if method == "bitsandbytes":
            return BitsAndBytesConfig(**_known(settings, BitsAndBytesConfig))
        return _torchao_config(settings)
    except (ValueError, TypeError, ImportError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"quantization: {' '.join(str(error).split())}") from error


def _torchao_config(settings: dict[str, Any]) -> TorchAoConfig:
    import torchao.quantization

    name = settings.pop("quant_type", None)
    kind = getattr(torchao.quantization, str(name), None)
    if not (isinstance(kind, type) and str(name).endswith("Config")):
        raise UserError(
            f"quantization.quant_type must name a configuration of torchao.quantization, such as "
            f"Int8WeightOnlyConfig, got {name!r}"
        )
    own = _fields(TorchAoConfig) - {"quant_type"}
    of_kind = {field: settings.pop(field) for field in [*settings] if field not in own}
    return TorchAoConfig(kind(**_known(of_kind, kind)), **settings)


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
