"""Progress: silence when asked, lines in a log, nothing counted that nobody sees."""

from __future__ import annotations

import pytest

from vargen.runs import progress as module
from vargen.runs.progress import progress


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    with progress(3, "calls", quiet=True) as shown:
        shown.advance(3)
        assert shown.silent and shown.count == 3
    assert capsys.readouterr().err == ""


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress(1000, "calls") as shown:
        shown.advance()
        assert not shown.silent
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
        shown.advance_to(500)
    assert capsys.readouterr().err.startswith("500 of 1,000 calls, about ")
