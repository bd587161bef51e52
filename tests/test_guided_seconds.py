"""The benchmark of guidance that ends early: every setting draws the same prompts, and ratios are to plain decoding."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import guided_seconds
import pytest

from metrics.speculation import CallRecord


def test_every_setting_is_compared_with_plain_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[tuple[str, int | None, int, int]] = []

    def draw(pipeline: Any, method: Any, cases: list[Any], seed: int, *, guided_tokens: int | None, **_: Any) -> Any:
        drawn.append((method.name, guided_tokens, seed, len(cases)))
        seconds = (4.0 if method.name == "ar" else 2.0) / (1 if guided_tokens is None else 2)
        return None, CallRecord(seconds, len(cases), 256, 256, 256, 0, [256])

    monkeypatch.setattr(guided_seconds, "call_pipeline", draw)
    monkeypatch.setattr(guided_seconds, "load_pipeline", lambda model, options: (None, None, "float32"))
    monkeypatch.setattr(guided_seconds, "GUIDED", {"ar": (None, 128), "rows-batch": (None, 96)})
    rows = guided_seconds.measure(argparse.Namespace(num_prompts=3, batch_size=2, output=str(tmp_path)))
    settings = [("ar", None), ("ar", 128), ("zipar", None), ("zipar", 96)]
    assert [each[:2] for each in drawn[:4]] == settings  # the warm-up
    assert sorted(drawn[4:], key=str) == sorted(((*each, *at) for each in settings for at in ((0, 2), (2, 1))), key=str)
    assert [row["method"] for row in rows] == ["ar", "ar, 128 guided", "rows-batch", "rows-batch, 96 guided"]
    assert [row["guided_tokens"] for row in rows] == [None, 128, None, 96]
    assert [row["speedup"] for row in rows] == pytest.approx([1.0, 2.0, 2.0, 4.0])
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(rows))
