"""The project's own kernels in tests: off, so that no test waits for a compiler, and on in some folders and where asked
for."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from specdecode.kernels import build
from specdecode.kernels.fast_pass import FastPass

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
def served(own_kernels: None, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every pass that may run in the kernels, whether it did."""
    found: list[bool] = []
    run = FastPass.run

    def counted(*arguments: Any, **named: Any) -> Any:
        result = run(*arguments, **named)
        found.append(result is not None)
        return result

    monkeypatch.setattr(FastPass, "run", counted)
    return found


def compiled_products(model: torch.nn.Module, x: torch.Tensor) -> int:
    """How many products a compiled model, whose numbers are those of the eager one, leaves to the kernels."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    assert torch.equal(torch.compile(model, backend=keep, fullgraph=True)(x), model(x))
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    return sum("few_row_linear" in str(target) for target in called)


AS_THE_PRODUCT = ("tests/specdecode/targets/", "tests/specdecode/text/", "tests/vargen/pipelines/")
"""Where the kernels are on, as for a user: what replaces them, or a module, there meets what it would meet."""


@pytest.fixture
def product_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were built before, whatever cache a test has; off where there are none."""
    path = _built_before()
    if path is not None:
        monkeypatch.setenv("VARGEN_KERNELS", "auto")
        monkeypatch.setattr(build, "_built", lambda: (path, None))


@functools.cache
def _built_before() -> Path | None:
    compiler = build._compiler()
    path = None if compiler is None else _BUILT / f"few_rows-{build._identity(compiler)}.so"
    return path if path is not None and path.is_file() else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests under `AS_THE_PRODUCT` have them; `own_kernels` and `torch_lines` are set after them, and count."""
    if (
        item.nodeid.startswith(AS_THE_PRODUCT)
        and "test_compilation" not in item.nodeid  # of graphs, which have no kernels
        and isinstance(item, pytest.Function)
    ):
        item.fixturenames.insert(0, "product_kernels")


@pytest.fixture
def torch_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of torch alone, also under VARGEN_KERNELS=auto: for faults that are planted in lines of torch."""
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
