"""The record of whole pictures by graphs: every method's tokens are those of eager steps, and no graph has a fault."""

from __future__ import annotations

import json

from one_graph import RESULTS

from vargen.methods.catalogue import find_presets, methods_for

UNRECORDED = {"vvs-paper-uniform"}
"""Did not end in five minutes on a busy machine; `vvs` and `vvs-paper-dynamic` stand for it."""


def test_every_method_and_preset_is_recorded_without_a_fault() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    alone = {row["method"]: row for row in rows if row["batch_size"] == 1}
    assert set(alone) | UNRECORDED == {*methods_for("image"), *find_presets("image")}
    for sampling in ("filtered", "greedy"):
        of_sampling = {row["method"] for row in rows if (row["batch_size"], row["sampling"]) == (1, sampling)}
        assert of_sampling == set(alone) - UNRECORDED
    for row in rows:
        assert "refused" not in row and not row["faults"] and row["steps_by_graphs"] > 0, row
        assert row["same_tokens"] or row["same_tokens_in_float64"], row
    assert sum(not row["same_tokens"] for row in rows) <= 1  # a near tie: bits depend on the bucket
