"""Whether logits are finite: noted on the device at every step, read once when all is decoded.

Belongs here: the note and the error. Does not belong here: the reason, which only the caller can know.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.kernels import fused_ops


class NotFiniteError(ArithmeticError):
    """Logits of a row are NaN or infinite, so tokens drawn from them mean nothing.

    Attributes:
        row: The first such row.
        step: The row's first such step; 0 is the prefill.
    """

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} are not finite at step {step}; check the weights and their precision")
        self.row = row
        self.step = step


class FiniteWatch:
    """Notes the first step at which a row's logits were not finite. Nothing waits for the device before `check`.

    A target forbids a token by minus infinity, which is fine while another token is left.

    Args:
        batch_size: rows.
        device: of the logits.
    """

    graph_state = ("step", "_first")

    def __init__(self, batch_size: int, device: torch.device) -> None:
        self._never = torch.iinfo(torch.int64).max
        self._first = torch.full((batch_size,), self._never, dtype=torch.int64, device=device)
        self.step: int | Tensor = -1  # of the last note; int64 [] where the host does not count

    def note(self, logits: Tensor, nodes: Tensor, rows: Tensor | None = None) -> None:
        """Note rows whose logits [B, n, V] of the next step are not finite at nodes that count: `nodes` [B or 1, n]
        bool, of `rows` [B] bool (None: all)."""
        self.step += 1
        if fused_ops.all_finite(logits):
            return  # as nearly always
        largest = logits.amax(-1)  # NaN wins, then +inf; -inf only where nothing is left to draw
        wrong = (~largest.isfinite() & nodes).any(1)
        wrong = wrong if rows is None else wrong & rows
        self._first = torch.where(wrong, self._first.clamp(max=self.step), self._first)

    def replace_rows(self, rows: Tensor, other: FiniteWatch) -> None:
        """Take over another watch's notes of k rows for `rows` [k]."""
        self._first = self._first.index_copy(0, rows, other._first)

    def first_steps(self) -> list[int | None]:
        """The first step with logits that were not finite, or None, for every row. Waits for the device."""
        return [None if step == self._never else step for step in self._first.tolist()]

    def check(self) -> None:
        """Wait for the device. Raises NotFiniteError for the first row with a note."""
        for row, step in enumerate(self.first_steps()):
            if step is not None:
                raise NotFiniteError(row, step)
