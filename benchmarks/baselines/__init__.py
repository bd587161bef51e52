"""Methods for videos that only the papers' tables need, as baselines beside vargen's own. None of them is for users.

Belongs here: FastV, SparseVLM, STD and transformers' own assisted generation, a file each, and reading their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baselines.assisted import AssistedConfig
from baselines.lossy import FastVConfig, SparseVLMConfig
from baselines.sparse_to_dense import SparseToDenseConfig
from vargen.methods.base import configure
from vargen.methods.catalogue import resolve_method
from vargen.video.methods.base import VideoMethodConfig

METHODS: dict[str, type[VideoMethodConfig]] = {
    method.name: method for method in (SparseToDenseConfig, FastVConfig, SparseVLMConfig, AssistedConfig)
}


def resolve_with_baselines(name: str, options: Mapping[str, Any] | None = None) -> VideoMethodConfig:
    """The settings of a baseline, or of a method that vargen knows. Raises UserError as `resolve_method` does."""
    if name in METHODS:
        return configure(METHODS[name], options or {})
    return resolve_method(name, options, task="video")
