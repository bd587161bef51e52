"""Results say where they come from, and are written whole or not at all."""

import json
import subprocess

import pytest

from metrics import provenance


def test_commit_is_the_checkouts_and_says_when_files_differ(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    assert provenance.describe_commit(tmp_path) == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "file").write_text("two")
    assert provenance.describe_commit(tmp_path) == git("rev-parse", "--short=12", "HEAD") + "-dirty"


def test_no_commit_outside_a_checkout(tmp_path):
    assert provenance.describe_commit(tmp_path) is None


def test_a_result_carries_its_provenance(tmp_path):
    provenance.write_result(tmp_path / "a" / "result.json", {"figure": 1.5})
    written = json.loads((tmp_path / "a" / "result.json").read_text())
    assert written["figure"] == 1.5
    assert written["provenance"]["hardware"]["cores"] >= 1
    assert "torch" in written["provenance"]["libraries"]


def test_an_unwritable_result_leaves_the_old_one(tmp_path):
    path = tmp_path / "result.json"
    provenance.write_result(path, {"figure": 1})
    before = path.read_text()
    with pytest.raises(TypeError):
        provenance.write_result(path, {"figure": object()})
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_gpu_that_a_run_does_not_use_is_not_what_it_was_measured_on(monkeypatch):
    monkeypatch.setattr(provenance.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance.torch.cuda, "get_device_name", lambda: "some GPU")
    assert provenance.describe_hardware()["device"] == "cpu"
    monkeypatch.setattr(provenance.torch.cuda, "is_initialized", lambda: True)
    assert provenance.describe_hardware()["device"] == "some GPU"
