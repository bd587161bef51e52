"""A decoding step over tensors that stay where they are: one graph, compiled once, and on a GPU captured and replayed.

Belongs here: where a step leaves its tensors, which graph a step needs, and compiling and capturing it. Does not belong
here: what a step does (`loop.py`), how code behaves in a graph (`in_graph.py`), and where compiled code is stored.

A step replaces tensors that the run and its players hold, such as lengths, or the opinions of a Jacobi window. Here
they are copied back to where the last step found them, as part of the graph. So every step reads and writes the same
addresses, and a captured graph can be replayed. No player needs to know: the objects are searched for tensors.

The first step of every kind runs operation by operation and shows what is replaced. The second of a kind that finds
what it leaves is compiled, from the third on a GPU replays it. Other kinds are rare, such as the first step of a batch,
and are never compiled. Kinds differ by the shapes that a step finds, by what the host decides beforehand
(`DecodeRun.prepare`, and the size of the draft), and by how many slots of each cache attention reads, in whole buckets.
The host knows a bound on the lengths without asking, since a kind of step keeps at most so many tokens.

Graphs outlive their run. The next one of the same form, on the same caches, copies what its prompts left to where the
graphs look, and goes on with them.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from specdecode.drafters.draft_size import NO_DRAFT, AdaptiveDraftSize, DraftSize, DraftSizer, FixedDraftSize
from specdecode.graphs.in_graph import as_in_graph
from specdecode.kv_cache import StaticKVCache
from specdecode.loop import DecodeRun, Look, needs
from specdecode.sampling import SamplingInGraph

_MOST_GRAPHS = 256
"""The most graphs of all steps. torch's own limit of 8 is meant for accidents."""
_MOST_KINDS = 16
"""The most kinds of steps of one run: more mean that a player counts on the host."""
_MOST_KEPT = 8
"""The most sets of graphs that are kept for later runs."""
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
        self._kept: list[_Graphs] = []  # of runs that have ended

    def round_up(self, length: int) -> int:
        """The length rounded up to whole buckets."""
        return -(-length // self.bucket) * self.bucket

    def step_of(self, run: DecodeRun) -> StaticStep:
        """The steps of a run that has started. Raises ValueError as `StaticStep`."""
        return StaticStep(run, self)

    def call(self, run: DecodeRun, slots: list[Slot], gained: int) -> None:
        """A step as compiled code. torch compiles it at its first call, and anew where something else holds now of the
        objects that the code read."""
        before, began = counters["stats"]["unique_graphs"], time.perf_counter()
        with _most_graphs():
            self._compiled(run, slots)
        if made := counters["stats"]["unique_graphs"] - before:
            seconds = time.perf_counter() - began
            self.num_compiled += made
            self.seconds += seconds
            if self.on_compiled is not None:
                self.on_compiled(gained, seconds)

    def take(self, run: DecodeRun) -> _Graphs:
        """The graphs of an earlier run of this form, whose tensors this one then has, or new ones."""
        graphs = _Graphs(run)
        self._kept = [each for each in self._kept if all(cache() is not None for cache in each.caches)]
        for number, each in enumerate(self._kept):
            if each.form == graphs.form and each.caches == graphs.caches:
                each.adopt(run)
                return self._kept.pop(number)
        return graphs

    def give_back(self, graphs: _Graphs) -> None:
        """A run has ended: the next may take its graphs."""
        graphs.state = None
        self._kept = [*self._kept[1 - _MOST_KEPT :], graphs]

    def captures(self, device: torch.device) -> bool:
        """Whether steps on a device are captured and replayed."""
        return device.type == "cuda"

    def captured(self, run: DecodeRun, slots: list[Slot]) -> Any:
        """A step as a `torch.cuda.CUDAGraph`, which has not run yet."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        device = run.state.lengths.device  # which need not be the current one
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        # What other threads ask of the device meanwhile, such as the page's, is theirs.
        own = torch.cuda.graph(graph, self._pool, self._streams[device], capture_error_mode="thread_local")
        with torch.cuda.device(device), own, _most_graphs():
            self._compiled(run, slots)
        return graph


@contextmanager
def _most_graphs() -> Iterator[None]:
    """Within it torch compiles up to `_MOST_GRAPHS`. Its own `config.patch` takes longer than many a step."""
    config = torch._dynamo.config
    usual, config.recompile_limit = config.recompile_limit, _MOST_GRAPHS
    try:
        yield
    finally:
        config.recompile_limit = usual


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


def _perform(run: DecodeRun) -> int:
    """A step, and what the host may read of it."""
    gained, run.state.needed = run.perform(), None
    run.state.needed = needs(run.state)
    return gained


def _step(run: DecodeRun, slots: list[Slot]) -> None:
    """A step that leaves its tensors where they are."""
    _perform(run)
    found = [getattr(slot.owner, slot.name) for slot in slots]
    found = [each.clone() if slot.overlaps else each for slot, each in zip(slots, found, strict=True)]
    for slot, each in zip(slots, found, strict=True):
        slot.home.copy_(each)
        setattr(slot.owner, slot.name, slot.home)


@dataclass
class _Kind:
    """What is known of a kind of step that finds what it leaves.

    Args:
        slots: What it replaces: path of the owner, name, home, and whether it overlaps; see `Slot`.
        gained: See `DecodeRun.step`.
        kept: The most tokens that commits keep, by cache.
        most_new: The most tokens that a pass feeds, by cache.
        graphs: How often it ran, what was captured, and tensors that this reads, by the slots that attention reads of
            each cache.
    """

    slots: list[tuple[_Path, str, Tensor, bool]]
    gained: int
    kept: list[int]
    most_new: list[int]
    graphs: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)


class _Graphs:
    """The graphs of a run, and all that they look at. Nothing here leads to the run, so both can end.

    Attributes:
        form: what another run must be to go on with them.
        caches: of keys and values; they may end, and the graphs with them.
        kinds: by the number of the state that they find, and by what the host decided.
        state: the number of the state behind the last step; None: it is not known.
    """

    def __init__(self, run: DecodeRun) -> None:
        self.caches = [weakref.ref(each) for _, each in _objects(run) if isinstance(each, StaticKVCache)]
        self.kinds: dict[tuple[int, Hashable], _Kind] = {}
        self.state: int | None = None
        self._states: dict[tuple[Hashable, ...], int] = {}
        self._homes: dict[tuple[Any, ...], Tensor] = {}
        self._begun = [value for *_, value in _attributes(run) if _tensors(value)]
        alike: dict[int, int] = {}  # the first tensor at each address
        self.form = [
            (path, name, _form(value), [alike.setdefault(each.data_ptr(), len(alike)) for each in _tensors(value)])
            for path, _, name, value in _attributes(run)
        ]

    def adopt(self, run: DecodeRun) -> None:
        """Give a run of this form, which has just started, the tensors of the first one, with its own numbers."""
        found = [(owner, name, value) for _, owner, name, value in _attributes(run) if _tensors(value)]
        for (owner, name, value), home in zip(found, self._begun, strict=True):
            for old, new in zip(_tensors(home), _tensors(value), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
            object.__setattr__(owner, name, home)

    def home(self, path: _Path, name: str, value: Tensor) -> Tensor:
        """Where steps leave such a value of an attribute."""
        key = path, name, value.shape, value.dtype
        if key not in self._homes:
            self._homes[key] = torch.empty_like(value, memory_format=torch.contiguous_format)
        return self._homes[key]

    def lies_at_home(self, value: Tensor) -> bool:
        """Whether a value lies in the home of anything."""
        place = value.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == place for each in self._homes.values())

    @contextmanager
    def in_place(self, run: DecodeRun) -> Iterator[None]:
        """See `DecodeRun.in_place`."""
        streams = run.state.streams
        before = {(id(owner), name): value for _, owner, name, value in _attributes(run)}
        yield
        streams.keys.copy_(run.state.streams.keys)
        run.state.streams = streams
        for path, owner, name, value in list(_attributes(run)):
            home = before.get((id(owner), name))
            if not isinstance(value, Tensor) or home is value or _is_frozen(owner):
                continue
            if not isinstance(home, Tensor) or (home.shape, home.dtype) != (value.shape, value.dtype):
                home = self.home(path, name, value)
            setattr(owner, name, home.copy_(value))
        self.state = None

    def number(self, run: DecodeRun) -> int:
        """A number for what the host sees: addresses and shapes of tensors, and all else that players keep."""
        seen: list[Hashable] = []
        for _, owner, name, value in _attributes(run):
            seen += (type(owner).__name__, name, _what(value))
        state = tuple(seen)
        if state not in self._states and len(self._states) == _MOST_KINDS:
            last = next(reversed(self._states))
            where = [i for i, (one, other) in enumerate(zip(last, state, strict=False)) if one != other][:1]
            names = [f"{state[i - 2]}.{state[i - 1]}" for i in where] or ["number of attributes"]
            raise ValueError(f"compile: {names[0]} is another at every step, so steps are no graph; leave it out")
        return self._states.setdefault(state, len(self._states))


class _HostSize:
    """Stands in for the sizer of a drafter: the host chooses between steps, from what steps showed some steps ago.

    Args:
        sizer: Makes the choice.
    """

    in_no_graph = ("sizer", "size", "_look", "_given")

    def __init__(self, sizer: DraftSizer) -> None:
        self.sizer, self.size = sizer, sizer.largest
        self.candidates = getattr(sizer, "candidates", ())
        self.seen: Tensor | None = None  # of the last step: accepted [B], active [B], and what was predicted
        self._look, self._given = Look(1), deque[DraftSize]()

    @property
    def largest(self) -> DraftSize:
        """See `DraftSizer`."""
        return self.sizer.largest

    def choose(self) -> DraftSize:
        """See `DraftSizer`."""
        return self.size

    def observe(self, size: DraftSize, accepted: Tensor, active: Tensor, predicted: Tensor | None = None) -> None:
        """See `DraftSizer`."""
        given = (accepted, active) if predicted is None else (accepted, active, predicted)
        self.seen = torch.cat([each.float() for each in given])

    def choose_next(self) -> DraftSize:
        """The size of the next step."""
        self.size = self.sizer.choose()
        return self.size

    def learn(self, batch_size: int) -> None:
        """From the step before the last one."""
        if self.seen is None:
            return
        self._given.append(self.size)
        if (seen := self._look(self.seen)) is not None:
            accepted, active, predicted = seen.split([batch_size, batch_size, len(seen) - 2 * batch_size])
            self.sizer.observe(
                self._given.popleft(), accepted.long(), active.bool(), predicted if len(predicted) else None
            )


class StaticStep:
    """The steps of one run; call it instead of `DecodeRun.step`.

    Args:
        run: Has started. From now on it is stepped here alone.
        compiler: Makes the graphs.

    Raises:
        ValueError: A run that takes steps of its own, by name; a draft size that the host cannot choose some steps
            late, or a draft wider than a bucket.
    """

    def __init__(self, run: DecodeRun, compiler: StepCompiler) -> None:
        if type(run).step is not DecodeRun.step:
            raise ValueError(f"compile: steps of {type(run).__name__} are no graph yet; leave it out or use jacobi")
        sizer: Any = getattr(run.drafter, "sizer", FixedDraftSize(NO_DRAFT))
        if not isinstance(sizer, FixedDraftSize | AdaptiveDraftSize):
            raise ValueError(f"compile: {type(sizer).__name__} chooses sizes by what is drafted; use a fixed size")
        self.run, self.compiler = run, compiler
        self._size = None
        if isinstance(sizer, AdaptiveDraftSize):
            self._size = run.drafter.sizer = _HostSize(sizer)  # type: ignore[union-attr]
        run.log = run.trace.log_on_device(sizer.largest.depth, run.logged_places)
        device = run.state.lengths.device
        run.watch.step = torch.tensor(run.watch.step, device=device)
        state = run.state
        if not state.sampling.is_greedy:
            state.sampling = SamplingInGraph.of(state.sampling, device)
        self._graphs = compiler.take(run)
        self._caches = [each for _, each in _objects(run) if isinstance(each, StaticKVCache)]
        run.in_place = self._graphs.in_place
        self._slots: dict[int, list[Slot]] = {}
        weakref.finalize(self, compiler.give_back, self._graphs)

    def __call__(self) -> int:
        """One step; see `DecodeRun.step`. Never waits for the device."""
        run, graphs = self.run, self._graphs
        run.steps += 1
        decided = run.prepare(), None if self._size is None else self._size.choose_next()
        before = graphs.number(run) if graphs.state is None else graphs.state
        kind = graphs.kinds.get((before, decided))
        with torch.no_grad():
            if kind is None:
                kind, recurs = self._first()
                graphs.state = graphs.number(run)
                if recurs and graphs.state == before:
                    graphs.kinds[before, decided] = kind
            else:
                self._run(kind)
        if self._size is not None:
            self._size.learn(run.target.batch_size)
        run.trace.target_passes += 1
        run.log.count += 1  # type: ignore[union-attr]
        if run.log.is_full:  # type: ignore[union-attr]
            run.trace.collect()
        return kind.gained

    def _run(self, kind: _Kind) -> None:
        """A step of a kind that is known."""
        reads = tuple(
            min(self.compiler.round_up(cache.most_committed + kept + new), cache.max_length)
            for cache, kept, new in zip(self._caches, kind.kept, kind.most_new, strict=True)
        )
        graph = kind.graphs.setdefault(reads, [0, None, []])
        number, captured, _ = graph
        if captured is None:
            for cache, slots in zip(self._caches, reads, strict=True):
                cache.slots_in_graph = slots
            if number > 0 and self.compiler.captures(self.run.state.lengths.device):
                captured = self.compiler.captured(self.run, self._slots_of(kind))
                graph[1:] = captured, [each for *_, value in _attributes(self.run) for each in _every_tensor(value)]
            else:
                self.compiler.call(self.run, self._slots_of(kind), kind.gained)
        if captured is not None:
            captured.replay()
        graph[0] += 1
        for cache, kept in zip(self._caches, kind.kept, strict=True):
            cache.expect(kept)

    def _slots_of(self, kind: _Kind) -> list[Slot]:
        """What a kind of step replaces in this run."""
        if id(kind) not in self._slots:
            owners = dict(_objects(self.run))
            slots = ((owners[path], name, home, overlaps) for path, name, home, overlaps in kind.slots)
            self._slots[id(kind)] = [Slot(*slot) for slot in slots]
        return self._slots[id(kind)]

    def _first(self) -> tuple[_Kind, bool]:
        """A step operation by operation, and what it shows; False where it has made objects that later steps read."""
        graphs = self._graphs
        before = {(id(owner), name): (owner, value) for _, owner, name, value in _attributes(self.run)}
        kept = [cache.most_kept for cache in self._caches]
        for cache in self._caches:
            cache.slots_in_graph, cache.most_new = cache.max_length, 0
        with as_in_graph():
            gained = _perform(self.run)
        found = []
        for path, owner, name, value in list(_attributes(self.run)):
            is_other = before.get((id(owner), name), (owner, None))[1] is not value
            if isinstance(value, Tensor) and is_other:
                overlaps = graphs.lies_at_home(value)
                found.append((path, owner, name, value.clone() if overlaps else value, overlaps))
        slots = []
        for path, owner, name, value, overlaps in found:
            home = graphs.home(path, name, value)
            object.__setattr__(owner, name, home.copy_(value))
            if not _is_frozen(owner):
                slots.append((path, name, home, overlaps))
        kept = [cache.most_kept - then for cache, then in zip(self._caches, kept, strict=True)]
        owners = {id(owner) for owner, _ in before.values()}
        kind = _Kind(slots, gained, kept, [cache.most_new for cache in self._caches])
        return kind, all(id(owner) in owners for _, owner, *_ in found)


def _is_frozen(owner: Any) -> bool:
    """Whether attributes cannot be replaced."""
    return getattr(getattr(owner, "__dataclass_params__", None), "frozen", False)


def _what(value: Any) -> Hashable:
    """What a graph may depend on of an attribute's value."""
    if isinstance(value, Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value if isinstance(value, int | float | str | None) else type(value).__name__


def _parts(value: Any) -> list[Any] | None:
    """What a container holds; None of another value."""
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    return (
        list(value.values() if isinstance(value, dict) else value) if isinstance(value, dict | list | tuple) else None
    )


def _every_tensor(value: Any) -> list[Tensor]:
    """An attribute's tensors. Those in containers end with their run, though a captured graph reads them later."""
    if isinstance(value, Tensor):
        return [value]
    return [each for part in _parts(value) or [] for each in _every_tensor(part)]


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of an attribute that another run can have in the place of its own. Those beside objects with
    attributes are of one run, and so are those whose entries share memory."""
    if isinstance(value, Tensor):
        spreads = any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True))
        return [] if spreads else [value]
    parts = _parts(value) or []
    return [] if any(map(_is_ours, parts)) else [each for part in parts for each in _tensors(part)]


def _form(value: Any) -> Any:
    """What must be alike of an attribute's value in two runs with the same graphs."""
    if isinstance(value, Tensor):  # one that moves is copied, so how its entries lie apart does not matter
        return value.shape, value.dtype, None if _tensors(value) else (value.stride(), value.data_ptr())
    if (parts := _parts(value)) is not None:
        movable = bool(_tensors(value))
        return type(value), *(
            (each.data_ptr(), each.shape) if isinstance(each, Tensor) and not movable else _form(each) for each in parts
        )
    if isinstance(value, nn.Module):
        weights = [each.data_ptr() for each in (*value.parameters(), *value.buffers())]
        parts = [(type(each), *each._forward_hooks, *each._forward_pre_hooks) for each in value.modules()]
        return *parts, *weights
    if isinstance(value, MethodType):
        return value.__func__, _form(value.__self__) if isinstance(value.__self__, nn.Module) else object()
    return type(value) if _is_ours(value) else value


def _attributes(run: DecodeRun) -> Iterator[tuple[_Path, Any, str, Any]]:
    """Each attribute of the run's objects that a graph may read: path of the owner, owner, name, value."""
    for path, each in _objects(run):
        for name, value in list(vars(each).items()):
            if name not in getattr(each, "in_no_graph", ()):
                yield path, each, name, value


def _is_ours(value: Any) -> bool:
    """Whether a graph may depend on attributes of a value: it is no network and no foreign object."""
    is_foreign = type(value).__module__.partition(".")[0] in _FOREIGN or isinstance(value, nn.Module | type)
    return not is_foreign and hasattr(value, "__dict__")


def _objects(run: DecodeRun) -> Iterator[tuple[_Path, Any]]:
    """The run and all objects that it holds, also in lists and dictionaries, each with a path that leads to it."""
    seen, waiting = set(), deque[tuple[_Path, Any]]([((), run)])
    while waiting:
        path, each = waiting.popleft()
        if isinstance(each, dict | list | tuple):
            entries = each.items() if isinstance(each, dict) else enumerate(each)
            waiting += [((*path, name), value) for name, value in entries]
            continue
        if not _is_ours(each) or id(each) in seen:
            continue
        seen.add(id(each))
        yield path, each
        skipped = getattr(each, "in_no_graph", ())
        waiting += [((*path, name), value) for name, value in vars(each).items() if name not in skipped]


_Path = tuple[Hashable, ...]
