"""Whether a target spoke in numbers: noted on the device at every step, read once when all is decoded.

Belongs here: the note and the error. Does not belong here: why logits were no numbers, which only the caller can guess.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class NotFiniteError(ArithmeticError):
    """Logits that are no numbers: whatever was drawn from them means nothing.

    Attributes:
        row: the first such row.
        step: of its first such pass; 0 is the prefill.
    """

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} are not finite at step {step}; check the weights and their precision")
        self.row = row
        self.step = step


class FiniteWatch:
    """Notes the first step at which a row's logits were no numbers. Nothing waits for the device before `check`.

    Minus infinity is how a target forbids a token, and is no fault while another token is left.

    Args:
        batch_size: rows.
        device: of the logits.
    """

    def __init__(self, batch_size: int, device: torch.device) -> None:
        self._never = torch.iinfo(torch.int64).max
        self._first = torch.full((batch_size,), self._never, dtype=torch.int64, device=device)

    def look(self, step: int, logits: Tensor, nodes: Tensor) -> None:
        """Note what is wrong with logits [B, n, V] where `nodes` [B, n] bool says that they mean something."""
        largest = logits.amax(-1)  # NaN wins, then +inf; -inf only where nothing is left to draw
        if largest.device.type == "cpu" and np.isfinite(largest.numpy()).all():
            return  # as nearly always
        wrong = (~largest.isfinite() & nodes).any(1)
        self._first = torch.where(wrong, self._first.clamp(max=step), self._first)

    def replace_rows(self, rows: Tensor, other: FiniteWatch) -> None:
        """What is noted of `rows` [k] is what another watch noted of its k rows."""
        self._first = self._first.index_copy(0, rows, other._first)

    def first_steps(self) -> list[int | None]:
        """Of every row the step at which its logits were no numbers; None: they always were. Waits for the device."""
        return [None if step == self._never else step for step in self._first.tolist()]

    def check(self) -> None:
        """Wait for the device. Raises NotFiniteError for the first row of which anything was noted."""
        for row, step in enumerate(self.first_steps()):
            if step is not None:
                raise NotFiniteError(row, step)
