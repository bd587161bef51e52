"""The memory that a pipeline keeps from one batch for the next, and how its forward passes are computed.

Belongs here: memory, loaded models and measured costs that the next batch uses again; no picture depends on them. Does
not belong here: a cache of keys and values itself (`vargen.drafters.kept_caches`), and compiling or rounding layers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from specdecode.kernels.quantized import quantization_of
from vargen.base.errors import UserError
from vargen.checkpoints.offloading import has_hooks
from vargen.checkpoints.quantization import quantize_layers
from vargen.drafters.kept_caches import KeptCaches
from vargen.models.draft_sizes import MeasuredDraftSizes

if TYPE_CHECKING:
    from specdecode.graphs.static_step import StepCompiler
    from specdecode.targets.transformers import TransformersTarget


@dataclass
class BatchMemory:
    """The memory that the last batch wrote to and the next one writes to again; of one batch at a time.

    Args:
        caches: keys and values of targets and of networks that draft.
        target, draft_model: of the last batch, where forward passes are compiled: the next ones take over the addresses
            of their caches.
    """

    caches: KeptCaches = field(default_factory=KeptCaches)
    target: Any = None
    draft_model: Any = None


class Turn:
    """Whose turn it is to draw on one pipeline: one call or one open stream at a time writes to its memory.

    A copy, pickled or not, is free: it has memory of its own.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: int | None = None
        """The thread that draws."""
        self._is_stream = False

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()

    @contextmanager
    def taken(self, is_stream: bool = False) -> Iterator[None]:
        """Within the block nobody else draws. A call of another thread is waited for.

        Raises:
            UserError: a stream is open, or this thread draws already.
        """
        with self._changed:
            while self._thread is not None:
                if self._is_stream or self._thread == threading.get_ident():
                    what = "a stream of it is open: finish or close it" if self._is_stream else "in this callback"
                    raise UserError(f"pipeline is drawing already ({what}); draw with `beside(pipeline)` meanwhile")
                self._changed.wait()
            self._thread, self._is_stream = threading.get_ident(), is_stream
        try:
            yield
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()


@dataclass
class Reuse:
    """What a pipeline keeps from one batch for the next. No picture depends on it.

    Args:
        memory: of the last batch.
        models: draft heads and draft models that methods named, by folder.
        neighbours: the nearest codes [V, k] of each code, by k.
        draft_sizes: measured costs, and what each draft size turned out to be worth.
        compiler: makes steps into graphs; None: they run eagerly.
        draft_quantization: of the layers of networks that draft, see `QuantizablePipeline`; None: as they are.
        turn: of whoever draws on this memory.
    """

    memory: BatchMemory = field(default_factory=BatchMemory)
    models: dict[str, Any] = field(default_factory=dict)
    neighbours: dict[int, Tensor] = field(default_factory=dict)
    draft_sizes: MeasuredDraftSizes = field(default_factory=MeasuredDraftSizes)
    compiler: StepCompiler | None = None
    draft_quantization: str | None = None
    turn: Turn = field(default_factory=Turn)

    def compile(self, target: Any, **arguments: Any) -> None:
        """Make steps with a target into graphs, where the pipeline's are to be; `arguments` are for its `compile`.
        Raises UserError as `check_parts`."""
        if self.compiler is not None:
            self.check_parts(target)
            target.compile(self.compiler, **arguments)

    def check_parts(self, target: Any) -> None:
        """Raises UserError where steps are to be graphs and accelerate's hooks move parts of a target or a head."""
        if self.compiler is None:
            return
        parts = (getattr(target, name, None) for name in ("transformer", "model", "drafter"))
        if any(isinstance(part, nn.Module) and has_hooks(part) for part in parts):
            raise UserError(
                "compile: parts of this model come to their device only as they are called (enable_model_cpu_offload, "
                "or a device_map of several devices), which compiled steps cannot; leave one of the two out"
            )

    def compile_in_place(self, target: TransformersTarget, role: str) -> None:
        """As `compile`, on the cache of the last batch where it fits: captured graphs write to fixed addresses.

        Args:
            role: of the target, "target" or "draft_model".
        """
        if self.compiler is None:
            return
        last = getattr(self.memory, role)
        self.compile(target, kv_cache=None if last is None else last.kv_cache)
        setattr(self.memory, role, target)

    def quantize_drafts(self, *layers: nn.Module) -> None:
        """Quantize linear layers of a network that drafts, where the pipeline's are to be."""
        if self.draft_quantization is not None:
            for each in layers:
                quantize_layers(each, self.draft_quantization)

    def computed_by(self, layers: nn.Module) -> dict[str, Any]:
        """How forward passes are computed, which measured seconds depend on; empty where nothing was asked for.

        Args:
            layers: the target's.
        """
        asked = {
            "compiled": None if self.compiler is None else f"{self.compiler.backend}-{self.compiler.bucket}",
            "quantization": quantization_of(layers),
            "draft_quantization": self.draft_quantization,
        }
        return {name: value for name, value in asked.items() if value is not None}
