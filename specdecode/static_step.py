"""A decoding step over tensors that stay where they are: one graph, compiled once, and on a GPU captured and replayed.

Belongs here: where a step leaves its tensors, which graph a step needs, and compiling and capturing it. Does not belong
here: what a step does (`loop.py`), how code behaves in a graph (`in_graph.py`), and where compiled code is stored.

A step replaces tensors that the run and its players hold, such as lengths, or the opinions of a Jacobi window. Here
they are copied back to where the last step found them, as part of the graph. So every step reads and writes the same
addresses, and a captured graph can be replayed. No player needs to know: the objects are searched for tensors.

The first step of every kind runs operation by operation and shows what is replaced. The second is compiled, from the
third on a GPU replays it. Kinds differ by the shapes that a step finds, by what the host decides beforehand
(`DecodeRun.prepare`), and by how many slots of each cache attention reads, in whole buckets. The host knows a bound on
the lengths without asking, since a kind of step keeps at most so many tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from specdecode.draft_size import NO_DRAFT, FixedDraftSize
from specdecode.in_graph import as_in_graph
from specdecode.kv_cache import StaticKVCache
from specdecode.loop import DecodeRun
from specdecode.sampling import SamplingInGraph

_MOST_GRAPHS = 256
"""The most graphs of all steps. torch's own limit of 8 is meant for accidents."""
_MOST_KINDS = 16
"""The most kinds of steps of one run: more mean that a player counts on the host."""
_FOREIGN = ("torch", "transformers", "diffusers", "numpy", "builtins", "functools", "collections")
"""Packages whose objects hold nothing that a step replaces."""


class StepCompiler:
    """Makes steps of runs into graphs, and counts what it compiled.

    Args:
        backend: of `torch.compile`, a name or a function.
        bucket: attention reads a multiple of so many slots of the cache.
        on_compiled: called as `on_compiled(most_tokens, seconds)` after a step was compiled: how many tokens a row
            gains at most, and seconds of the whole first call.

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
        on_compiled: Callable[[int, float], None] | None = None,
    ) -> None:
        if bucket < 2:
            raise ValueError(f"bucket must be at least 2 slots, got {bucket}")
        self.backend, self.bucket, self.on_compiled = backend, bucket, on_compiled
        self.num_compiled, self.seconds = 0, 0.0
        self._compiled = torch.compile(_step, fullgraph=True, dynamic=False, backend=backend)
        self._pool: Any = None  # of the memory of all captured graphs, of which one runs at a time
        self._streams: dict[torch.device, torch.cuda.Stream] = {}  # on which they are captured

    def round_up(self, length: int) -> int:
        """The length rounded up to whole buckets."""
        return -(-length // self.bucket) * self.bucket

    def step_of(self, run: DecodeRun) -> StaticStep:
        """The steps of a run that has started. Raises ValueError as `StaticStep`."""
        return StaticStep(run, self)

    def call(self, run: DecodeRun, slots: list[Slot], gained: int, is_new: bool) -> None:
        """A step as compiled code."""
        if not is_new:
            self._compiled(run, slots)
            return
        before, began = counters["stats"]["unique_graphs"], time.perf_counter()
        with torch._dynamo.config.patch(recompile_limit=_MOST_GRAPHS, accumulated_recompile_limit=_MOST_GRAPHS):
            self._compiled(run, slots)
        if made := counters["stats"]["unique_graphs"] - before:
            seconds = time.perf_counter() - began
            self.num_compiled += made
            self.seconds += seconds
            if self.on_compiled is not None:
                self.on_compiled(gained, seconds)

    def captured(self, run: DecodeRun, slots: list[Slot]) -> Any:
        """A step as a `torch.cuda.CUDAGraph`, which has not run yet."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        device = run.state.lengths.device  # which need not be the current one
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        # What other threads ask of the device meanwhile, such as the page's, is theirs.
        own = torch.cuda.graph(graph, self._pool, self._streams[device], capture_error_mode="thread_local")
        with torch.cuda.device(device), own:
            self._compiled(run, slots)
        return graph


@dataclass(frozen=True)
class Slot:
    """An attribute that a step replaces.

    Args:
        owner, name: The attribute.
        home: The tensor that the step leaves there.
        overlaps: Whether what the step puts there may lie in another slot's home.
    """

    owner: Any
    name: str
    home: Tensor
    overlaps: bool


def _step(run: DecodeRun, slots: list[Slot]) -> None:
    """A step that leaves its tensors where they are."""
    run.perform()
    found = [getattr(slot.owner, slot.name) for slot in slots]
    found = [each.clone() if slot.overlaps else each for slot, each in zip(slots, found, strict=True)]
    for slot, each in zip(slots, found, strict=True):
        slot.home.copy_(each)
        setattr(slot.owner, slot.name, slot.home)


@dataclass
class _Kind:
    """What is known of a kind of step.

    Args:
        slots: What it replaces.
        changes: Attributes that are other objects behind it, and these.
        gained: See `DecodeRun.step`.
        kept: The most tokens that commits keep, by cache.
        most_new: The most tokens that a pass feeds, by cache.
        then: The number of the state behind it.
        graphs: How often it ran and what was captured, by the slots that attention reads of each cache.
    """

    slots: list[Slot]
    changes: list[tuple[Any, str, Any]]
    gained: int
    kept: list[int]
    most_new: list[int]
    then: int
    graphs: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)


class StaticStep:
    """The steps of one run; call it instead of `DecodeRun.step`.

    Args:
        run: Has started. From now on it is stepped here alone.
        compiler: Makes the graphs.

    Raises:
        ValueError: A run that takes steps of its own, by name; a draft size that the host chooses by what was accepted,
            or a draft wider than a bucket.
    """

    def __init__(self, run: DecodeRun, compiler: StepCompiler) -> None:
        if type(run).step is not DecodeRun.step:
            raise ValueError(f"compile: steps of {type(run).__name__} are no graph yet; leave it out or use jacobi")
        sizer: Any = getattr(run.drafter, "sizer", FixedDraftSize(NO_DRAFT))
        if not isinstance(sizer, FixedDraftSize):
            raise ValueError(f"compile: {type(sizer).__name__} chooses sizes by what was accepted; use a fixed size")
        self.run, self.compiler = run, compiler
        run.log = run.trace.log_on_device(sizer.size.depth, run.logged_places)
        device = run.state.lengths.device
        run.watch.step = torch.tensor(run.watch.step, device=device)
        state = run.state
        if not state.sampling.is_greedy:
            state.sampling = SamplingInGraph.of(state.sampling, device)
        self._caches = [each for each in _objects(run) if isinstance(each, StaticKVCache)]
        run.in_place = self._in_place
        self._homes: dict[tuple[Any, ...], Tensor] = {}
        self._states: dict[tuple[Hashable, ...], int] = {}
        self._state: int | None = None
        self._kinds: dict[tuple[int, Hashable], _Kind] = {}

    def __call__(self) -> int:
        """One step; see `DecodeRun.step`. Never waits for the device."""
        run = self.run
        run.steps += 1
        decided = run.prepare()
        if self._state is None:
            self._state = self._number_of_state()
        kind = self._kinds.get((self._state, decided))
        with torch.no_grad():
            if kind is None:
                kind = self._kinds[self._state, decided] = self._first()
            else:
                self._run(kind)
        self._state = kind.then
        run.trace.target_passes += 1
        run.log.count += 1  # type: ignore[union-attr]
        if run.log.is_full:  # type: ignore[union-attr]
            run.trace.collect()
        return kind.gained

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """See `DecodeRun.in_place`."""
        streams = self.run.state.streams
        before = {(id(owner), name): value for owner, name, value in _attributes(self.run)}
        yield
        streams.keys.copy_(self.run.state.streams.keys)
        self.run.state.streams = streams
        for owner, name, value in list(_attributes(self.run)):
            home = before.get((id(owner), name))
            if not isinstance(value, Tensor) or home is value or _is_frozen(owner):
                continue
            if not isinstance(home, Tensor) or (home.shape, home.dtype) != (value.shape, value.dtype):
                home = self._homes.setdefault((id(owner), name, value.shape, value.dtype), value)
            if home is not value:
                setattr(owner, name, home.copy_(value))
        self._state = None

    def _run(self, kind: _Kind) -> None:
        """A step of a kind that is known."""
        reads = tuple(
            min(self.compiler.round_up(cache.most_committed + kept + new), cache.max_length)
            for cache, kept, new in zip(self._caches, kind.kept, kind.most_new, strict=True)
        )
        graph = kind.graphs.setdefault(reads, [0, None])
        number, captured = graph
        if captured is None:
            for cache, slots in zip(self._caches, reads, strict=True):
                cache.slots_in_graph = slots
            if number > 0 and self.run.state.lengths.is_cuda:
                captured = graph[1] = self.compiler.captured(self.run, kind.slots)
            else:
                self.compiler.call(self.run, kind.slots, kind.gained, number == 0)
        if captured is not None:
            captured.replay()
            if kind.then != self._state:
                for owner, name, value in kind.changes:
                    setattr(owner, name, value)
        graph[0] += 1
        for cache, kept in zip(self._caches, kind.kept, strict=True):
            cache.expect(kept)

    def _first(self) -> _Kind:
        """A step operation by operation, and what it shows."""
        before = {(id(owner), name): (owner, value) for owner, name, value in _attributes(self.run)}
        kept = [cache.most_kept for cache in self._caches]
        for cache in self._caches:
            cache.slots_in_graph, cache.most_new = cache.max_length, 0
        with as_in_graph():
            gained = self.run.perform()
        owners = {id(owner) for owner, _ in before.values()}  # what is made in a step and kept is made once
        slots, homes = [], {each.untyped_storage().data_ptr() for each in self._homes.values()}
        for owner, name, value in list(_attributes(self.run)):
            is_other = before.get((id(owner), name), (owner, None))[1] is not value
            if not (isinstance(value, Tensor) and is_other and id(owner) in owners) or _is_frozen(owner):
                continue
            overlaps = value.untyped_storage().data_ptr() in homes
            key = id(owner), name, value.shape, value.dtype
            if key not in self._homes:
                self._homes[key] = torch.empty_like(value, memory_format=torch.contiguous_format)
            slots.append((Slot(owner, name, self._homes[key], overlaps), value.clone() if overlaps else value))
        for slot, value in slots:
            slot.home.copy_(value)
            setattr(slot.owner, slot.name, slot.home)
        changes = [
            (owner, name, value)
            for owner, name, value in _attributes(self.run)
            if before.get((id(owner), name), (owner, None))[1] is not value
        ]
        return _Kind(
            [slot for slot, _ in slots],
            changes,
            gained,
            [cache.most_kept - then for cache, then in zip(self._caches, kept, strict=True)],
            [cache.most_new for cache in self._caches],
            self._number_of_state(),
        )

    def _number_of_state(self) -> int:
        """A number for what the host sees: addresses and shapes of tensors, and all else that players keep."""
        seen: list[Hashable] = []
        for owner, name, value in _attributes(self.run):
            seen += (type(owner).__name__, name, _what(value))
        state = tuple(seen)
        if state not in self._states and len(self._states) == _MOST_KINDS:
            last = next(reversed(self._states))
            where = [i for i, (one, other) in enumerate(zip(last, state, strict=False)) if one != other][:1]
            names = [f"{state[i - 2]}.{state[i - 1]}" for i in where] or ["number of attributes"]
            raise ValueError(f"compile: {names[0]} is another at every step, so steps are no graph; leave it out")
        return self._states.setdefault(state, len(self._states))


def _is_frozen(owner: Any) -> bool:
    """Whether attributes cannot be replaced."""
    return getattr(getattr(owner, "__dataclass_params__", None), "frozen", False)


def _what(value: Any) -> Hashable:
    """What a graph may depend on of an attribute's value."""
    if isinstance(value, Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value if isinstance(value, int | float | str | None) else type(value).__name__


def _attributes(run: DecodeRun) -> Iterator[tuple[Any, str, Any]]:
    """Each attribute of the run's objects that a graph may read: owner, name, value."""
    for each in _objects(run):
        for name, value in list(vars(each).items()):
            if name not in getattr(each, "in_no_graph", ()):
                yield each, name, value


def _objects(run: DecodeRun) -> Iterator[Any]:
    """The run and all objects that it holds, also in lists and dictionaries, but for networks and foreign objects."""
    seen, waiting = set(), [run]
    while waiting:
        each: Any = waiting.pop()
        if isinstance(each, dict | list | tuple):
            waiting += each.values() if isinstance(each, dict) else each
            continue
        is_foreign = type(each).__module__.partition(".")[0] in _FOREIGN or isinstance(each, nn.Module | type)
        if is_foreign or not hasattr(each, "__dict__") or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        skipped = getattr(each, "in_no_graph", ())
        waiting += [value for name, value in vars(each).items() if name not in skipped]
