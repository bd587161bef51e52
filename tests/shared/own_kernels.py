"""The project's own kernels in tests: off everywhere, so that no test waits for a compiler, and on where asked for."""

from __future__ import annotations

import os

import pytest

from specdecode.kernels import build

os.environ.setdefault("VARGEN_KERNELS", "plain")  # also of what tests start; VARGEN_KERNELS=auto runs all with them

_BUILT = build.cache_folder() / "kernels"
"""Where installing vargen has put them, read before a test sets a cache of its own."""


@pytest.fixture
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were built when vargen was installed, or by an earlier test, also for a test with a cache of its own:
    building takes half a minute. Skips where there is no compiler."""
    monkeypatch.setenv("VARGEN_KERNELS", "auto")
    wanted = build.cache_folder() / "kernels"
    if not wanted.exists():
        with monkeypatch.context() as patch:
            patch.setenv("VARGEN_CACHE", str(_BUILT.parent))
            build.library()
        if wanted != _BUILT and _BUILT.is_dir():
            wanted.parent.mkdir(parents=True, exist_ok=True)
            wanted.symlink_to(_BUILT)
    if reason := build.why_not():
        pytest.skip(reason)


@pytest.fixture
def torch_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of torch alone, also under VARGEN_KERNELS=auto: for faults that are planted in lines of torch."""
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
