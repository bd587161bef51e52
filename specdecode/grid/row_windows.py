"""Row windows: each row of the batch decides by its own draws when a line opens and how far it goes in a pass.

Belongs here: the rule, and its run. Not here: places and lines (`positions.py`).

A line opens once the line before it has some decided tokens. A pass feeds the decided tokens that were not fed, and the
line's *guesses*: tokens behind the decided ones. It draws the place after each of them with plain decoding's random
number for that place. Guesses are accepted as far as they equal these draws, and the draw behind them is decided, too.
The other draws are the next guesses. A place that no pass has drawn is first guessed from the last distribution of its
line.

Its own line alone sees a guess, and only in the pass that feeds it. A slot is overwritten when it is fed again, so
nothing is ever removed.

Without guesses every open line draws one token a pass, so all passes are known beforehand: a window of the whole line
is plain decoding, and a window of 1 draws an anti-diagonal.

Sources: PJD, arXiv 2606.05703 (guesses in several lines; equal draws replace its ratio test), and He et al. 2024,
arXiv 2412.04062 (no guesses, or a first token that must be confirmed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_counts
from specdecode.grid.mixed_grids import GridLayout, MixedGrids
from specdecode.grid.positions import Lines, Window, each_window, fill_forced, in_proportion, or_forced, scaled_window
from specdecode.kernels import fused_ops
from specdecode.kernels.in_graph import in_graph
from specdecode.loop import DecodeRun
from specdecode.roles import PlacedTarget, Positions, Target, TargetOutput
from specdecode.sampling import Tag, largest, sample
from specdecode.trace import TokenOrigin


@dataclass(frozen=True)
class RowWindows:
    """When lines open, and how much of them is guessed.

    Args:
        lines: The lines, of one size or of several.
        window: Decided tokens of the line before when a line opens, from 1 to the length of a line, see `Window`. Of
            `MixedGrids` it may be longer: where lines are shorter, it is the whole line.
        guesses: The most guesses of a line. It has no more than the line before is ahead, so that it does not overtake.
        confirm_first: A line's first token is decided once two passes in a row draw it, or once the token before it is
            known. Until then it is a guess.
        max_visits: A token that so many passes have drawn is decided, whatever stood before it; None: by no number.
        start_from_row_above: A line opens with the tokens of the line before as guesses; else with none. Not with
            `confirm_first`.
        guessed_columns: Guesses lie among so many first tokens of a line; None: anywhere.
        of_length: `window` and `guessed_columns` are meant for lines of so many tokens; a row with others has them in
            proportion, rounded up. None: they are as they are in every row.

    Raises:
        ValueError: An argument out of range.
    """

    lines: Lines | MixedGrids
    window: Window
    guesses: int = 0
    confirm_first: bool = False
    max_visits: int | None = None
    start_from_row_above: bool = False
    guessed_columns: int | None = None
    of_length: int | None = None

    def __post_init__(self) -> None:
        check_counts(0, guesses=self.guesses)
        for name in ("max_visits", "guessed_columns", "of_length"):
            if getattr(self, name) is not None:
                check_counts(**{name: getattr(self, name)})
        longest, of_lines = max(each_window(self.window)), isinstance(self.lines, Lines) and self.of_length is None
        most = self.lines.line_length if of_lines else self.of_length
        if most is not None and longest > most:
            name = "line_length" if of_lines else "of_length"
            raise ValueError(f"window must be at most {name} ({most}), got {longest}")
        if self.start_from_row_above and self.confirm_first:
            raise ValueError("start_from_row_above must be off where confirm_first is on: no pass has drawn a copy")

    def windows(self, lines: Lines) -> tuple[int, ...]:
        """The window of each of a row's lines, none longer than a line; 0 of the first."""
        scaled = scaled_window(self.window, lines.line_length, self.of_length)
        return tuple(min(each, lines.line_length) for each in lines.windows(scaled))

    def guessable(self, lines: Lines) -> int:
        """So many first tokens of a row's lines may be guesses: never the last one, behind which nothing is drawn."""
        last = lines.line_length - 1
        if self.guessed_columns is None:
            return last
        return min(last, in_proportion(self.guessed_columns, lines.line_length, self.of_length))

    @property
    def passes_between_lines(self) -> int:
        """The least number of passes from the opening of a line to that of the next."""
        windows = (each for lines in self.lines.sizes for each in (lines.line_length, *self.windows(lines)[1:]))
        return self._passes(min(windows))

    @property
    def least_passes(self) -> int:
        """The pass before which no row of the batch ends; number 0 is the prefill."""
        return min(
            sum(map(self._passes, self.windows(lines)[1:])) + self._passes(lines.line_length) - 1
            for lines in self.lines.sizes
        )

    @property
    def most_fed(self) -> int:
        """The most tokens that a pass feeds in a row of the batch: of every open line new ones and guesses, and one
        before the line that opens, which is one at a time."""
        most_open = min(self.lines.num_lines, self.lines.line_length // self.passes_between_lines + 3)
        return most_open * (2 * self.guesses + 1) + 1

    def _passes(self, tokens: int) -> int:
        """The least number of passes in which a line gets so many tokens, that which opens it included."""
        alone = 0 if self.start_from_row_above else 1  # without guesses, the pass that opens a line draws one token
        return alone + -(-(tokens - alone) // (self.guesses + 1))


@dataclass(frozen=True)
class _Pass:
    """What one pass feeds and draws. Places are [B, R, S], by line and column; the last column is of end-of-row tokens.
    W is the number of slots.

    Args:
        opened: [B, R] bool, lines that draw.
        waiting: [B, R] bool, lines of these whose first token is drawn before the line above is full.
        decided: bool, places decided before the pass, without end-of-row tokens.
        guessed: bool, guesses; they are fed.
        drawn: bool, places that the pass draws.
        feeding: [B, W] bool, the slots to which tokens are fed.
    """

    opened: Tensor
    waiting: Tensor
    decided: Tensor
    guessed: Tensor
    drawn: Tensor
    feeding: Tensor


class RowWindowRun(DecodeRun):
    """A run over row windows. Rows of the batch are independent: each has lines, passes and an end of its own.

    During the run `state.lengths` counts the places that are decided without a gap from 0 on; `state.tokens` also has
    later places and guesses.

    Args:
        target: A `PlacedTarget` before its prefill.
        rule: The lines, with one place for each of `max_new_tokens`.
        settings: Arguments of `DecodeRun`, without drafter, verifier and stop token; `row_tokens` are the places of
            each row where lines are of several sizes.

    Raises:
        ValueError: As `DecodeRun`; a target that takes no places; settings or a number of tokens that do not fit the
            rule. At the first step: the target has no room.
    """

    ends_with_last_drawn = False
    _of_rows = ("_counts", "_windows", "_guessable", "_guesses", "_fed", "_visits")
    graph_state = (*DecodeRun.graph_state, "_layout", "_places", "_columns", "_copied", "_placeholders", *_of_rows)

    def __init__(self, target: Target, *, rule: RowWindows, row_tokens: Tensor | None = None, **settings: Any) -> None:
        super().__init__(target, row_tokens=row_tokens, **settings)
        _check_fits(target, rule, settings)
        self._layout = layout = GridLayout(rule.lines, target.device)
        lines = rule.lines
        own = layout.num_places.tolist() if isinstance(lines, MixedGrids) else None
        if own != (None if row_tokens is None else row_tokens.tolist()):
            raise ValueError("row_tokens must be the places of each row, and None where lines are of one size")
        self._placed: PlacedTarget = target  # type: ignore[assignment]
        self.rule, self.logged_places = rule, lines.num_places
        self.may_stop = self.compiler is not None  # the host reads late, and so never waits for a graph
        batch_size, device = target.batch_size, target.device
        self._places = torch.arange(lines.num_places, device=device)
        self._columns = torch.arange(lines.stride, device=device)
        self._copied = (layout.placeholders - 2).clamp(min=0)  # the lines whose newest tokens are copied
        # Slots of placeholders by line, where there are any; the first line has none.
        self._placeholders = lines.num_places - 1 + torch.arange(lines.num_lines, device=device)
        shape = batch_size, lines.num_lines, lines.stride
        rows = lines.rows if isinstance(lines, MixedGrids) else (lines,)
        copies = batch_size // len(rows)
        # Decided tokens of each line; all of a line that a row does not have. The prefill draws the first one.
        counts = torch.where(layout.firsts < layout.num_places[:, None], 0, layout.line_length)
        self._counts = counts.repeat(copies, 1)
        self._counts[:, 0] = 1
        # [B, R], the decided tokens of the line before when a line opens.
        windows = torch.zeros(len(rows), lines.num_lines, dtype=torch.int64)
        for row, own_lines in zip(windows, rows, strict=True):
            row[: own_lines.num_lines] = torch.tensor(rule.windows(own_lines))
        self._windows = windows.to(device).repeat(copies, 1)
        # [B], so many first tokens of a line may be guesses.
        self._guessable = torch.tensor([rule.guessable(each) for each in rows], device=device).repeat(copies)
        self._guesses = torch.zeros_like(self._counts)  # behind them
        self._fed = torch.zeros(shape, dtype=torch.bool, device=device)  # places whose decided tokens were fed
        self._visits = torch.zeros(shape, dtype=torch.int64, device=device)  # passes that have drawn each place
        self._rule_in_kernels = torch.tensor(
            [rule.guesses, rule.confirm_first, rule.max_visits or 0, rule.start_from_row_above]
        )
        fill_forced(self._buffer, lines.forced_tokens)
        self._least_passes = rule.least_passes
        if self._forced_tokens is not None:
            decided = (self._given[:, None] + 1 - layout.firsts).clamp(min=0).minimum(layout.line_length)
            self._counts = self._counts.maximum(decided)
            self._fed |= layout.firsts[..., None] + self._columns < self._given[:, None, None]
            self._least_passes = 0

    def _feed_given(self) -> TargetOutput:
        """Feed the given tokens to their slots, as a chain. A row that has fewer feeds some that nobody sees."""
        self.trace.passes_made += 1
        self._placed.check_places(self.rule.lines.num_slots)
        places = self._places[None, : self._most_given]
        output = self._placed.forward_places(
            self._buffer[:, : self._most_given], Positions(places, places, (places <= places.mT)[None])
        )
        # None moves, and none is committed. But the cache reaches so far, and rows that join bring these slots along.
        self._placed.commit(places.expand(len(self._buffer), -1), self._no_tokens)
        return output

    def prepare(self) -> None:
        """Raises ValueError at the first step where the target has no room."""
        if self.steps == 1:
            self._placed.check_places(self.rule.lines.num_slots)

    def perform(self) -> int:
        """One pass over all open lines. Returns a bound of what a row gains; 0 once all have ended."""
        if ragged.surely_none(self.state.active):
            return 0
        if fused_ops.serves(self._buffer):
            self._perform_in_calls()
        else:
            self._perform_in_lines()
        # Nothing ends before all lines have opened; after that, whatever is left may be decided at once.
        return 1 if in_graph() or self.steps < self._least_passes else self.rule.lines.num_places

    def _perform_in_calls(self) -> None:
        """`_perform_in_lines`, in two calls of the kernels."""
        state, lines, most = self.state, self._in_kernels(), self.rule.most_fed
        with self._part("draft"):
            slots, positions, tokens, real, visible = fused_ops.plan_lines(lines, most)
        with self._part("target"):
            output = self._placed.forward_places(tokens, Positions(positions, slots, visible))
            self._check_logits("forward_places", output.logits, tokens.shape)
        with self._part("verify"):
            self.log.width = tokens.shape[1]
            self.watch.note(output.logits, real & state.active[:, None])
            drawn = self._draw(output, positions + 1)
            ends = torch.as_tensor(state.ends).expand(len(drawn))
            fed = slots, positions, real
            counts, (by_place, decided), lengths, going_on, guesses = fused_ops.judge_lines(
                lines, self._rule_in_kernels, ends, fed, drawn, most
            )
            self.log.record_step(state.active, *counts[:4], fed=counts[4], by_place=by_place)
        with self._part("draft"):
            self._draw_guesses(output, *guesses)
        with self._part("commit"):
            self._advance(decided, lengths, going_on)

    def _in_kernels(self) -> fused_ops.RowWindowState:
        """What the kernels read and change."""
        kept = self._counts, self._guesses, self._fed, self._visits, self._windows, self._guessable
        return fused_ops.RowWindowState(
            self._layout.geometry, *kept, self.state.active, self._buffer, len(self._layout.placeholders)
        )

    def _perform_in_lines(self) -> None:
        """One pass in operations of torch: what the calls mean, for graphs, other devices, and without kernels."""
        state, rule = self.state, self.rule
        with self._part("draft"):
            this = self._what_to_feed()
            slots, real = _chosen(this.feeding, rule.most_fed)
            placed = Positions(_at(self._layout.position_of, slots), slots, self._visible(this, slots))
            tokens = self._buffer.gather(1, self._sources().gather(1, slots))
        with self._part("target"):
            self.log.width = tokens.shape[1]
            output = self._placed.forward_places(tokens, placed)
            self._check_logits("forward_places", output.logits, tokens.shape)
        with self._part("verify"):
            self.watch.note(output.logits, real & state.active[:, None])
            drawn = self._by_place(placed.positions + 1, self._draw(output, placed.positions + 1), real)
            self._judge(this, drawn)
        with self._part("draft"):
            self._guess(this, output, slots)
        with self._part("commit"):
            decided = self._decided_places()
            lengths = _leading(decided)
            self._advance(decided, lengths, state.active & (lengths < state.ends))

    def _advance(self, decided: Tensor, lengths: Tensor, going_on: Tensor) -> None:
        state = self.state
        state.decided_places, state.lengths, state.active = decided, lengths, going_on
        state.newest = state.least_room = None

    def _decided_places(self) -> Tensor:
        """[B, N] bool. An end-of-row token is decided with the first token behind it."""
        decided = self._columns < self._counts[..., None]
        if self.rule.lines.has_row_ends:
            decided = decided | (self._layout.is_end & _of_next_line(self._counts > 0)[..., None])
        return self._layout.by_place(decided)

    def _what_to_feed(self) -> _Pass:
        """Each line's decided tokens that were not fed, its guesses, and the token before a first one."""
        rule, layout, counts, active = self.rule, self._layout, self._counts, self.state.active[:, None]
        full = layout.line_length
        ahead = torch.cat((full.expand(len(counts), 1), counts[:, :-1]), 1)  # of the line before
        opened = (counts < full) & (ahead >= self._windows) & active
        begins = opened & (counts == 0)
        waiting = begins & (ahead < full)
        end = counts + self._guesses
        decided = self._columns < counts[..., None]
        guessed = ~decided & (self._columns < end[..., None])
        drawn = opened[..., None] & ~decided & (self._columns <= end[..., None])
        feeding = (decided & ~self._fed) | guessed
        # The end-of-row token before a line that begins, or the last token of the line before; perhaps once more.
        ending = _of_next_line(begins if rule.lines.has_row_ends else begins & ~waiting)
        feeding = (feeding | (layout.is_end & ending[..., None])) & layout.is_fed
        feeding = torch.cat((layout.by_place(feeding), waiting[:, layout.placeholders]), 1) & active
        return _Pass(opened, waiting, decided, guessed, drawn, feeding)

    def _visible(self, this: _Pass, slots: Tensor) -> Tensor:
        """[B, n, W] bool: the decided tokens at or before a token's place that are fed by now, its line's guesses among
        these places, and its line's placeholder until the real token is fed."""
        count, layout = self.rule.lines.num_places, self._layout
        guessed = layout.by_place(this.guessed)
        shared = layout.by_place(self._fed) | (this.feeding[:, :count] & ~guessed)
        lines, positions = _at(layout.line_of, slots)[..., None], _at(layout.position_of, slots)[..., None]
        own = guessed[:, None] & (layout.line_of[:, None, :count] == lines)
        among_places = (shared[:, None] | own) & (self._places <= positions)
        missing = ~_at(shared, layout.position_of[:, count:])
        return torch.cat((among_places, missing[:, None] & (layout.placeholders == lines)), 2)

    def _sources(self) -> Tensor:
        """[B, W] int64: the place whose token lies in a slot; a placeholder copies the newest token of the line two
        before its own, and that of the second line the newest of the first."""
        newest = self._layout.firsts[:, self._copied] - 1 + self._counts[:, self._copied]
        return torch.cat((self._places.expand(len(newest), -1), newest.clamp(max=self.rule.lines.num_places)), 1)

    def _draw(self, output: TargetOutput, places: Tensor) -> Tensor:
        """[B, n] int64: the target's tokens for places [B, n], with the numbers of plain decoding."""
        state = self.state
        if state.sampling.is_greedy:
            drawn = largest(output.logits)
        else:
            noise = state.streams.exponential(Tag.TARGET, places, output.logits.shape[-1])
            drawn = sample(output.probabilities(state.sampling), noise)
        return or_forced(drawn, self._forced_tokens, places)

    def _by_place(self, places: Tensor, values: Tensor, real: Tensor) -> Tensor:
        """[B, R, S]: values [B, n] at their places, where they are `real`."""
        laid = torch.zeros_like(self._buffer).scatter_(1, places.where(real, self.rule.lines.num_places), values)
        return self._layout.by_line(laid)

    def _judge(self, this: _Pass, drawn: Tensor) -> None:
        """Decide tokens and keep them, given the draws [B, R, S] of the pass. Draws behind what is decided are the next
        guesses."""
        rule, before, columns = self.rule, self._counts, self._columns
        kept = self._layout.by_line(self._buffer)
        match = this.guessed & (kept == drawn)
        right = _leading(this.decided | match)
        counts = torch.where(this.opened, right + 1, before)
        if rule.confirm_first:
            counts = torch.where(this.waiting & (right == 0), 0, counts)
        verified = counts
        if rule.max_visits is not None:
            self._visits += this.drawn
            counts = _leading((columns < counts[..., None]) | (this.drawn & (self._visits >= rule.max_visits)))
        is_drawn = self._layout.by_place(this.drawn)
        tokens = self._buffer[:, : rule.lines.num_places]
        tokens.copy_(self._layout.by_place(drawn).where(is_drawn, tokens))
        fed = self._layout.by_line(F.pad(this.feeding[:, : rule.lines.num_places], (0, 1)))
        # What was taken unverified has a newest token, too, which the next pass draws behind.
        self._fed |= fed & (~this.guessed | (match & (columns < counts[..., None] - 1)))
        decided_before = self._decided_places()
        self._counts = counts
        active, no_tokens = self.state.active, self._no_tokens
        by_visits = (columns >= verified[..., None]) & (columns < counts[..., None])
        origin = torch.where(columns < right[..., None], TokenOrigin.ACCEPTED, TokenOrigin.TARGET)
        origin = origin.where(~by_visits, TokenOrigin.UNVERIFIED)
        added = ~decided_before & self._decided_places()
        row_ends = added.sum(1) - (counts - before).sum(1)
        self.log.record_step(
            active,
            this.guessed.sum((1, 2)),
            ((right - before) * this.opened).sum(1),
            (verified - before).sum(1) + row_ends,
            no_tokens if rule.max_visits is None else (counts - verified).sum(1),
            fed=this.feeding.sum(1),
            by_place=self._layout.by_place(origin).where(added, -1).to(torch.int8),
        )

    def _guess(self, this: _Pass, output: TargetOutput, slots: Tensor) -> None:
        """Fill up the guesses of every line, from the distribution that its last draw came from."""
        rule, counts = self.rule, self._counts
        wanted = torch.where(counts == 0, max(rule.guesses, int(rule.confirm_first)), rule.guesses)
        layout, ahead, full = self._layout, counts[:, :-1], self._layout.line_length
        room = full.expand_as(counts).clone()
        room[:, 1:] = torch.where(ahead == full, full, ahead - counts[:, 1:])
        wanted = wanted.minimum(room).minimum(self._guessable[:, None] - counts).clamp_(min=0)
        opening = torch.zeros_like(this.opened)
        if rule.start_from_row_above:
            opening[:, 1:] = (ahead >= self._windows[:, 1:]) & ~this.opened[:, 1:] & (counts[:, 1:] == 0)
            kept, tokens = layout.by_line(self._buffer), self._buffer[:, : rule.lines.num_places]
            above = layout.by_place(torch.cat((kept[:, :1], kept[:, :-1]), 1))
            tokens.copy_(above.where(layout.by_place(opening[..., None].expand_as(kept)), tokens))
        self._guesses = wanted * (this.opened | opening)
        end = counts + wanted * this.opened
        drawn_to = this.drawn.sum(2) + this.decided.sum(2)  # [B, R], the first column that the pass did not draw
        new = (self._columns >= drawn_to[..., None]) & (self._columns < end[..., None])
        new = layout.by_place(new)
        if ragged.surely_none(new.any(1)):
            return
        places, real = _chosen(new, rule.most_fed)
        # The last fed token of each line, which its last draw came from: [B, R], as the number of a fed token.
        origin = layout.firsts + drawn_to - 2
        if not rule.lines.has_row_ends:
            origin = torch.where(this.waiting & (drawn_to == 1), self._placeholders, origin)
        fed = slots[:, None] == origin.gather(1, _at(layout.line_of, places))[..., None]  # [B, m, n]
        self._draw_guesses(output, places, fed.byte().argmax(2), real)

    def _draw_guesses(self, output: TargetOutput, places: Tensor, nodes: Tensor, real: Tensor) -> None:
        """Guesses at places [B, m], where they are `real`, from the distributions at nodes [B, m] of a pass."""
        if places.shape[1]:
            drawn = self._draw(TargetOutput(ragged.take(output.logits, nodes)), places)
            self._buffer.scatter_(1, places.where(real, self.rule.lines.num_places), drawn)

    @torch.no_grad()
    def replace_rows(self, rows: Tensor, other: DecodeRun) -> None:
        """See `DecodeRun.replace_rows`."""
        assert isinstance(other, RowWindowRun)
        with self.in_place(self):
            super().replace_rows(rows, other)
            self._layout.replace_rows(rows, other._layout)
            for name in self._of_rows:
                getattr(self, name).index_copy_(0, rows, getattr(other, name))
            self.state.decided_places = self._decided_places()


def _check_fits(target: Target, rule: RowWindows, settings: Mapping[str, Any]) -> None:
    """Raises ValueError where a target takes no places, or where a rule does not fit the settings of a run."""
    for name in ("drafter", "verifier", "stop_token"):
        if settings.get(name) is not None:
            raise ValueError(f"{name} must be None where places are drawn in an order of their own")
    if rule.lines.num_places != settings["max_new_tokens"]:
        raise ValueError(f"order must have max_new_tokens ({settings['max_new_tokens']}), got {rule.lines.num_places}")
    if not hasattr(target, "forward_places"):
        raise ValueError(f"{type(target).__name__} takes no places: it has no forward_places")


def _chosen(mask: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Where bool [B, m] is set, in order: [B, n] int64, and which of these are real, [B, n] bool. A row with fewer
    repeats its first."""
    counts = mask.sum(1)
    width = max(ragged.at_most(counts, min(most, mask.shape[1])), 1)
    index = mask.byte().argsort(dim=1, descending=True, stable=True)[:, :width]
    real = torch.arange(width, device=mask.device) < counts[:, None]
    return index.where(real, index[:, :1]), real


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Entries `index` [1 or B, n] of each row of values [1 or B, m]: [1 or B, n]."""
    size = max(len(values), len(index))
    return values.expand(size, -1).gather(1, index.expand(size, -1))


def _of_next_line(flags: Tensor) -> Tensor:
    """[B, R] bool: the flag of the line behind each; False behind the last."""
    return F.pad(flags[:, 1:], (0, 1))


def _leading(flags: Tensor) -> Tensor:
    """[...] int64: how many flags of bool [..., L] are set before the first that is not."""
    return flags.long().cumprod(-1).sum(-1)
