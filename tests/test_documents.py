"""The README, the results page and the model card say what the recorded results say; weights keep to their limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from build_results import build

ROOT = Path(__file__).resolve().parent.parent


def test_documents_are_built_from_the_recorded_results() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in build().items() if path.read_text() != text]
    assert not stale, f"run python benchmarks/build_results.py; out of date: {stale}"


def test_shipped_weights_stay_within_their_share() -> None:
    weights = ROOT / "vargen" / "weights"
    sizes = {path.relative_to(weights): path.stat().st_size for path in weights.rglob("*") if path.is_file()}
    others = {"drafter", "draft_model", "clip", "video-llm", "video-llm-draft"}  # have their own share of 40 MiB
    assert 0 < sum(size for path, size in sizes.items() if not others & {*path.parts}) <= 24 * 2**20
    assert sum(sizes.values()) <= 40 * 2**20


def test_every_picture_and_page_the_readme_links_to_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links and all((ROOT / link).is_file() for link in links if not link.startswith("http"))


@pytest.mark.parametrize(
    "command", ["", "generate", "bench", "evaluate", "tune", "caption", "demo", "convert llamagen"]
)
def test_help_does_not_load_torch(command: str) -> None:
    code = f"""
import sys
from vargen.cli import main
try:
    main([*{command.split()!r}, "--help"])
except SystemExit as done:
    assert not done.code
assert "torch" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert process.stdout.startswith("usage: vargen")


def test_shipped_configs_name_no_folder_of_the_machine_that_trained_them() -> None:
    for path in (ROOT / "vargen" / "weights").rglob("*.json"):
        assert '"_name_or_path": "/' not in path.read_text(), path


def test_recorded_results_name_no_folder_of_the_machine_that_made_them() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert ': "/' not in path.read_text(), path
