"""Progress: silence when asked, lines in a log, nothing counted that nobody sees."""

from __future__ import annotations

import pytest

from vargen.runs.progress import progress


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(3, "calls", quiet=True) as shown:
        shown.mininterval = shown.delay = 0.0
        shown.update(3)
        assert shown.disable
    assert capsys.readouterr().err == ""


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1000, "calls") as shown:
        shown.update()
        assert not shown.disable
        assert capsys.readouterr().err == ""
        shown.mininterval = shown.delay = 0.0
        shown.update(499)
    error = capsys.readouterr().err
    assert error.startswith("500 of 1,000 calls, about ") and error.count("\n") == 1
