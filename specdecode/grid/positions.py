"""Tokens are drawn in an order of their own: several in one pass, each after the places that it may see.

Belongs here: the tokens that a pass feeds, draws and sees, and the run of an order known beforehand. Not here:
`row_windows.py`.

A *place* is the position of a token in the result, counted from 0. Slot `p` behind the prompt holds the token of place
`p` and never moves. A *placeholder* holds the place before a line's first one until the real token is known. It has a
slot of its own behind those of all places, and its own line alone sees it. A slot whose token is not decided is masked.
An *end-of-row token* is always the same and stands between two lines. A line behind one needs no placeholder: the token
is fed when the line opens.

Each place is drawn with the random numbers that plain decoding uses for it. So the tokens of a seed are the same in
every batch, and an order that feeds what plain decoding feeds gives plain decoding's tokens.

Source: He et al. 2024, arXiv 2412.04062 (the order). Its released code lets undecided places be seen as zeros, and a
placeholder shares the slot of the place that it holds; here neither is so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_counts
from specdecode.kernels.in_graph import in_graph
from specdecode.loop import DecodeRun
from specdecode.roles import PlacedTarget, Positions, Target, TargetOutput
from specdecode.sampling import Tag, draw_tokens
from specdecode.trace import StepRecord, TokenOrigin

Window = int | tuple[int, ...]
"""Tokens of the line before when a line opens: of all lines, or several that are spread evenly over the lines."""


@dataclass(frozen=True)
class PlacedTokens(Positions):
    """The tokens that one pass feeds, alike in every row of the batch.

    Args:
        sources: [n] int64, the place whose token is fed; for a placeholder, the place that it copies.
        drawing: [k] int64, which of the n tokens have a place drawn after them; k is at least 1.
        drawn: [k] int64, the places that are drawn.
        added: [m] int64, the places that the pass decides: those that are drawn, and fed end-of-row tokens.
    """

    sources: Tensor
    drawing: Tensor
    drawn: Tensor
    added: Tensor


class Order(Protocol):
    """In what order are the places of `lines` drawn?"""

    lines: Any

    @property
    def num_places(self) -> int:
        """Tokens of a row."""
        return int(self.lines.num_places)

    @property
    def num_slots(self) -> int:
        """W, the slots behind the prompt: of places and of placeholders."""
        return int(self.lines.num_slots)

    def run(self, target: Target, **settings: Any) -> DecodeRun:
        """A run in this order that is not yet started.

        Args:
            target: A `PlacedTarget` before its prefill.
            settings: Arguments of `DecodeRun`, without drafter, verifier and stop token.

        Raises:
            ValueError: As `DecodeRun` and `check_takes_places`.
        """
        ...


def fill_forced(buffer: Tensor, forced_tokens: Tensor | None) -> None:
    """Write known tokens [num_places] or [B, num_places] to a buffer of tokens [B, num_places or more]."""
    if forced_tokens is not None:
        known = forced_tokens.to(buffer.device)
        first = buffer[:, : known.shape[-1]]
        first.copy_(known.where(known >= 0, first))


def or_forced(drawn: Tensor, forced_tokens: Tensor | None, places: Tensor) -> Tensor:
    """Tokens drawn [B, n] for places [B, n], or the forced ones where [B, N] has any."""
    if forced_tokens is None:
        return drawn
    wanted = ragged.at_places(forced_tokens, places)
    return torch.where(wanted >= 0, wanted, drawn)


def check_takes_places(target: Target, num_places: int, settings: Mapping[str, Any]) -> None:
    """Raises ValueError where a target takes no places, or where an order does not fit the settings of a run."""
    for name in ("drafter", "verifier", "stop_token", "row_tokens"):
        if settings.get(name) is not None:
            raise ValueError(f"{name} must be None where places are drawn in an order of their own")
    if num_places != settings["max_new_tokens"]:
        raise ValueError(f"order must have max_new_tokens ({settings['max_new_tokens']}), got {num_places}")
    if not hasattr(target, "forward_places"):
        raise ValueError(f"{type(target).__name__} takes no places: it has no forward_places")


@dataclass(frozen=True)
class Lines:
    """Lines of equal length, one behind the other.

    Args:
        num_places: Tokens of a row: whole lines, and the end-of-row tokens between them.
        line_length: Tokens of a line that are drawn.
        row_end: The token between two lines; None: there is none.

    Raises:
        ValueError: Places that do not fill whole lines.
    """

    num_places: int
    line_length: int
    row_end: int | None = None

    def __post_init__(self) -> None:
        check_counts(num_places=self.num_places, line_length=self.line_length)
        if (self.num_places + self.has_row_ends) % self.stride:
            marked = " with an end-of-row token between two" if self.has_row_ends else ""
            raise ValueError(
                f"num_places must be those of whole lines of line_length ({self.line_length}){marked}, got "
                f"{self.num_places}"
            )

    @property
    def sizes(self) -> tuple[Lines, ...]:
        """The lines that rows of the batch may have."""
        return (self,)

    @property
    def has_row_ends(self) -> bool:
        """Whether an end-of-row token stands between two lines."""
        return self.row_end is not None

    @property
    def stride(self) -> int:
        """Places from the first of a line to the first of the next."""
        return self.line_length + self.has_row_ends

    @property
    def num_lines(self) -> int:
        """R."""
        return (self.num_places + self.has_row_ends) // self.stride

    @property
    def num_slots(self) -> int:
        """Slots behind the prompt: of every place, and of the placeholders before all lines but the first."""
        return self.num_places + (0 if self.has_row_ends else self.num_lines - 1)

    @property
    def forced_tokens(self) -> Tensor | None:
        """[num_places] int64, the end-of-row tokens, and -1 elsewhere; None without them."""
        if self.row_end is None:
            return None
        known = torch.full((self.num_places,), -1)
        known[self.line_length :: self.stride] = self.row_end
        return known

    def check_window(self, window: Window) -> None:
        """Raises ValueError where a window is longer than a line."""
        for each in each_window(window):
            if each > self.line_length:
                raise ValueError(f"window must be at most line_length ({self.line_length}), got {each}")

    def windows(self, window: Window) -> tuple[int, ...]:
        """The window of each line; 0 of the first, which nothing precedes."""
        given, count = each_window(window), self.num_lines
        return (0, *(given[line * len(given) // count] for line in range(1, count)))


def each_window(window: Window) -> tuple[int, ...]:
    """All that are given. Raises ValueError for none, or for one below 1."""
    given = window if isinstance(window, tuple) else (window,)
    if not given:
        raise ValueError("window must be a number, or at least one")
    for each in given:
        check_counts(window=each)
    return given


def in_proportion(count: int, line_length: int, of_length: int | None) -> int:
    """Tokens of a line, meant for lines of `of_length`, for one of `line_length`, rounded up; None: as given."""
    return count if of_length is None else -(-count * line_length // of_length)


def scaled_window(window: Window, line_length: int, of_length: int | None) -> tuple[int, ...]:
    """All of a window by `in_proportion`."""
    return tuple(in_proportion(each, line_length, of_length) for each in each_window(window))


@dataclass(frozen=True)
class _Fed:
    """One fed token; fields as in `PlacedTokens`. `line` is the line whose placeholder it may see."""

    source: int
    position: int
    slot: int
    line: int
    draws: int | None


def feed_given(target: Target, tokens: Tensor, num_slots: int) -> TargetOutput:
    """Feed the first tokens [B, P] of every row to their slots, as a chain, where so many slots are used in all.

    A row that has fewer feeds some that nobody sees. Raises ValueError as `check_places`.
    """
    placed: PlacedTarget = target  # type: ignore[assignment]
    placed.check_places(num_slots)
    places = torch.arange(tokens.shape[1], device=tokens.device)[None]
    output = placed.forward_places(tokens, Positions(places, places, (places <= places.mT)[None]))
    # No token moves, and none is committed. But the cache reaches so far, and rows that join bring these slots along.
    placed.commit(places.expand_as(tokens), torch.zeros_like(tokens[:, 0]))
    return output


class StaggeredLines(Order):
    """An order over lines of equal length: a line opens as soon as the line before it has `window` tokens.

    Every open line draws one token a pass, so none overtakes the line before it. A window of the whole line is plain
    decoding; a window of 1 draws an anti-diagonal. Passes, the prefill included: length + the sum of `Lines.windows`.

    A placeholder copies the newest token of the line two before its own, as in the released code. That of the second
    line copies the newest token of the first.

    Args:
        lines: The lines.
        window: From 1 to the length of a line, see `Window`.

    Raises:
        ValueError: A window that is longer than a line.
    """

    def __init__(self, lines: Lines, window: Window) -> None:
        lines.check_window(window)
        self.lines, self.window = lines, window
        windows = lines.windows(window)
        self._opens_in = tuple(accumulate(windows))
        self._has_placeholder = [not lines.has_row_ends and 0 < each < lines.line_length for each in windows]
        self._places = torch.arange(lines.num_places)
        self._fed_in_pass = torch.tensor([self.drawn_in(place) + 1 for place in range(lines.num_places)])

    def run(self, target: Target, **settings: Any) -> DecodeRun:
        """See `Order`."""
        return OrderedRun(target, order=self, **settings)

    @property
    def num_passes(self) -> int:
        """Passes of the target; number 0 is the prefill, which draws place 0."""
        return self.lines.line_length + self.opens_in(self.lines.num_lines - 1)

    def opens_in(self, line: int) -> int:
        """The pass that draws the first place of a line."""
        return self._opens_in[line]

    def drawn_in(self, place: int) -> int:
        """The pass that draws a place; the next one feeds its token. End-of-row tokens count as drawn one earlier."""
        line, column = divmod(place, self.lines.stride)
        is_row_end = column == self.lines.line_length
        return self.opens_in(line + 1) - 1 if is_row_end else self.opens_in(line) + column

    def leading(self, number: int) -> int:
        """How many places from 0 on are drawn without a gap once pass `number` is made."""
        for line in range(self.lines.num_lines):
            drawn = number + 1 - self.opens_in(line)
            if drawn < self.lines.line_length:
                waits_for_row_end = drawn <= 0 < line and self.lines.has_row_ends
                return line * self.lines.stride + drawn - waits_for_row_end
        return self.num_places

    def tokens_of(self, number: int) -> PlacedTokens:
        """What pass `number` feeds and draws, on the CPU; from 1 to `num_passes - 1`."""
        fed = self._fed_in(number)
        drawing = [index for index, token in enumerate(fed) if token.draws is not None]
        return PlacedTokens(
            positions=torch.tensor([[token.position for token in fed]]),
            slots=torch.tensor([[token.slot for token in fed]]),
            visible=self._visible(fed, number)[None],
            sources=torch.tensor([token.source for token in fed]),
            drawing=torch.tensor(drawing),
            drawn=torch.tensor([fed[index].draws for index in drawing]),
            added=torch.tensor([fed[index].draws for index in drawing] + self._row_ends_fed(number)),
        )

    def _fed_in(self, number: int) -> list[_Fed]:
        """The tokens drawn in the pass before, then the end-of-row tokens or placeholders before lines that open."""
        length, stride, last = self.lines.line_length, self.lines.stride, self.num_places - 1
        columns = [(line, number - 1 - self.opens_in(line)) for line in range(self.lines.num_lines)]
        new = [line * stride + column for line, column in columns if 0 <= column < length]
        row_ends = self._row_ends_fed(number)
        fed = []
        for place in new:
            # The token after a line's last one is drawn from it only where the next line has waited for it.
            follows = place < last and place + 1 not in row_ends and self.drawn_in(place + 1) == number
            follows &= place % stride != length - 1 or not self.lines.has_row_ends
            if place < last:  # the last token of all is never fed
                fed.append(_Fed(place, place, place, place // stride, place + 1 if follows else None))
        fed += [_Fed(end, end, end, end // stride, end + 1) for end in row_ends]
        opening = [line for line in range(1, self.lines.num_lines) if self.opens_in(line) == number]
        return fed + [self._placeholder(line, number) for line in opening if self._has_placeholder[line]]

    def _row_ends_fed(self, number: int) -> list[int]:
        """The end-of-row tokens before lines that pass `number` opens."""
        opening = [line for line in range(1, self.lines.num_lines) if self.opens_in(line) == number]
        return [line * self.lines.stride - 1 for line in opening] if self.lines.has_row_ends else []

    def _placeholder(self, line: int, number: int) -> _Fed:
        """What holds the place before a line that pass `number` opens."""
        copied = max(line - 2, 0)
        length = self.lines.line_length
        newest, first = min(number - 1 - self.opens_in(copied), length - 1), line * length
        return _Fed(copied * length + newest, first - 1, self.num_places + line - 1, line, first)

    def _visible(self, fed: list[_Fed], number: int) -> Tensor:
        """[n, W] bool: the fed tokens at or before a token's place, and its line's placeholder until the real token is
        fed."""
        positions = torch.tensor([token.position for token in fed])
        visible = torch.zeros(len(fed), self.num_slots, dtype=torch.bool)
        visible[:, : self.num_places] = (self._places <= positions[:, None]) & (self._fed_in_pass <= number)
        for row, token in zip(visible, fed, strict=True):
            if self._has_placeholder[token.line]:
                before = token.line * self.lines.line_length - 1
                row[self.num_places + token.line - 1] = self.drawn_in(before) + 1 > number
        return visible


class OrderedRun(DecodeRun):
    """A run in which the target draws places in an order of their own; nothing is drafted.

    The rows of a batch are always at the same pass, so they end together, and other requests take all their rows at
    once. During the run `state.lengths` counts the places that are drawn without a gap from 0 on; `state.tokens` also
    has later places.

    Args:
        target: A `PlacedTarget` before its prefill.
        order: Which places each pass draws; one for each of `max_new_tokens`.
        settings: Arguments of `DecodeRun`, without drafter, verifier and stop token.

    Raises:
        ValueError: As `DecodeRun` and `check_takes_places`. At the first step: the target has no room.
    """

    rows_in_lockstep = True
    graph_state = (*DecodeRun.graph_state, "_undrawn", "_tables", "_number_in_graph")

    def __init__(self, target: Target, *, order: StaggeredLines, **settings: Any) -> None:
        super().__init__(target, **settings)
        check_takes_places(target, order.num_places, settings)
        if self._forced_tokens is not None:
            raise ValueError("forced_tokens must be None where rows are at the same pass; use `row_windows.RowWindows`")
        self._placed: PlacedTarget = target  # type: ignore[assignment]
        self.order = order
        self.logged_places = order.num_places
        self._number = 0  # of the pass made last
        self._plans: dict[int, PlacedTokens] = {}  # by number, on the device
        self._undrawn = torch.full_like(self._buffer, -1, dtype=torch.int8)
        fill_forced(self._buffer, order.lines.forced_tokens)
        if self.compiler is not None:
            self._tables = _Tables(order, target.device)
            self._number_in_graph = torch.zeros(1, dtype=torch.int64, device=target.device)

    def prepare(self) -> None:
        """Raises ValueError at the first step where the target has no room."""
        if self._number == 0:
            self._placed.check_places(self.order.num_slots)
        self._number += 1

    def perform(self) -> int:
        """One pass over places. Returns how many tokens every row has gained; 0 once all have ended."""
        state, last = self.state, self.order.num_passes - 1
        goes_on: Tensor | bool
        if in_graph():
            number = self._number_in_graph = (self._number_in_graph + 1).clamp(max=last)
            placed, (leading, fed, added) = self._tables.of(number)
            fed, goes_on = fed.expand(len(state.lengths)), number < last
            gained = -(-self.order.num_places // last)  # on the average: all rows end with the last pass
        else:
            if self._number > last:
                return 0
            placed, goes_on = self._tokens_of(self._number), self._number < last
            leading, fed, gained = self.order.leading(self._number), placed.slots.shape[1], len(placed.added)
            added = gained
        with self._part("target"):
            output = self._placed.forward_places(self._buffer[:, placed.sources], placed)
        with self._part("verify"):
            logits = output.logits[:, placed.drawing]
            self._check_logits("forward_places", logits, (len(self._buffer), len(placed.drawn)))
            self.watch.note(logits, state.active[:, None].expand(-1, len(placed.drawn)))
            counters = placed.drawn.expand(len(logits), -1)
            drawn = draw_tokens(logits, state.sampling, state.streams, counters, Tag.TARGET)
        with self._part("commit"):
            self._buffer[:, placed.drawn] = torch.where(state.active[:, None], drawn, self._buffer[:, placed.drawn])
            zeros, going_on = self._no_tokens, state.active
            origins = self._undrawn.index_fill(1, placed.added, TokenOrigin.TARGET)[:, :-1]
            self.log.record_step(StepRecord(going_on, zeros, zeros, going_on * added, zeros, fed=fed, by_place=origins))
            state.decided_places = state.decided | ((origins >= 0) & going_on[:, None])
            state.lengths = torch.where(going_on, leading, state.lengths)
            state.newest = state.least_room = None
            state.active = going_on & goes_on
        return gained

    def _tokens_of(self, number: int) -> PlacedTokens:
        """The order's, on the target's device; the next requests of a queue use them again."""
        if number not in self._plans:
            placed = self.order.tokens_of(number)
            moved = {name: tensor.to(self.target.device) for name, tensor in vars(placed).items()}
            self._plans[number] = PlacedTokens(**moved)
        return self._plans[number]

    @torch.no_grad()
    def replace_rows(self, rows: Tensor, other: DecodeRun) -> None:
        """See `DecodeRun.replace_rows`. Raises ValueError while a row has not ended."""
        if bool(self.state.active.any()):
            raise ValueError("rows must all have ended before others take their places: they are at the same pass")
        with self.in_place(self):
            super().replace_rows(rows, other)
            self._number, self.state.decided_places = 0, None
            self.state.decided_places = self.state.decided
            if self.compiler is not None:
                self._number_in_graph = torch.zeros_like(self._number_in_graph)


class _Tables:
    """What every pass of an order feeds and draws, by its number, so that a graph looks it up.

    All passes are as wide as the widest: they feed their first token again, and draw a place behind all others.
    """

    graph_state = ("_fields", "_counts")

    def __init__(self, order: StaggeredLines, device: torch.device) -> None:
        passes = [order.tokens_of(max(number, 1)) for number in range(order.num_passes)]
        self._fields = {}
        for name, first in vars(passes[0]).items():
            along, each = min(first.ndim - 1, 1), [vars(placed)[name] for placed in passes]
            index = torch.arange(max(values.shape[along] for values in each))
            theirs = [index < values.shape[along] for values in each]
            wide = [values.index_select(along, index.where(own, 0)) for values, own in zip(each, theirs, strict=True)]
            if name in ("drawn", "added"):
                wide = [values.where(own, order.num_places) for values, own in zip(wide, theirs, strict=True)]
            self._fields[name] = torch.stack(wide).to(device)
        counts = [[order.leading(i), each.slots.shape[1], len(each.added)] for i, each in enumerate(passes)]
        self._counts = torch.tensor(counts, device=device)

    def of(self, number: Tensor) -> tuple[PlacedTokens, Tensor]:
        """Those of pass `number` [1], and [3] int64: places drawn without a gap, tokens fed, places added."""
        placed = PlacedTokens(**{name: table[number][0] for name, table in self._fields.items()})
        return placed, self._counts[number][0]
