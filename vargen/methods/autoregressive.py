"""Plain decoding: the method that every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.methods.base import Components, ImageMethodConfig, Method


@dataclass(frozen=True)
class AutoregressiveConfig(ImageMethodConfig):
    """Plain decoding: one forward pass of the target for every token."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain autoregressive decoding, one forward pass of the target per token"
    exact: ClassVar[bool] = True

    def _players(self, components: Components) -> Method:
        return Method()
