"""Reads the words and phrases of captions, which lie beside this file as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vargen.base.reading import read_yaml


def read_words(name: str) -> dict[str, Any]:
    """What NAME.yaml holds, lists as tuples."""
    return {key: _frozen(value) for key, value in read_yaml(Path(__file__).with_name(f"{name}.yaml")).items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
