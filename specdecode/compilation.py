"""Passes as compiled code: one whole graph for every static shape, compiled once and used for every batch of it.

Belongs here: what every compiled pass needs around it: buckets of attention, inputs of one layout, how many graphs were
made and what that took. Does not belong here: the passes (targets have them, as a method that takes and
returns tensors), where compiled code is kept, and what a user is told.

How. A pass is a method of its owner over tensors alone. What differs between batches and steps (lengths, padding,
places, guidance) is tensors too, so that a graph made for one batch serves all of its shape. How far attention reaches
is the length of one more tensor, which the compiler is told may vary: so one graph serves every bucket, and on CUDA
each bucket is captured once. Nothing in a pass may wait for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache

_MOST_GRAPHS = 256
"""Of one pass in one process: widths times numbers of rows; torch's own limit of 8 is meant for accidents."""


class PassCompiler:
    """Compiles passes and counts what it compiled.

    Args:
        backend: of `torch.compile`, a name or a function.
        bucket: attention reads the cache in multiples of so many slots.
        on_compiled: called as `on_compiled(name, width, seconds)` after a pass was compiled: whose it is, and tokens a
            row. Seconds are those of the whole first call.

    Attributes:
        num_compiled: graphs so far; it grows when and only when something is compiled.
        seconds: what compiling took so far.

    Raises:
        ValueError: a bucket of less than two slots.
    """

    def __init__(
        self,
        backend: str | Callable[..., Any] = "inductor",
        bucket: int = 128,
        on_compiled: Callable[[str, int, float], None] | None = None,
    ) -> None:
        if bucket < 2:
            raise ValueError(f"bucket must be at least 2 slots, got {bucket}")
        self.backend, self.bucket, self.on_compiled = backend, bucket, on_compiled
        self.num_compiled, self.seconds = 0, 0.0
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._kinds: set[tuple[Any, ...]] = set()
        self._reaches: dict[tuple[int, torch.device], Tensor] = {}

    def round_up(self, length: int) -> int:
        """The least whole number of buckets that holds so many slots."""
        return -(-length // self.bucket) * self.bucket

    def check_width(self, max_draft_nodes: int) -> None:
        """Raises ValueError where a draft of so many tokens is wider than a bucket."""
        if max_draft_nodes > self.bucket:
            raise ValueError(
                f"compile_bucket must be at least the {max_draft_nodes} tokens of a draft, got {self.bucket}; give a "
                f"larger one or draft less"
            )

    def reach(self, length: int, most: int, device: torch.device) -> Tensor:
        """[S] int64: the slots that attention reads where `length` are in use, whole buckets of them up to `most`."""
        slots = min(self.round_up(length), most)
        key = slots, device
        if key not in self._reaches:
            index = torch.arange(slots, device=device)
            torch._dynamo.maybe_mark_dynamic(index, 0)
            self._reaches[key] = index
        return self._reaches[key]

    def run(
        self,
        name: str,
        owner: Any,
        method: Callable[..., Any],
        *tensors: Tensor,
        kv_cache: StaticKVCache,
        length: int,
    ) -> Any:
        """`method(owner, *tensors, reach)` as compiled code, where `reach` [S] int64 are the slots to attend to.

        Args:
            name: whose pass it is, such as "target", for whoever is told.
            owner: its `self`.
            method: of the owner's class, over tensors alone; it returns tensors or a dataclass of such.
            tensors: [B, n, ...]; the second dimension of the first one is the width.
            kv_cache: that the pass reads and writes.
            length: slots of it that are in use, new tokens included.

        Returns:
            What the method returns; on CUDA copies, since a captured graph writes to the same place every time.
        """
        kv_cache.pin()
        reach = self.reach(length, kv_cache.max_length, kv_cache.device)
        if method not in self._compiled:
            self._compiled[method] = torch.compile(
                method,
                fullgraph=True,
                backend=self.backend,
                options=self._options(tensors[0].device),
            )
        # Of one layout, and no two the same: both would be other graphs.
        laid_out = [each.clone(memory_format=torch.contiguous_format) for each in tensors]
        before, began = counters["stats"]["unique_graphs"], time.perf_counter()
        if tensors[0].is_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        kind = method, *(each.shape for each in laid_out)
        output = self._call(method, kind, owner, *laid_out, reach)
        if made := counters["stats"]["unique_graphs"] - before:
            seconds = time.perf_counter() - began
            self.num_compiled += made
            self.seconds += seconds
            if self.on_compiled is not None:
                self.on_compiled(name, tensors[0].shape[1], seconds)
        return copied(output) if tensors[0].is_cuda else output

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A small function of tensors and of constants that can be hashed, as compiled code: a graph for all sizes.

        For what happens between passes and is dozens of operations on little. These graphs are not counted.
        """
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, fullgraph=True, dynamic=True, backend=self.backend)

        def run(*given: Any) -> Any:
            # Whatever the sizes, a size of one is a case of its own.
            kind = (tuple(n == 1 for n in each.shape) if isinstance(each, Tensor) else each for each in given)
            return self._call(function, (function, *kind), *given)

        return run

    def _call(self, function: Callable[..., Any], kind: tuple[Any, ...], *given: Any) -> Any:
        """What is compiled of a function, which may become one graph more where a kind comes up for the first time."""
        if kind in self._kinds:
            return self._compiled[function](*given)
        self._kinds.add(kind)
        with torch._dynamo.config.patch(recompile_limit=_MOST_GRAPHS, accumulated_recompile_limit=_MOST_GRAPHS):
            return self._compiled[function](*given)

    def _options(self, device: torch.device) -> dict[str, Any] | None:
        """Of torch's own compiler: on CUDA graphs are captured, which is its mode "reduce-overhead"."""
        return {"triton.cudagraphs": True} if self.backend == "inductor" and device.type == "cuda" else None


def copied(output: Any) -> Any:
    """Copies of tensors, and of those that a tuple or a dataclass holds; whatever else there is as it is."""
    if isinstance(output, Tensor):
        return output.clone()
    if isinstance(output, tuple):
        return tuple(copied(each) for each in output)
    if is_dataclass(output) and not isinstance(output, type):
        return replace(output, **{field.name: copied(getattr(output, field.name)) for field in fields(output)})
    return output
