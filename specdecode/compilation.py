"""Forward passes as compiled code: one whole graph for every static shape, compiled once and used for all batches.

Belongs here: what every compiled pass needs: buckets of attention, inputs of one layout, counts of graphs and seconds.
Does not belong here: the passes (methods of targets and draft heads), where compiled code is stored, and messages.

A pass is a method over tensors alone. What differs between batches and steps (lengths, padding, positions, guidance) is
a tensor, too, so that a graph serves all batches of its shape. The length of one more tensor says how far attention
reaches. The compiler knows that it varies: one graph serves every bucket, and on CUDA each bucket is captured once.
Nothing in a pass may wait for the device.
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
"""The most graphs of one pass: widths times numbers of rows. torch's own limit of 8 is meant for accidents."""


class PassCompiler:
    """Compiles passes and counts what it compiled.

    Args:
        backend: of `torch.compile`, a name or a function.
        bucket: attention reads a multiple of so many slots of the cache.
        on_compiled: called as `on_compiled(name, width, seconds)` after a pass was compiled: its owner's name, tokens
            per row, and seconds of the whole first call.

    Attributes:
        num_compiled: graphs so far; it grows only when something is compiled.
        seconds: of compiling so far.

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
        """The length rounded up to whole buckets."""
        return -(-length // self.bucket) * self.bucket

    def check_width(self, max_draft_nodes: int) -> None:
        """Raises ValueError where a draft is wider than a bucket."""
        if max_draft_nodes > self.bucket:
            raise ValueError(
                f"compile_bucket must be at least the {max_draft_nodes} tokens of a draft, got {self.bucket}; give a "
                f"larger one or draft less"
            )

    def reach(self, length: int, most: int, device: torch.device) -> Tensor:
        """[S] int64: the slots that attention reads if `length` are in use: whole buckets, up to `most`."""
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
            name: the owner's name for `on_compiled`, such as "target".
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
        # One layout, and no tensor twice: both would make other graphs.
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
        """A small function of tensors and hashable constants as compiled code, one graph for all sizes.

        For dozens of small operations between passes. These graphs are not counted.
        """
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, fullgraph=True, dynamic=True, backend=self.backend)

        def run(*given: Any) -> Any:
            # A size of one is a graph of its own.
            kind = (tuple(n == 1 for n in each.shape) if isinstance(each, Tensor) else each for each in given)
            return self._call(function, (function, *kind), *given)

        return run

    def _call(self, function: Callable[..., Any], kind: tuple[Any, ...], *given: Any) -> Any:
        """Call the compiled function; a kind that is new may add one graph."""
        if kind in self._kinds:
            return self._compiled[function](*given)
        self._kinds.add(kind)
        with torch._dynamo.config.patch(recompile_limit=_MOST_GRAPHS, accumulated_recompile_limit=_MOST_GRAPHS):
            return self._compiled[function](*given)

    def _options(self, device: torch.device) -> dict[str, Any] | None:
        """Options of torch's own compiler: on CUDA it captures graphs, as in its mode "reduce-overhead"."""
        return {"triton.cudagraphs": True} if self.backend == "inductor" and device.type == "cuda" else None


def copied(output: Any) -> Any:
    """Copies of tensors, also inside tuples and dataclasses; everything else as it is."""
    if isinstance(output, Tensor):
        return output.clone()
    if isinstance(output, tuple):
        return tuple(copied(each) for each in output)
    if is_dataclass(output) and not isinstance(output, type):
        return replace(output, **{field.name: copied(getattr(output, field.name)) for field in fields(output)})
    return output
