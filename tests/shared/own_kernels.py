"""The project's own kernels in tests: off everywhere, so that no test waits for a compiler, and on where asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("VARGEN_KERNELS", "plain")  # also of what tests start; VARGEN_KERNELS=auto runs all with them


@pytest.fixture(scope="session")
def _kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one test has built, the others find: workers of pytest-xdist too, whose folders lie side by side."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def own_kernels(monkeypatch: pytest.MonkeyPatch, _kernel_cache: Path) -> None:
    """Built once. Skips where there is no compiler."""
    from vargen.kernels.build import why_not

    monkeypatch.setenv("VARGEN_KERNELS", "auto")
    monkeypatch.setenv("VARGEN_CACHE", str(_kernel_cache))
    if reason := why_not():
        pytest.skip(reason)
