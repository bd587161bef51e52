"""The project's own kernels in tests: off everywhere, so that no test waits for a compiler, and on where asked for."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("VARGEN_KERNELS", "plain")  # also of what tests start; VARGEN_KERNELS=auto runs all with them


@pytest.fixture
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were built when vargen was installed, or by an earlier test. Skips where there is no compiler."""
    from specdecode.kernels.build import why_not

    monkeypatch.setenv("VARGEN_KERNELS", "auto")
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def torch_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of torch alone, also under VARGEN_KERNELS=auto: for faults that are planted in lines of torch."""
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
