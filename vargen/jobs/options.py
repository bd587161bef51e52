"""Checks that every command which draws tokens shares: guidance, temperature, filters, precision."""

from __future__ import annotations

import math
from typing import Protocol

from vargen.errors import UserError

DTYPES = ("auto", "float32", "bfloat16", "float16")


class SamplingOptions(Protocol):
    """Options as `vargen generate` and `vargen bench` have them."""

    @property
    def guidance_scale(self) -> float | None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float: ...
    @property
    def dtype(self) -> str: ...


def check_sampling(options: SamplingOptions) -> None:
    """Refuse what no model can use, naming it.

    Raises:
        UserError: a number out of range, or an unknown precision.
    """
    if options.guidance_scale is not None and not math.isfinite(options.guidance_scale):
        raise UserError(f"guidance_scale must be a finite number, got {options.guidance_scale}")
    if not (math.isfinite(options.temperature) and options.temperature >= 0):
        raise UserError(f"temperature must be at least 0, got {options.temperature}")
    if options.top_k is not None and options.top_k < 0:
        raise UserError(f"top_k must be at least 0 (0 keeps every token), got {options.top_k}")
    if not 0 < options.top_p <= 1:
        raise UserError(f"top_p must lie above 0 and at most at 1, got {options.top_p}")
    check_dtype(options.dtype)


def check_dtype(dtype: str) -> None:
    """Refuse an unknown precision. Raises UserError."""
    if dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
