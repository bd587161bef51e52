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
import torch
from PIL import Image
from results_page.pictures import STUDIES_PLOT, main_table_section, studies_plot, studies_section

from metrics.proportion import Proportion

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, name, module)
    specification.loader.exec_module(module)
    return module


def test_every_setting_is_one_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("vvs_studies", monkeypatch)
    studies = module.STUDIES
    for study, rows in {**studies, "main table": module.MAIN_TABLE}.items():
        for row in rows.values():
            settings = module.resolve(row.method, row.settings).to_dict()
            assert all(settings[name] == value for name, value in row.settings.items())
            if study == "drawn trees":
                assert settings["children"] == "sampled" and settings["mode"] == "exact_at_zero"
            elif study != "sampling" and row.method != "ar":
                assert (settings["total_tokens"], settings["depth"]) == (59, 5)
    assert sum(row.paper is not None for row in studies["selection"].values()) == 6


@pytest.mark.parametrize("stale", [-1, 0, 1, 2])
@pytest.mark.parametrize(("before", "count"), [(1, 1), (1, 3), (3, 2)])
def test_drafting_reads_fresh_features_or_those_before(
    monkeypatch: pytest.MonkeyPatch, stale: int, before: int, count: int
) -> None:
    cache = load("vvs_studies", monkeypatch).StaleFeatureCache(20, max(stale, 0), stale)
    cache.start(torch.full((1, 1, 1), -1.0))
    positions = torch.arange(before + count).float()
    cache.write(positions[:before].view(1, before, 1), torch.tensor([0]), torch.tensor([before]))
    fresh = positions[before:].view(1, count, 1)
    got = cache.after_verified(fresh, torch.tensor([before]), torch.tensor([count]))[0, :, 0].tolist()
    newest_before = before - 1 - stale
    wanted = [max(-1, position) for position in range(newest_before - count + 1, newest_before + 1)]
    assert got == (fresh[0, :, 0].tolist() if stale < 0 else wanted)
    assert cache.at(torch.arange(before + count)[None])[0, :, 0].tolist() == positions.tolist()
    newest = before + count - 1 - max(stale, 0)
    read = cache.read(torch.tensor([before + count]), torch.tensor([2]), 2)[0, :, 0].tolist()
    assert read == [max(-1, newest - 1), max(-1, newest)]


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


def test_the_main_table_has_both_models_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("vvs_studies", monkeypatch)
    origin = {"hardware": {"device": "cpu", "processor": "X", "cores": 2}, "libraries": {"torch": "2"}}
    origin |= {"commit": "abc", "date": "2999-01-01T00:00:00"}

    def record(prompts: int, faster: float) -> dict[str, Any]:
        share = Proportion(7, 10).to_dict()
        rows = [
            {"label": label, "paper": row.paper, "tokens_per_pass": faster * number, "claims_right": share}
            for number, (label, row) in enumerate(module.MAIN_TABLE.items(), start=1)
        ]
        return {"prompts": prompts, "dtype": "bfloat16", "studies": {"main table": rows}, "provenance": origin}

    text = main_table_section(record(64, 1.0), record(32, 1.5))
    assert "| LANTERN, delta 0.3 | 2.10 (stage I) | 3.00 | 70.0 (40-89, n 10) | 4.50 | 70.0 (40-89, n 10) |" in text
    assert "64 and 32 prompts" in text
