"""Runs that leave one help out differ in that alone, and their table says how they went."""

from __future__ import annotations

from dataclasses import asdict

import left_out
from results_page.plain import plain_section
from training_commands import configuration_of

from metrics.provenance import provenance


def test_runs_differ_in_what_is_left_out() -> None:
    lines = left_out.commands("runs", "codes")
    configs = {name: asdict(configuration_of(line)) for name, line in zip(left_out.LEFT_OUT, lines, strict=True)}
    whole = configs.pop("nothing")
    for name, config in configs.items():
        assert config.pop("output") == f"runs/{name}"
        assert len([field for field, value in config.items() if value != whole[field]]) == 1, name
    assert whole["grounding_weight"] > 0 and whole["model"]["condition_rotary"] == "identity"


def test_the_table_says_what_was_measured() -> None:
    kinds = {kind: {"accuracy": 0.5, "interval": None} for kind in ("shape", "colour", "sky", "object_count", "prompt")}
    evaluation = {"loss": 4.0, "loss_object": 3.5, "loss_sky": 3.25, "caption_gain": 11.42}
    row = {"left_out": "weight_on_objects", "pictures": 11520, "evaluation": evaluation, "judge": kinds}
    text = plain_section("left_out", {"rows": [row, {**row, "left_out": "nothing"}], "provenance": provenance()})
    assert "| left out |\n|---|\n| weight_on_objects |\n| nothing |" in text
    assert "pictures 11,520" in text and "evaluation loss object 3.5" in text and "judge sky 0.5" in text
