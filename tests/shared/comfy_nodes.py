"""ComfyUI's nodes, imported and executed by ComfyUI's documented contract."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

INTEGRATIONS = Path(__file__).parents[2] / "integrations"


@pytest.fixture(scope="session")
def nodes() -> Iterator[dict[str, Any]]:
    """Imported as ComfyUI does: from a file, under the folder's path with dots replaced."""
    folder = INTEGRATIONS / "comfyui"
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.NODE_CLASS_MAPPINGS) == set(module.NODE_DISPLAY_NAME_MAPPINGS)
    yield module.NODE_CLASS_MAPPINGS
    for imported in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[imported]


def execute(node: type, **given: Any) -> tuple[Any, ...]:
    """As ComfyUI's executor: widgets that are not connected have their defaults, and results are as many as types."""
    asked = {name: kind for part in node.INPUT_TYPES().values() for name, kind in part.items()}  # type: ignore[attr-defined]
    assert {*given} <= {*asked}
    for name, (kind, *options) in asked.items():
        if name not in given and (options or isinstance(kind, list)):
            given[name] = options[0]["default"] if options else kind[0]
    result = getattr(node(), node.FUNCTION)(**given)  # type: ignore[attr-defined]
    assert isinstance(result, tuple) and len(result) == len(node.RETURN_TYPES)  # type: ignore[attr-defined]
    return result


@pytest.fixture(scope="session")
def model(nodes: dict[str, Any], _saved_tiny_pipelines: dict[str, Path]) -> Any:
    """What the loading node gives for a tiny model."""
    return execute(nodes["VargenLoadModel"], model=str(_saved_tiny_pipelines["text"]))[0]
