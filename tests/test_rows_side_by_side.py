"""The benchmark of rows side by side: its settings exist, its figures are paired, and a killed run goes on."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vargen.methods.catalogue import resolve_method

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    specification = spec_from_file_location("rows_side_by_side", BENCHMARKS / "rows_side_by_side.py")
    assert specification is not None and specification.loader is not None
    loaded = module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "rows_side_by_side", loaded)
    specification.loader.exec_module(loaded)
    return loaded


def test_every_setting_is_one_of_its_method(module: ModuleType) -> None:
    for name, settings in module.SETTINGS.values():
        kept = json.loads(json.dumps(resolve_method(name, settings).to_dict()))
        assert {**kept, **settings} == kept


def test_windows_of_larger_grids_are_settings_too(module: ModuleType) -> None:
    assert not module.ON_LARGER_GRIDS.keys() & module.SETTINGS.keys()
    for name, settings in module.ON_LARGER_GRIDS.values():
        assert tuple(settings["opens_after"]) == resolve_method(name, settings).opens_after


def test_a_label_may_end_guidance_early(module: ModuleType) -> None:
    assert module.chosen("zipar 4, 12 in rows 4 to 9, 96 guided") == (
        *module.SETTINGS["zipar 4, 12 in rows 4 to 9"],
        96,
    )
    assert module.chosen("plain") == ("ar", {}, None)
    with pytest.raises(KeyError, match="zipar 99"):
        module.chosen("zipar 99, 96 guided")


def batch(claims: list[int], numbers: list[int], passes: int) -> dict[str, Any]:
    """Of two claims and one number a picture."""
    judged = [[right, 2, number, 1] for right, number in zip(claims, numbers, strict=True)]
    return {"judged": judged, "passes": [passes] * len(judged), "rows_fed": [300] * len(judged), "unverified": 0.25}


def test_differences_are_over_the_same_captions(module: ModuleType) -> None:
    plain = [batch([2, 1], [1, 1], 256), batch([2, 2], [0, 1], 256)]
    rows = [batch([1, 1], [1, 0], 64), batch([2, 2], [0, 1], 64)]
    told = module.figures(rows, plain, 16)
    assert (told["pictures"], told["claims_judged"], told["numbers_judged"]) == (4, 8, 4)
    assert told["claims"] == 6 / 8 and told["claims_against_plain"]["value"] == pytest.approx(6 / 8 - 7 / 8)
    assert told["prompts"] == 2 / 4
    assert told["numbers"] == 2 / 4 and told["numbers_against_plain"]["value"] == pytest.approx(2 / 4 - 3 / 4)
    low, high = told["numbers_against_plain"]["interval"]
    assert -1 < low < -0.2 < high <= 0
    assert (told["passes"], told["fewer_passes"], told["rows_fed"], told["unverified"]) == (64, 4, 300, 0.25)
    same = module.figures(plain, plain, 16)
    assert list(same["claims_against_plain"]["interval"]) == [0, 0]


def test_a_killed_run_goes_on(module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[tuple[str, int]] = []

    def draw(pipeline: Any, method: Any, first: int, cases: list[Any], judge: Any) -> dict[str, Any]:
        if len(drawn) == 3:
            raise KeyboardInterrupt
        drawn.append((method.name, first))
        return batch([2] * len(cases), [1] * len(cases), 76)

    monkeypatch.setattr(module, "draw", draw)
    monkeypatch.setattr(module, "BATCH", 2)
    output, kept = tmp_path / "record.json", tmp_path / "kept.jsonl"
    command = ["x", "--prompts", "4", "--labels", "zipar 4,pjd 5, 2 guesses", "--kept", str(kept), "--output"]
    monkeypatch.setattr(sys, "argv", [*command, str(output)])
    with pytest.raises(KeyboardInterrupt):
        module.main()
    assert drawn == [("ar", 0), ("ar", 2), ("zipar", 0)] and not output.exists()
    drawn.clear()
    module.main()
    assert drawn == [("zipar", 2), ("pjd", 0), ("pjd", 2)]
    rows = json.loads(output.read_text())["rows"]
    assert [row["label"] for row in rows] == ["plain", "zipar 4", "pjd 5, 2 guesses"]
    assert all(row["pictures"] == 4 for row in rows)


def test_the_sheet_shows_what_breaks(module: ModuleType) -> None:
    plain, rows = [batch([2, 2], [1, 0], 256), batch([2, 2], [1, 1], 256)], [batch([2, 2], [1, 1], 76)] * 2
    assert module.broken(rows, plain) == []
    assert module.broken([batch([2, 2], [0, 1], 76), batch([2, 2], [1, 0], 76)], plain) == [0, 3]
