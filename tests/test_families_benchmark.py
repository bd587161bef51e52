"""`benchmarks/families.py` on models of a moment: rows that hold together, kept, and not measured twice."""

from __future__ import annotations

import runpy
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from results_page.plain import plain_section

from specdecode.roles import TargetOutput

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPT: dict[str, Any] = runpy.run_path(str(BENCHMARKS / "families.py"))
OPTIONS = Namespace(repeats=1, planted_share=0.8)


@pytest.mark.parametrize("name", SCRIPT["FAMILIES"])
def test_every_family_is_timed_against_its_library(name: str) -> None:
    family = SCRIPT["FAMILIES"][name](SCRIPT["Size"](32, 2, 4, 64, 4), torch.float32)
    row = SCRIPT["speed_row"](family, 2, OPTIONS)
    assert row["speedup"] == row["seconds_library"][0] / row["seconds_ours"][0]
    assert family.generate(2).shape == (2, family.num_tokens)
    planted = SCRIPT["planted_row"](family, 2, OPTIONS)
    assert planted["passes_scd"] < planted["passes_ar"] == family.num_tokens


def test_a_share_of_the_probability_goes_to_the_known_picture() -> None:
    torch.manual_seed(0)
    known, logits = torch.randint(5, (2, 3)), torch.randn(2, 2, 5)
    inner = SimpleNamespace(
        vocab_size=5, batch_size=2, device=logits.device,
        prefill=lambda: TargetOutput(logits[:, :1], None), forward=lambda *_: TargetOutput(logits, None),
        commit=lambda *_: None,
    )  # fmt: skip
    target = SCRIPT["PlantedTarget"](inner, known, 0.25)

    def mixed(row: int, node: int, place: int) -> torch.Tensor:
        return 0.75 * logits[row, node].softmax(-1) + 0.25 * torch.eye(5)[known[row, place]]

    first = target.prefill().logits.exp()
    torch.testing.assert_close(first[1, 0], mixed(1, 0, 0))
    target.commit(None, torch.tensor([0, 1]))
    later = target.forward(None, None, torch.tensor([[0, 1], [0, 1]])).logits.exp()
    torch.testing.assert_close(later[0, 1], mixed(0, 1, 2))  # after places 0 and 1 comes 2
    torch.testing.assert_close(later[1, 0], mixed(1, 0, 2))
    torch.testing.assert_close(later[1, 1], mixed(1, 1, 2))  # past the end nothing is asked


def test_rows_are_kept_and_told(tmp_path: Path) -> None:
    key = {"family": "janus", "dtype": "float32", "batch_size": 1, "tokens": 16}
    speed = {"library": "x", "seconds_library": [2.0], "seconds_ours": [1.0], "speedup": 2.0, "parameters": 3e8}
    path = tmp_path / "families.json"
    SCRIPT["Rows"](path, {"repeats": 1}).add({**key, "row": "speed"}, lambda: speed)
    again = SCRIPT["Rows"](path, {"repeats": 1})
    again.add({**key, "row": "speed"}, lambda: pytest.fail("it is there"))
    again.add({**key, "row": "memory", "way": "ar"}, lambda: {"bytes_before": 2**20, "bytes_peak": 3 * 2**20})
    other = SCRIPT["Rows"](path, {"repeats": 2})
    other.add({**key, "row": "speed"}, lambda: {**speed, "speedup": 1.5})
    assert [row["row"] for row in other.rows] == ["memory", "speed"]
    text = plain_section("families", {"rows": other.rows, "provenance": SCRIPT["provenance"]()})
    assert "MiB peak" in text and "speedup" in text and "| 1.5 |" in text
