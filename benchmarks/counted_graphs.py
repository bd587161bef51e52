"""A backend of torch's compiler that runs graphs as they are and looks at what a captured graph must not have.

A captured graph has no host behind it: no operation may ask for a number, no size or number may be among the inputs,
and all inputs must lie where they lay when it was captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ASKS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "unique", "masked_select", "equal")
"""Names of operations whose result the host has to read, or whose shape depends on one."""


class CountedGraphs:
    """Give it as a backend.

    Attributes:
        graphs: how many were compiled.
        calls: how often graphs ran.
        faults: what no captured graph can do, one line each.
    """

    def __init__(self) -> None:
        self.graphs = self.calls = 0
        self.faults: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        """Take a graph."""
        self.graphs += 1
        number, addresses = self.graphs, []

        def run(*inputs: Any) -> Any:
            self.calls += 1
            self.faults += [f"graph {number} takes {each}" for each in inputs if not isinstance(each, torch.Tensor)]
            lie = [each.data_ptr() for each in inputs if isinstance(each, torch.Tensor)]
            if addresses and addresses[-1] != lie:
                moved = [i for i, (one, other) in enumerate(zip(addresses[-1], lie, strict=True)) if one != other]
                self.faults.append(f"graph {number}: inputs {moved} lie elsewhere at call {self.calls}")
            addresses.append(lie)
            with _Asking(self.faults):
                return graph(*inputs)

        return run


class _Asking(TorchDispatchMode):
    """Notes operations that ask for a number."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ASKS:
            self.faults.append(f"asks: {name}")
        return function(*given, **(named or {}))
