"""Errors and warnings that a user can do something about. Nothing else belongs here: everything can import it."""

import sys
import warnings
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: one line that names the argument and the remedy. The command line prints it and exits with code 2."""


class NotFiniteError(UserError):
    """A picture or an answer came out of numbers that are none, so that it means nothing.

    Attributes:
        row: of the batch, from 0.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """What an error about a mistyped name adds: a known name that is near, or nothing. Near is a letter in six, or
    one of fewer, added, left out, changed or swapped with its neighbour."""
    given = str(name)[:80].lstrip("-")
    near = {each: _mistakes(given, each.lstrip("-")) for each in known}
    best = min(near, key=lambda each: near[each], default="")
    return f" (did you mean {best!r}?)" if best and near[best] <= max(1, len(best.lstrip("-")) // 6) else ""


def _mistakes(given: str, meant: str) -> int:
    """Letters added, left out, changed or swapped with their neighbours: the optimal string alignment."""
    two_above, above = list[int](), list(range(len(meant) + 1))
    for row, letter in enumerate(given, start=1):
        here = [row]
        for column, other in enumerate(meant, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != other)))
            if column > 1 < row and given[row - 2] == other and meant[column - 2] == letter:
                here[-1] = min(here[-1], two_above[column - 2] + 1)
        two_above, above = above, here
    return above[-1]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, pointing at the user's own line: the nearest one that is neither vargen's nor torch's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("vargen", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
