"""A decoding step over tensors that stay where they are: one graph, compiled once, and on a GPU captured and replayed.

Belongs here: where a step leaves its tensors, which graph a step needs, and compiling and capturing it. Does not belong
here: a step itself (`loop.py`), how code behaves in a graph (`in_graph.py`), and where compiled code is stored.

A step replaces tensors that the run and its players hold, such as lengths, or the opinions of a Jacobi window. Each
class names those in `graph_state`, with the objects that name more. Here they are copied back to where the last step
found them, as part of the graph. So every step reads and writes the same addresses, and a captured graph can be
replayed. A tensor that nobody names and that a step replaces is an error before anything is captured.

The first step of every kind runs operation by operation and shows what is replaced. The next ones of a kind that finds
what it leaves are compiled, and on a GPU captured once two of them ran the same graph on the same addresses. Other
kinds are rare, such as the first step of a batch, and are never compiled. Steps of one kind find tensors of the same
shapes, the host decided the same beforehand (`DecodeRun.prepare`, and the size of the draft), and attention reads as
many slots of each cache, in whole buckets. The host knows a bound on the lengths without asking, since a kind of step
keeps at most so many tokens.

Graphs outlive their run. The next one with tensors of the same shapes, on the same caches, copies what its prompts left
to where the graphs look. Its first step of a kind is not replayed: torch's guards say whether the graph is its own.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._dynamo.backends.registry import lookup_backend

from specdecode.drafters.draft_size import NO_DRAFT, AdaptiveDraftSize, DraftSize, DraftSizer, FixedDraftSize
from specdecode.kernels.in_graph import as_in_graph
from specdecode.kv_cache import StaticKVCache
from specdecode.loop import DecodeRun, DelayedRead, tokens_left
from specdecode.sampling import SamplingInGraph

_MOST_GRAPHS = 256
"""The most graphs of all steps. torch's own limit of 8 is meant for accidents."""
_MOST_KINDS = 16
"""The most kinds of steps of one run, and the most graphs of a kind: more mean that a player counts on the host."""
_MOST_KEPT = 8
"""The most sets of graphs that are kept for later runs."""


class _Ran(NamedTuple):
    """The compiled graph of a step, by its number, its inputs, and the names that torch has for them."""

    number: int
    inputs: Sequence[Any]
    names: list[str]

    def is_like(self, other: _Ran, in_place: bool) -> bool:
        """Whether another step ran the same graph, and where `in_place`, on inputs that lie where its own do."""
        return self.number == other.number and not (in_place and self._moved_from(other))

    def refuse(self, other: _Ran) -> NoReturn:
        """Raises ValueError with the reason why another step ran something else."""
        if self.number != other.number:
            raise _is_no_graph("a number that a player counts", "leave it out")
        name = self._moved_from(other)[0]
        raise _is_no_graph(f"the tensor {name}", "name it in `graph_state` of its class")

    def _moved_from(self, other: _Ran) -> list[str]:
        pairs = zip(self.names, self.inputs, other.inputs, strict=True)
        return [name for name, one, before in pairs if isinstance(one, Tensor) and one.data_ptr() != before.data_ptr()]


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
        self._compiled = torch.compile(_step, fullgraph=True, dynamic=False, backend=self._make)
        self._ran: _Ran | None = None  # in the last call
        self._pool: Any = None  # of the memory of all captured graphs, one of which runs at a time
        self._streams: dict[torch.device, torch.cuda.Stream] = {}  # on which they are captured
        self._kept: list[_Graphs] = []  # of runs that have ended

    def round_up(self, length: int) -> int:
        """The length rounded up to whole buckets."""
        return -(-length // self.bucket) * self.bucket

    def step_of(self, run: DecodeRun) -> StaticStep:
        """The steps of a run that has started. Raises ValueError as `StaticStep`."""
        return StaticStep(run, self)

    def _make(self, graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        """The backend: what it compiles notes that it ran."""
        compiled, number = lookup_backend(self.backend)(graph, given), self.num_compiled
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        self.num_compiled += 1

        def run(*inputs: Any) -> Any:
            self._ran = _Ran(number, inputs, names)
            return compiled(*inputs)

        return run

    def call(self, run: DecodeRun, slots: list[Slot], gained: int) -> _Ran:
        """A step as compiled code. torch compiles it at its first call, and anew where something else holds now of the
        objects that the code read. Returns what ran."""
        before, began = self.num_compiled, time.perf_counter()
        with _most_graphs():
            self._compiled(run, slots)
        if self.num_compiled > before:
            seconds = time.perf_counter() - began
            self.seconds += seconds
            if self.on_compiled is not None:
                self.on_compiled(gained, seconds)
        ran, self._ran = self._ran, None
        assert ran is not None
        return ran

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
        with torch.cuda.device(device), own:
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
        overlaps: Whether the value that the step puts there may lie in another slot's home.
    """

    owner: Any
    name: str
    home: Tensor
    overlaps: bool


def _perform(run: DecodeRun) -> int:
    """A step, and what the host may read of it."""
    gained, run.state.tokens_left = run.perform(), None
    run.state.tokens_left = tokens_left(run.state)
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
    """A kind of step that finds what it leaves.

    Args:
        slots: What it replaces: path of the owner, name, home, and whether it overlaps; see `Slot`.
        gained: See `DecodeRun.step`.
        width: Token rows that its pass feeds in each row.
        kept: The most tokens that commits keep, by cache.
        most_new: The most tokens that a pass feeds, by cache.
        captured: By the slots that attention reads of each cache: what ran when a graph was captured, and the graph.
    """

    slots: list[tuple[_Path, tuple[str, Tensor, bool]]]
    gained: int
    width: int | None
    kept: list[int]
    most_new: list[int]
    captured: dict[tuple[int, ...], tuple[_Ran, Any]] = field(default_factory=dict)


@dataclass
class _Calls:
    """The steps of a kind in one run, as far as attention reads the same slots.

    Args:
        ran: What the last compiled step ran.
        is_same: Whether the one before it ran the same, so that the next one can be captured.
        num_changes: How often a step ran something else than the one before.
        captured: The graph that is replayed; None: not yet.
    """

    ran: _Ran | None = None
    is_same: bool = False
    num_changes: int = 0
    captured: Any = None


class _Graphs:
    """The graphs of a run, and all that they look at. Nothing here leads to the run, so both can end.

    Attributes:
        form: what another run must be to go on with them.
        caches: of keys and values; they may end, and the graphs with them.
        kinds: by the number of the state that they find, and by what the host decided.
        state: the number of the state behind the last step; None: it is not known.
    """

    def __init__(self, run: DecodeRun) -> None:
        self.caches = [weakref.ref(cache) for cache in _caches(run)]
        self.kinds: dict[tuple[int, Hashable], _Kind] = {}
        self.state: int | None = None
        self._states: dict[tuple[Any, ...], int] = {}
        self._homes: dict[tuple[Any, ...], Tensor] = {}
        self._begun = [each.value for each in _named(run)]
        alike: dict[int, int] = {}  # the first tensor at each address
        self.form = [
            (
                *(each.path, type(each.owner), each.name, each.value.shape, each.value.dtype),
                alike.setdefault(each.value.data_ptr(), len(alike)),
            )
            for each in _named(run)
        ]

    def adopt(self, run: DecodeRun) -> None:
        """Give a run of this form, which has just started, the tensors of the first one, with its own numbers."""
        for each, home in zip(list(_named(run)), self._begun, strict=True):
            if home.data_ptr() != each.value.data_ptr():
                home.copy_(each.value)
            each.put(home)

    def home(self, each: _Named) -> Tensor:
        """Where steps leave such a tensor of an attribute."""
        key = each.path, each.name, each.value.shape, each.value.dtype
        if key not in self._homes:
            self._homes[key] = torch.empty_like(each.value, memory_format=torch.contiguous_format)
        return self._homes[key]

    def lies_at_home(self, value: Tensor) -> bool:
        """Whether a tensor lies in the home of anything."""
        place = value.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == place for each in self._homes.values())

    @contextmanager
    def in_place(self, run: DecodeRun) -> Iterator[None]:
        """See `DecodeRun.in_place`."""
        before = {(each.path, each.name): each.value for each in _named(run)}
        yield
        for each in list(_named(run)):
            home = before.get((each.path, each.name))
            if home is each.value:
                continue
            if home is None or (home.shape, home.dtype) != (each.value.shape, each.value.dtype):
                home = self.home(each)
            each.put(home.copy_(each.value))
        self.state = None

    def number(self, run: DecodeRun) -> int:
        """A number for where the named tensors of a run lie, and for their shapes."""
        seen = [
            (*(type(each.owner).__name__, each.name), (each.value.data_ptr(), each.value.shape, each.value.stride()))
            for each in _named(run)
        ]
        if tuple(seen) not in self._states and len(self._states) == _MOST_KINDS:
            last = next(reversed(self._states))
            moved = [f"{one[0]}.{one[1]}" for one, other in zip(seen, last, strict=False) if one != other]
            raise _is_no_graph((moved or ["the number of tensors"])[0], "leave it out")
        return self._states.setdefault(tuple(seen), len(self._states))


def _is_no_graph(name: str, remedy: str) -> ValueError:
    return ValueError(f"compile: {name} is another at every step, so steps are no graph; {remedy}")


class _HostSize:
    """Stands in for the sizer of a drafter: the host chooses between steps, from what steps showed some steps ago.

    Args:
        sizer: Makes the choice.
    """

    graph_state = ("seen",)

    def __init__(self, sizer: DraftSizer) -> None:
        self.sizer, self.size = sizer, sizer.largest
        self.seen: Tensor | None = None  # [2, B] of the last step: accepted and active
        self._delayed_read, self._given = DelayedRead(1), deque[DraftSize]()

    @property
    def largest(self) -> DraftSize:
        """See `DraftSizer`."""
        return self.sizer.largest

    def choose(self) -> DraftSize:
        """See `DraftSizer`."""
        return self.size

    def observe(self, size: DraftSize, accepted: Tensor, active: Tensor) -> None:
        """See `DraftSizer`."""
        self.seen = torch.stack([accepted, active.long()])

    def choose_next(self) -> DraftSize:
        """The size of the next step."""
        self.size = self.sizer.choose()
        return self.size

    def learn(self) -> None:
        """From the step before the last one."""
        if self.seen is None:
            return
        self._given.append(self.size)
        if (seen := self._delayed_read(self.seen)) is not None:
            accepted, active = seen
            self.sizer.observe(self._given.popleft(), accepted, active.bool())


class StaticStep:
    """The steps of one run; call it instead of `DecodeRun.step`.

    Args:
        run: Has started. From now on it is stepped here alone.
        compiler: Makes the graphs.

    Raises:
        ValueError: A run that takes steps of its own, by name; a draft size that the host cannot choose some steps
            late, or a draft wider than a bucket. While it steps: a player replaces a tensor that it does not name in
            `graph_state`, or counts on the host.
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
        self._caches = _caches(run)
        run.in_place = self._graphs.in_place
        self._slots: dict[int, list[Slot]] = {}
        self._calls: dict[tuple[int, tuple[int, ...]], _Calls] = {}
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
                kind = self._first()
                graphs.state = graphs.number(run)
                if graphs.state == before:
                    graphs.kinds[before, decided] = kind
            else:
                self._run(kind)
                for cache, kept in zip(self._caches, kind.kept, strict=True):
                    cache.expect(kept)
        if self._size is not None:
            self._size.learn()
        run.trace.passes_made += 1
        run.log.widths.append(kind.width)  # type: ignore[union-attr]
        if run.log.is_full:  # type: ignore[union-attr]
            run.trace.collect()
        return kind.gained

    def _run(self, kind: _Kind) -> None:
        """A step of a kind that is known."""
        reads = tuple(
            min(self.compiler.round_up(cache.most_committed + kept + new), cache.max_length)
            for cache, kept, new in zip(self._caches, kind.kept, kind.most_new, strict=True)
        )
        calls = self._calls.setdefault((id(kind), reads), _Calls())
        if calls.captured is None:
            for cache, read in zip(self._caches, reads, strict=True):
                cache.slots_in_graph = read
            slots = self._slots_of(kind)
            if calls.ran is not None and calls.is_same:
                calls.captured = self.compiler.captured(self.run, slots)
                kind.captured[reads] = calls.ran, calls.captured  # what it reads stays as long as the graph
            else:
                self._note(self.compiler.call(self.run, slots, kind.gained), calls, kind.captured.get(reads))
                return
        calls.captured.replay()

    def _note(self, ran: _Ran, calls: _Calls, known: tuple[_Ran, Any] | None) -> None:
        """What a compiled step ran, and whether the next one may be captured, or replay a `known` graph instead.

        Raises ValueError where too many steps were not like the one before."""
        captures = self.compiler.captures(self.run.state.lengths.device)
        is_same = calls.ran is not None and ran.is_like(calls.ran, captures)
        if calls.ran is not None and not is_same:
            calls.num_changes += 1
            if calls.num_changes == _MOST_KINDS:
                ran.refuse(calls.ran)
        calls.ran, calls.is_same = ran, is_same and captures
        if captures and known is not None and ran.is_like(known[0], captures):
            calls.captured = known[1]

    def _slots_of(self, kind: _Kind) -> list[Slot]:
        """The tensors that a kind of step replaces in this run."""
        if id(kind) not in self._slots:
            owners = dict(_owners(self.run))
            self._slots[id(kind)] = [Slot(owners[path], *slot) for path, slot in kind.slots]
        return self._slots[id(kind)]

    def _first(self) -> _Kind:
        """A step operation by operation, and what it shows."""
        graphs = self._graphs
        before = {(each.path, each.name): each.value for each in _named(self.run)}
        kept = [cache.most_kept for cache in self._caches]
        for cache in self._caches:
            cache.slots_in_graph, cache.most_new = cache.max_length, 0
        with as_in_graph():
            gained = _perform(self.run)
        found = [each for each in _named(self.run) if before.get((each.path, each.name)) is not each.value]
        overlap = [graphs.lies_at_home(each.value) for each in found]
        values = [each.value.clone() if overlaps else each.value for each, overlaps in zip(found, overlap, strict=True)]
        slots = []
        for each, value, overlaps in zip(found, values, overlap, strict=True):
            home = graphs.home(each)
            each.put(home.copy_(value))
            slots.append((each.path, (each.name, home, overlaps)))
        kept = [cache.most_kept - then for cache, then in zip(self._caches, kept, strict=True)]
        return _Kind(slots, gained, self.run.log.width, kept, [cache.most_new for cache in self._caches])


class _Named(NamedTuple):
    """A tensor that an object names in `graph_state`, and the path of attributes to the object."""

    path: _Path
    owner: Any
    name: str
    value: Tensor

    def put(self, value: Tensor) -> None:
        """Replace the attribute, also of a frozen object."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            object.__setattr__(self.owner, self.name, value)


def _entries(owner: Any) -> list[tuple[str, Any]]:
    """What an object names; all of a dictionary."""
    if isinstance(owner, dict):
        return list(owner.items())
    return [(name, getattr(owner, name, None)) for name in getattr(owner, "graph_state", ())]


def _owners(run: DecodeRun) -> Iterator[tuple[_Path, Any]]:
    """The run and the objects that it and they name, each once, with its path."""
    seen, waiting = set(), deque[tuple[_Path, Any]]([((), run)])
    while waiting:
        path, owner = waiting.popleft()
        if id(owner) not in seen:
            seen.add(id(owner))
            yield path, owner
            waiting += [((*path, name), value) for name, value in _entries(owner) if not isinstance(value, Tensor)]


def _named(run: DecodeRun) -> Iterator[_Named]:
    """All tensors that are named."""
    for path, owner in _owners(run):
        for name, value in _entries(owner):
            if isinstance(value, Tensor):
                yield _Named(path, owner, name, value)


def _caches(run: DecodeRun) -> list[StaticKVCache]:
    return [owner for _, owner in _owners(run) if isinstance(owner, StaticKVCache)]


_Path = tuple[Hashable, ...]
