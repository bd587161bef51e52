"""The account of a decoding run: passes, accepted tokens, seconds.

Belongs here: recording, without waiting for the device, and the definitions of the reported numbers. Does not belong
here: decisions, printing, and tables over several runs.

Definitions. A *target pass* is one forward pass of the target over the whole batch, the prefill included; guidance does
not make it two. A row *takes part* in a pass while it is unfinished; a pass in which no row does, which steps made into
graphs may make before the host sees the end, is none. *Tokens* are those of the result: tokens accepted
past the end of a row do not count. The *accepted length* of a step is the number of draft tokens that stayed; with
bonus token, the token drawn from the target after them counts too. Means are over all rows and the steps they took part
in, without the prefill. *Forced* tokens (`ForcedPlaces`) are tokens of the result and are fed, but are neither drafted
nor accepted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_COUNTS = ("active", "drafted", "accepted", "emitted", "skipped")
_STEPS_AT_ONCE = 256  # whose counts lie in one piece of memory
_REPORTED = (
    *("batch_size", "target_passes", "row_passes", "tokens", "row_tokens", "tokens_per_pass", "drafted", "rows_fed"),
    *("skipped_steps", "skipped_tokens", "relaxed_tokens", "mean_accepted_length", "mean_accepted_length_with_bonus"),
    *("accepted_lengths", "padding_fed"),
)


@dataclass
class StepRecord:
    """One step of the loop, for every row.

    Args:
        counts: [5, B] int64:
            whether the row took part in the pass, 0 or 1;
            draft tokens that were verified (clipped at the end of the row);
            draft tokens that stayed;
            tokens that the pass added to the row: the accepted ones and the target's own;
            and tokens taken unverified before the pass.
        relaxed: [B, depth] bool, which of the accepted tokens the exact rule would have rejected; None: none.
        fed: Token rows that the pass fed in each row that took part, one number or [B] int64; None: the newest token,
            the draft tokens and the pending tokens.
        by_place: [B, N] int8, the `TokenOrigin` of each token that the step added, at its place in the result, and -1
            elsewhere; None: the tokens of a step follow those before.
        width: Token rows that the pass fed in each row of the batch, padding included; None: none was padding.
    """

    counts: Tensor
    relaxed: Tensor | None = None
    fed: int | Tensor | None = None
    by_place: Tensor | None = None
    width: int | None = None


@dataclass
class ForcedPlaces:
    """Tokens that a drafter knows beforehand, for the counts of a trace.

    Args:
        places: [max_new_tokens] bool, or [B, max_new_tokens], output places whose token is known.
        chains: Every draft was a chain. In trees, forced tokens that were fed in vain stay among the drafted ones.
        given, left: [B] int64, first tokens of each row that were fed before any was drawn, and last ones that no pass
            is made for; None: none.
    """

    places: Tensor
    chains: bool = True
    given: Tensor | None = None
    left: Tensor | None = None

    def of_row(self, row: int) -> ForcedPlaces:
        """Those of one row."""
        given, left = (None if each is None else each[row : row + 1].clone() for each in (self.given, self.left))
        return ForcedPlaces(self.places if self.places.ndim == 1 else self.places[row], self.chains, given, left)


class TokenOrigin(IntEnum):
    """The origin of a token of the result."""

    TARGET = 0
    """Drawn from the target (the first token, and that after the accepted ones of a pass, the bonus), or forced."""
    ACCEPTED = 1
    """Drafted, verified, and accepted by the exact rule."""
    RELAXED = 2
    """Drafted, verified, and accepted by a relaxed rule alone."""
    UNVERIFIED = 3
    """Drafted and taken in a skipped step."""


class _Records:
    """What keeps `next_counts` of steps."""

    next_counts: Any
    record: Any

    def record_step(self, *counts: Tensor, **others: Any) -> None:
        """A verification step: one pass. `counts`, [B] each, and the others are those of a `StepRecord`."""
        together = self.next_counts()
        torch.stack([each.long() for each in counts], out=together)
        self.record(StepRecord(together, **others))


class StepLog(_Records):
    """Steps as graphs record them: in tensors that stay where they are, and nothing is read or counted by the host.

    Args:
        batch_size: Rows of every record.
        depth: The most levels of a draft.
        device: The device of the records.
        num_places: Places of a row, where records have what was fed and what was added by place; 0: they have not.

    Attributes:
        width: As of `DecodeTrace`.
        widths: Those of the steps that were recorded since the last `take`; the caller writes them.
    """

    graph_state = ("_next", "_counts", "_relaxed", "_fed", "_by_place", "_place")

    def __init__(self, batch_size: int, depth: int, device: torch.device, num_places: int = 0) -> None:
        self.width: int | None = None
        self.widths: list[int | None] = []
        self._next = torch.zeros(len(_COUNTS), batch_size, dtype=torch.int64, device=device)
        self._counts = self._next.new_zeros(_STEPS_AT_ONCE, *self._next.shape)
        self._relaxed = torch.zeros(_STEPS_AT_ONCE, batch_size, depth, dtype=torch.bool, device=device)
        self._fed = self._next.new_zeros(_STEPS_AT_ONCE, batch_size)
        self._by_place = torch.zeros(_STEPS_AT_ONCE, batch_size, num_places, dtype=torch.int8, device=device)
        self._place = self._next.new_zeros(1)
        self._relaxes = False

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another step."""
        return len(self.widths) == len(self._counts)

    def next_counts(self) -> Tensor:
        """See `DecodeTrace.next_counts`."""
        return self._next

    def record(self, step: StepRecord) -> None:
        """See `DecodeTrace.record`."""
        self._counts.index_copy_(0, self._place, step.counts[None])
        if isinstance(step.fed, Tensor) and step.by_place is not None:
            self._fed.index_copy_(0, self._place, step.fed[None])
            self._by_place.index_copy_(0, self._place, step.by_place[None])
        if (relaxed := step.relaxed) is not None:
            self._relaxes = True
            relaxed = functional.pad(relaxed, (0, self._relaxed.shape[2] - relaxed.shape[1]))
            self._relaxed.index_copy_(0, self._place, relaxed[None])
        self._place.add_(1)

    def take(self) -> list[StepRecord]:
        """The records since the last call, oldest first; the log is empty then. Does not wait for the device."""
        widths, self.widths = self.widths, []
        number = len(widths)
        counts, relaxed = self._counts[:number].clone(), self._relaxed[:number].clone()
        self._place.zero_(), self._relaxed.zero_()
        nothing, has_places = [None] * number, self._by_place.shape[2] > 0
        fed, by_place = (each[:number].clone() if has_places else nothing for each in (self._fed, self._by_place))
        parts = counts, relaxed if self._relaxes else nothing, fed, by_place, widths
        return [StepRecord(*each) for each in zip(*parts, strict=True)]


class DecodeTrace(_Records):
    """Collects step records as tensors, and seconds by phase. Reading a number waits for the device, once.

    Args:
        batch_size: Rows of every record.
        device: The device to wait for at the end of a phase.

    Attributes:
        forced_places: Which tokens are known beforehand; None: none. A run sets it.
        width: Of the next `StepRecord`. A run sets it.
        passes_made: Prefills and recorded steps, also those in whose pass no row takes part.
    """

    def __init__(self, batch_size: int, device: torch.device | str = "cpu") -> None:
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.passes_made = 0
        self.width: int | None = None
        self.phase_seconds: dict[str, float] = {}
        self._kept: list[StepRecord] = []
        self._log: StepLog | None = None
        self._room: list[Tensor] = []
        self._first_tokens = 0
        self._num_forgotten = 0
        self._columns: dict[str, Tensor] | None = None
        self._origins: list[list[TokenOrigin]] | None = None
        self.forced_places: ForcedPlaces | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; a name used twice adds up. Waits for the device at the end, not inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            elif self.device.type == "mps":
                torch.mps.synchronize()
            self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + time.perf_counter() - start

    def record_prefill(self) -> None:
        """The prompt was fed: one pass, one token per row."""
        self.passes_made += 1
        self._first_tokens += 1

    def record(self, step: StepRecord) -> None:
        """A verification step, in whose `next_counts` its counts have been written."""
        self.passes_made += 1
        step.width = self.width
        self._kept.append(step)
        self._columns = self._origins = None

    def record_unverified(self, skipped: Tensor) -> None:
        """A skipped step took tokens, [B] int64, and no pass follows, since every row has ended."""
        nothing = torch.zeros_like(skipped)
        self.record_step(nothing, nothing, nothing, nothing, skipped)

    def next_counts(self) -> Tensor:
        """[5, B] int64, where the counts of the next step go: active, drafted, accepted, emitted, skipped.

        Many steps share one tensor. Small tensors that stay, allocated between large ones that come and go, would
        fragment the memory of a process on a CPU.
        """
        if not self._room:
            shape = (_STEPS_AT_ONCE, len(_COUNTS), self.batch_size)
            self._room = [*torch.empty(shape, dtype=torch.int64, device=self.device)]
        return self._room.pop()

    def log_on_device(self, depth: int, num_places: int = 0) -> StepLog:
        """Let graphs record the steps that follow, in the log that is returned; arguments as of `StepLog`.

        The caller counts the steps and passes; a reader of this trace reads what was logged."""
        self._log = StepLog(self.batch_size, depth, self.device, num_places)
        return self._log

    def collect(self) -> list[StepRecord]:
        """The steps that are not forgotten, with those that are still in the log. Does not wait for the device."""
        if self._log is not None and self._log.widths:
            self._kept += self._log.take()
            self._columns = self._origins = None
        return self._kept

    def add_passes(self, other: DecodeTrace) -> None:
        """Add another run's passes and seconds, when its rows replace rows here."""
        self.passes_made += other.passes_made
        for name, seconds in other.phase_seconds.items():
            self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + seconds

    @property
    def recorded_steps(self) -> int:
        """How many steps have been recorded, forgotten ones included."""
        return self._num_forgotten + len(self.collect())

    def forget_steps(self, before: int) -> None:
        """Free the steps before number `before`; their passes still count."""
        dropped = min(max(before - self._num_forgotten, 0), len(self.collect()))
        if dropped:
            self.passes_made -= self._idle(dropped)
            del self._kept[:dropped]
            self._num_forgotten += dropped
            self._columns = self._origins = None

    def since(self, step: int) -> DecodeTrace:
        """The same rows from step number `step` on, as if their prefill came just before. Without seconds."""
        trace = DecodeTrace(self.batch_size, self.device)
        trace._kept = self.collect()[max(step - self._num_forgotten, 0) :]
        trace._first_tokens, trace.forced_places = 1, self.forced_places
        trace.passes_made = 1 + len(trace._kept)
        return trace

    def of_row(self, row: int) -> DecodeTrace:
        """The steps of one row. Its seconds are those of the batch."""
        trace = DecodeTrace(1, self.device)
        trace.phase_seconds, trace._first_tokens = self.phase_seconds, self._first_tokens
        trace.forced_places = None if self.forced_places is None else self.forced_places.of_row(row)
        took_part = (self._column("active") + self._column("skipped"))[:, row] > 0
        for step, took in zip(self.collect(), took_part.tolist(), strict=True):
            if took:
                relaxed = None if step.relaxed is None else step.relaxed[row : row + 1]
                fed = step.fed[row : row + 1] if isinstance(step.fed, Tensor) else step.fed
                by_place = None if step.by_place is None else step.by_place[row : row + 1]
                trace._kept.append(StepRecord(step.counts[:, row : row + 1], relaxed, fed, by_place, step.width))
        trace.passes_made = self.row_passes[row] + trace._idle()
        return trace

    def _column(self, name: str) -> Tensor:
        """[steps, B] on the CPU."""
        steps = self.collect()
        if self._columns is None:
            nothing = torch.zeros(0, len(_COUNTS), self.batch_size, dtype=torch.int64)
            columns = torch.stack([step.counts for step in steps]).cpu() if steps else nothing
            self._columns = dict(zip(_COUNTS, columns.unbind(1), strict=True))
        return self._columns[name]

    def _known(self, which: str) -> Tensor:
        """[B] int64 on the CPU: how many tokens of each row are `given` or `left`, see `ForcedPlaces`."""
        known = getattr(self.forced_places, which, None)
        return torch.zeros(self.batch_size, dtype=torch.int64) if known is None else known.cpu()

    def _unforced(self, name: str) -> Tensor:
        """[steps, B] on the CPU: "accepted", "drafted" or "emitted" without forced draft tokens."""
        counts, accepted = self._column(name), self._column("accepted")
        if self.forced_places is None:
            return counts
        places = self.forced_places.places.cpu().long().expand(self.batch_size, -1)
        before = functional.pad(places.cumsum(1), (1, 0))  # [B, N + 1]
        emitted, skipped = self._column("emitted"), self._column("skipped")
        # Where the step's draft tokens begin.
        starts = self._first_tokens + self._known("given") + (emitted + skipped).cumsum(0) - emitted
        ends = starts + (counts if name == "drafted" and self.forced_places.chains else accepted)
        at_ends, at_starts = (before.gather(1, at.clamp(max=places.shape[1]).T).T for at in (ends, starts))
        return counts - at_ends + at_starts

    def _idle(self, steps: int | None = None) -> int:
        """Of the first so many steps that are not forgotten, those in whose pass no row takes part."""
        return int((self._column("active")[:steps].sum(1) == 0).sum())

    @property
    def target_passes(self) -> int:
        """Passes in which a row takes part."""
        return self.passes_made - self._idle()

    @property
    def row_passes(self) -> list[int]:
        """Passes each row took part in, the prefill included, and that over given tokens."""
        return (self._column("active").sum(0) + self._first_tokens + (self._known("given") > 0)).tolist()

    @property
    def row_tokens(self) -> list[int]:
        """Tokens of each row."""
        drawn = self._column("emitted").sum(0) + self._column("skipped").sum(0) + self._first_tokens
        return (drawn + self._known("given") + self._known("left")).tolist()

    @property
    def rows_fed(self) -> list[int]:
        """Token rows of each row that went through the target's layers after the prompt, without padding; guidance
        counts once."""
        return self._fed.sum(0).tolist()

    @property
    def padding_fed(self) -> int:
        """Token rows that went through them beside these: where drafts of other rows are longer, and in rows that have
        ended while others go on."""
        fed = self._fed.sum(1).tolist()
        widths = [step.width for step in self.collect()]
        return sum(width * self.batch_size - own for width, own in zip(widths, fed, strict=True) if width and own)

    @property
    def _fed(self) -> Tensor:
        """[steps, B] on the CPU: `rows_fed` by step."""
        usual = 1 + self._column("drafted") + self._column("skipped")
        for number, step in enumerate(self.collect()):
            if step.fed is not None:
                usual[number] = step.fed
        return usual * self._column("active")

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(self.row_tokens)

    @property
    def drafted(self) -> int:
        """Draft tokens that were verified, over all rows."""
        return int(self._unforced("drafted").sum())

    @property
    def skipped_steps(self) -> int:
        """Skipped steps, counted per row."""
        return int((self._column("skipped") > 0).sum())

    @property
    def skipped_tokens(self) -> int:
        """Tokens taken in skipped steps, over all rows."""
        return int(self._column("skipped").sum())

    @property
    def relaxed_tokens(self) -> int:
        """Tokens that only a relaxed rule accepted, over all rows."""
        return sum(origins.count(TokenOrigin.RELAXED) for origins in self.token_origins)

    @property
    def token_origins(self) -> list[list[TokenOrigin]]:
        """The origin of each token of each row, in order."""
        by_place = any(step.by_place is not None for step in self.collect())
        if self._origins is not None:
            return self._origins
        if by_place:
            self._origins = [
                [TokenOrigin(max(origin, 0)) for origin in row] for row in self._added_by_place().amax(0).tolist()
            ]  # the first token is the target's
            return self._origins
        rows = [[TokenOrigin.TARGET] * (self._first_tokens + given) for given in self._known("given").tolist()]
        for step in self.steps:
            for row, origins in enumerate(rows):
                accepted = step["accepted"][row]
                lent = step["relaxed"][row] if step["relaxed"] else [False] * accepted
                origins += [TokenOrigin.UNVERIFIED] * step["skipped"][row]
                origins += [TokenOrigin.RELAXED if lent[i] else TokenOrigin.ACCEPTED for i in range(accepted)]
                origins += [TokenOrigin.TARGET] * (step["emitted"][row] - accepted)
        for origins, left in zip(rows, self._known("left").tolist(), strict=True):
            origins += [TokenOrigin.TARGET] * left
        if self.forced_places is not None:
            for origins, places in zip(rows, self.forced_places.places.expand(len(rows), -1), strict=True):
                for place in places[: len(origins)].nonzero().flatten().tolist():
                    origins[place] = TokenOrigin.TARGET
        self._origins = rows
        return rows

    @property
    def token_passes(self) -> list[list[int]]:
        """The pass that added each token of each row, in order of the row's own passes; the prefill is number 0.

        They do not rise from token to token where several lines of a grid are drawn side by side.
        """
        if any(step.by_place is not None for step in self.collect()):
            numbers = self._column("active").cumsum(0)[..., None]  # [steps, B, 1]
            return ((self._added_by_place() >= 0) * numbers).amax(0).tolist()
        rows = [[0] * (self._first_tokens + given) for given in self._known("given").tolist()]
        for row, passes in enumerate(rows):
            number = 0
            for step in self.steps:
                number += step["active"][row]
                passes += [number] * (step["skipped"][row] + step["emitted"][row])
            passes += [number] * int(self._known("left")[row])
        return rows

    def _added_by_place(self) -> Tensor:
        """[steps, B, N] int8 on the CPU, see `StepRecord.by_place`."""
        return torch.stack([step.by_place for step in self.collect() if step.by_place is not None]).cpu()

    @property
    def steps(self) -> list[dict[str, list[Any]]]:
        """The counts of each step by name, and which tokens were relaxed, as lists over rows."""
        columns = {name: self._column(name).tolist() for name in _COUNTS}
        return [
            {
                **{name: column[number] for name, column in columns.items()},
                "relaxed": [] if step.relaxed is None else step.relaxed.tolist(),
            }
            for number, step in enumerate(self.collect())
        ]

    @property
    def accepted_lengths(self) -> list[list[int]]:
        """The accepted length of every step that a row took part in, without bonus token, for each row."""
        active, accepted = self._column("active").bool(), self._unforced("accepted")
        return [accepted[active[:, row], row].tolist() for row in range(self.batch_size)]

    @property
    def mean_accepted_length(self) -> float:
        """The mean accepted length without bonus token; 0 without any step."""
        return self._per_step("accepted")

    @property
    def mean_accepted_length_with_bonus(self) -> float:
        """The mean accepted length with bonus token; 0 without any step."""
        return self._per_step("emitted")

    def _per_step(self, name: str) -> float:
        steps = int(self._column("active").sum())
        return int(self._unforced(name).sum()) / steps if steps else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per row and pass it took part in, the prefill included on both sides."""
        passes = sum(self.row_passes)
        return self.tokens / passes if passes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything above in plain numbers, lists and strings, ready for JSON."""
        return {name: getattr(self, name) for name in _REPORTED} | {"phase_seconds": dict(self.phase_seconds)}
