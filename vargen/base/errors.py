"""The errors that a user can do something about. Nothing else belongs here, so that everything can import it."""

import difflib
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
