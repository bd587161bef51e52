"""The one error of this package that a user can cause: data that does not fit what is to be computed from it.

Belongs here: that error, and what a library's own error says. Does not belong here: checks (`features.py`), and what
needs torch.
"""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be measured: one line that names what is wrong and the remedy."""


def one_line(error: Exception, most: int = 200) -> str:
    """What a library's error says, on one line of at most so many characters."""
    return " ".join(str(error).split())[:most]
