"""Triton's kernels in tests, without a GPU: by Triton's interpreter, on tensors of a CPU."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def interpreted() -> ModuleType:
    """A second copy of `specdecode.kernels.judging_gpu`, which the interpreter runs. Skips where triton is missing."""
    triton: Any = pytest.importorskip("triton", reason="triton is not installed")
    found = importlib.util.find_spec("specdecode.kernels.judging_gpu")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        found.loader.exec_module(module)
    return module


@pytest.fixture
def by_interpreter(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Triton's kernels take what a GPU's would."""
    from specdecode.kernels import judging

    monkeypatch.setattr(judging, "gpu", interpreted)
    return interpreted
