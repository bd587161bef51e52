"""The studies of VVS's paper name settings that there are, and their tables say what was measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from results_page.pictures import STUDIES_PLOT, studies_plot, studies_section

from metrics.proportion import Proportion
from vargen.methods.catalogue import resolve_method

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, name, module)
    specification.loader.exec_module(module)
    return module


def test_every_setting_is_one_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    studies = load("vvs_studies", monkeypatch).STUDIES
    for study, rows in studies.items():
        for row in rows.values():
            settings = resolve_method(row.method, row.settings).to_dict()
            assert all(settings[name] == value for name, value in row.settings.items())
            if study == "drawn trees":
                assert settings["children"] == "sampled" and settings["mode"] == "exact_at_zero"
            elif study != "sampling":
                assert (settings["total_tokens"], settings["depth"]) == (59, 5)
    assert sum(row.paper is not None for row in studies["selection"].values()) == 6


def test_a_study_goes_on_where_it_was_killed_and_its_table_is_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, measured = load("vvs_studies", monkeypatch), []

    def draw(*arguments: Any) -> dict[str, float]:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(arguments[1])
        shares = {"accepted_length": 0.7, "unverified": 0.3, "relaxed": 0.1}
        return {"tokens_per_pass": 2.5, **shares, "claims_right": Proportion(7, 10).to_dict()}

    monkeypatch.setattr(module, "draw", draw)
    monkeypatch.setattr(module, "load_judge", lambda *_: None)
    nothing = SimpleNamespace(set_progress_bar_config=lambda **_: None)
    monkeypatch.setattr(module.LlamaGenPipeline, "from_pretrained", lambda *_, **__: nothing)
    output = tmp_path / "studies.json"
    flags = [
        "--studies",
        "staleness",
        "--prompts",
        "2",
        "--kept",
        str(tmp_path / "rows.jsonl"),
        "--output",
        str(output),
    ]
    monkeypatch.setattr(sys, "argv", ["vvs_studies", *flags])
    with pytest.raises(KeyboardInterrupt):
        module.main()
    assert not output.exists()
    three = list(measured)
    measured.clear()
    module.main()
    rows = list(module.STUDIES["staleness"].values())
    assert three == rows[:3] and measured == rows[3:]
    record = json.loads(output.read_text())
    section = studies_section(record)
    assert "| (0, 0) | 2.50 | 2.23, FID 32.63 | 0.70 | 30% | 10% | 70.0 (40-89, n 10) |" in section
    assert f"images/{STUDIES_PLOT}" in section and Image.open(BytesIO(studies_plot(record))).width > 300
