"""Diagonals: a place is drawn after its neighbours to the left and above, all places of an anti-diagonal in one pass.

Belongs here: the order, what each pass feeds and sees, and a target that asks a second network about the place below a
token. Does not belong here: orders in which a line's next token is drawn from that line alone (`places.py`), and any
network.

A target says what follows a token in its line. A *vertical head* says what stands below it, and mixes both. The first
line has nothing above it, and the first place of every other line has nothing to its left.

A pass feeds one diagonal and draws the next. So every token is fed once, nothing stands in for a missing one, and L
lines of length n take L + n - 1 passes, the prefill included. In the target a token sees the tokens before it in raster
order that are fed by then. In the head it sees all that are fed.

Sources: NAR, arXiv 2503.10696 (the order), and FlashAR, arXiv 2605.09430 (a vertical branch beside a finished model).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specdecode.grid.positions import Lines, PlacedTarget, PlacedTokens, PlaceOrder, Places, check_takes_places
from specdecode.loop import DecodeRun
from specdecode.roles import Target, TargetOutput, replace_rows


@dataclass(frozen=True)
class CrossedTokens(PlacedTokens):
    """The tokens of a pass, and where the neighbours of the k drawn places stand among them.

    Args:
        left, above: [k] int64, numbers of fed tokens; without meaning where there is no such neighbour.
        has_left, has_above: [k] bool.
        fed: [1, n, W] bool, which of the W slots behind the prompt the head sees: all that are fed by now.
    """

    left: Tensor
    above: Tensor
    has_left: Tensor
    has_above: Tensor
    fed: Tensor


class VerticalHead(Protocol):
    """Says beside a target what stands below a token. It has a cache of its own, with slots by place."""

    def prefill(self, prompt: TargetOutput) -> None:
        """Feed what the target says of the prompts."""
        ...

    def forward_places(self, output: TargetOutput, placed: CrossedTokens) -> Tensor:
        """Logits [B, k, V] float32 of the drawn places, the target's own mixed in.

        Args:
            output: the target's, of the n fed tokens.
            placed: where they stand, on the target's device.
        """
        ...

    def replace_rows(self, rows: Tensor, other: Any) -> None:
        """See `specdecode.roles.RowReplacing`."""
        ...


class CrossedTarget:
    """A target whose `forward_places` says what stands at the drawn places, by itself and its vertical head.

    Args:
        target: A `PlacedTarget` before its prefill.
        head: Beside this target.
    """

    def __init__(self, target: PlacedTarget, head: VerticalHead) -> None:
        self._target, self._head = target, head
        self.vocab_size, self.batch_size, self.device = target.vocab_size, target.batch_size, target.device

    def prefill(self) -> TargetOutput:
        """Feed the prompts to both."""
        output = self._target.prefill()
        self._head.prefill(output)
        return output

    def check_places(self, num_slots: int) -> None:
        """See `PlacedTarget`."""
        self._target.check_places(num_slots)

    def forward_places(self, tokens: Tensor, placed: Places) -> TargetOutput:
        """Feed tokens [B, n] to both. Returns logits [B, k, V] of the drawn places."""
        assert isinstance(placed, CrossedTokens)
        return TargetOutput(self._head.forward_places(self._target.forward_places(tokens, placed), placed))

    def replace_rows(self, rows: Tensor, other: CrossedTarget) -> None:
        """See `specdecode.roles.RowReplacing`."""
        replace_rows(self._target, rows, other._target)
        replace_rows(self._head, rows, other._head)


class Diagonals(PlaceOrder):
    """The order, with the head that it needs.

    Args:
        lines: Lines without marks between them.
        head: Beside the target of the run.

    Raises:
        ValueError: Lines with marks.
    """

    def __init__(self, lines: Lines, head: VerticalHead) -> None:
        if lines.has_marks:
            raise ValueError("lines must have no marks between them where places are drawn in diagonals")
        self.lines, self.head = lines, head
        self._places = torch.arange(lines.num_places)
        self._line, self._column = self._places // lines.line_length, self._places % lines.line_length
        self._diagonal = self._line + self._column

    @property
    def num_slots(self) -> int:
        """See `places.Order`: nothing stands in."""
        return self.lines.num_places

    @property
    def num_passes(self) -> int:
        """See `places.PlaceOrder`."""
        return self.lines.num_lines + self.lines.line_length - 1

    def leading(self, number: int) -> int:
        """See `places.PlaceOrder`."""
        undrawn = (self._diagonal > number).nonzero()
        return int(undrawn[0]) if len(undrawn) else self.num_places

    def tokens_of(self, number: int) -> CrossedTokens:
        """See `places.PlaceOrder`. Logits are those of the drawn places, in their order."""
        fed, drawn = (self._places[self._diagonal == each] for each in (number - 1, number))
        number_of = torch.zeros(self.num_places, dtype=torch.int64)
        number_of[fed] = torch.arange(len(fed))
        is_fed = self._diagonal < number
        has_left, has_above = self._column[drawn] > 0, self._line[drawn] > 0
        return CrossedTokens(
            positions=fed[None],
            slots=fed[None],
            visible=((self._places <= fed[:, None]) & is_fed)[None],
            sources=fed,
            drawing=torch.arange(len(drawn)),
            drawn=drawn,
            added=drawn,
            left=number_of[(drawn - 1).where(has_left, 0)],
            above=number_of[(drawn - self.lines.line_length).where(has_above, 0)],
            has_left=has_left,
            has_above=has_above,
            fed=is_fed.expand(1, len(fed), -1),
        )

    def run(self, target: Target, **settings: Any) -> DecodeRun:
        """See `places.Order`."""
        check_takes_places(target, self.num_places, settings)
        crossed: Any = CrossedTarget(target, self.head)  # type: ignore[arg-type]
        return super().run(crossed, **settings)
