"""What a call refuses: `UserError`, in one line; and a command: exit code 2, and an error."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from vargen.base.errors import UserError


def refused(match: str, call: Callable[..., object], /, *arguments: Any, **settings: Any) -> None:
    """Check that a call with these arguments is refused, and that the one line of it has what `match` finds."""
    with pytest.raises(UserError, match=match) as error:
        call(*arguments, **settings)
    assert "\n" not in str(error.value)


def raised(kind: type[Exception], match: str, call: Callable[..., object], /, *arguments: Any, **settings: Any) -> None:
    """Check that a call with these arguments raises an error of this kind, in which there is what `match` finds."""
    with pytest.raises(kind, match=match):
        call(*arguments, **settings)


def refuses(capsys: pytest.CaptureFixture[str], code: int, said: str) -> None:
    """Check that a command, whose exit code this is, was refused with what is `said`."""
    error = capsys.readouterr().err
    assert (code, said in error) == (2, True), error


value_error = partial(raised, ValueError)
"""Check that a call of the core raises it, as `raised` does."""
