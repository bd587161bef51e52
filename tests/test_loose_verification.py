"""LVSpec's figures go on where they were stopped, and are of all videos together."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import loose_verification
import pytest


def test_a_killed_run_goes_on_and_a_longer_one_watches_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched: list[int] = []

    def watch(_: Any, chosen: list[Any], options: Namespace, first: int, count: int) -> dict[str, Any]:
        if len(watched) == 2:
            raise KeyboardInterrupt
        watched.append(first)
        each = {"accuracy": first / 100, "accepted_length": 4.0 + first, "accept_rate": 0.5, "relaxed_share": 0.25}
        relevance = {row: [(True, 0.5 + first), (False, 0.25)] for row in ("token", "prediction")}
        return {"variants": {one.label: [each] * count for one in chosen}, "relevance": relevance}

    monkeypatch.setattr(loose_verification, "watch", watch)
    monkeypatch.setattr(loose_verification.VideoAnswerer, "from_pretrained", lambda *_: None)
    monkeypatch.setattr(loose_verification, "RESULTS", tmp_path)

    def run(videos: int) -> Any:
        kept = str(tmp_path / "kept" / "videos.jsonl")
        monkeypatch.setattr(sys, "argv", ["loose", "--videos", str(videos), "--kept", kept, "--quiet"])
        loose_verification.main()
        return json.loads((tmp_path / "loose_verification.json").read_text())

    with pytest.raises(KeyboardInterrupt):
        run(30)
    assert watched == [0, 10] and not (tmp_path / "loose_verification.json").exists()
    watched.clear()
    record = run(30)
    assert watched == [20] and record["videos"] == 30
    assert {row["accepted_length"] for row in record["rows"]} == {14.0}
    assert record["rows"][0]["accuracy"] == pytest.approx(0.1)
    assert record["relevance_area_under_curve"] == 1.0
    watched.clear()
    assert run(40)["videos"] == 40 and watched == [30]
