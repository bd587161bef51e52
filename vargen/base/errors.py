"""Errors and warnings that a user can do something about. Nothing else belongs here: everything can import it."""

import difflib
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
    """What an error about a mistyped name adds: a known name that is near, or nothing."""
    bare = {each.lstrip("-"): each for each in known}
    close = [bare[each] for each in difflib.get_close_matches(str(name).lstrip("-"), bare, n=1, cutoff=0.7)]
    return f" (did you mean {close[0]!r}?)" if close else ""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, pointing at the user's own line: the nearest one that is neither vargen's nor torch's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("vargen", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
