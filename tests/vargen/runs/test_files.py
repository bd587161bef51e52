"""Files whole or absent, folders of one run at a time: kills at every rename, links and pipes, locks, what is left."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import file_size_limit
from hypothesis import given
from hypothesis import strategies as st
from refusals import raised, refused

from vargen.base.errors import UserError
from vargen.runs import files

fork = multiprocessing.get_context("fork")  # a bare file or two: nothing here has started a thread


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def killed_at_rename(work: Callable[[], object], number: int, after: bool) -> bool:
    """Do `work` in a process that is killed just before or after its rename `number`; whether it came so far."""

    def run() -> None:
        replace, left = os.replace, [number]

        def deadly(*arguments: Any) -> None:
            left[0] -= 1
            if left[0] < 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*arguments)
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        files.os.replace = deadly  # type: ignore[attr-defined]
        work()

    process = fork.Process(target=run)
    process.start()
    process.join(600)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@contextlib.contextmanager
def another_process(hold: Callable[[], contextlib.AbstractContextManager[object]]) -> Iterator[None]:
    """One that has entered a context."""
    entered, leave = fork.Event(), fork.Event()

    def run() -> None:
        with hold():
            entered.set()
            leave.wait(600)

    process = fork.Process(target=run)
    process.start()
    try:
        assert entered.wait(600)
        yield
    finally:
        leave.set()
        process.join(600)


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_the_rename_of_a_file_leaves_the_old_or_the_new(tmp_path, after):
    files.write_atomic(tmp_path / "a", "old")
    assert killed_at_rename(lambda: files.write_atomic(tmp_path / "a", "new"), 0, after)
    assert (tmp_path / "a").read_text() == ("new" if after else "old")
    files.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def replace_folder(path: Path, content: str) -> None:
    with files.atomic_folder(path) as temporary:
        for name in ("one", "two"):
            (temporary / name).write_text(content)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_kill_at_either_rename_of_a_folder_leaves_the_old_or_the_new(tmp_path, number, after):
    path = tmp_path / "some.folder"
    replace_folder(path, "old")
    assert killed_at_rename(lambda: replace_folder(path, "new"), number, after)
    files.remove_leftovers(tmp_path)
    whole = "new" if (number, after) == (1, True) else "old"
    assert os.listdir(tmp_path) == ["some.folder"]
    assert {name: (path / name).read_text() for name in os.listdir(path)} == {"one": whole, "two": whole}


def test_a_folder_that_a_kill_took_away_is_there_again_for_the_next_run(tmp_path):
    replace_folder(tmp_path / "out", "old")
    assert killed_at_rename(lambda: replace_folder(tmp_path / "out", "new"), 0, after=True)
    assert not (tmp_path / "out").exists()
    with files.own_folder(tmp_path / "out"):
        assert (tmp_path / "out" / "one").read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_an_exception_leaves_what_was_there(tmp_path):
    replace_folder(tmp_path / "folder", "old")
    files.write_atomic(tmp_path / "file", "old")
    for context in (files.atomic_path(tmp_path / "file"), files.atomic_folder(tmp_path / "folder")):
        with pytest.raises(KeyboardInterrupt), context:
            raise KeyboardInterrupt
    assert (tmp_path / "folder" / "one").read_text() == (tmp_path / "file").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_folder_that_cannot_be_put_in_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    """Of three renames (away, into its place, back) the second fails."""
    replace_folder(tmp_path / "folder", "old")
    replace, calls = os.replace, []

    def failing(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.EIO, "broken")
        replace(*arguments)

    monkeypatch.setattr(files.os, "replace", failing)
    raised(OSError, "broken", replace_folder, tmp_path / "folder", "new")
    assert (tmp_path / "folder" / "one").read_text() == "old" and os.listdir(tmp_path) == ["folder"]


def test_names_in_a_record_lead_to_its_folder_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    assert files.inside(folder, "images/0.png") == folder / "images" / "0.png"
    assert files.inside(folder, "images/../0.png") == folder / "images" / ".." / "0.png"
    assert files.inside(folder, "out/0.png", linked=True) == folder / "out" / "0.png"
    hostile = ["../0.png", "a/../../b", "..", "a/../..", "/0.png", "//x/y", "\\x", "C:x", "c:\\x", "..\\x"]
    for name in (*hostile, "a\\..\\..\\b", "a\0", "", 7, None, ["a"]):
        for linked in (False, True):
            refused("is not the name of something in it", files.inside, folder, name, linked)
    refused("is not the name of something in it", files.inside, folder, "out/0.png")


def test_a_copy_of_a_model_follows_no_link_out_of_it(tmp_path):
    """But those of a hub's cache, whose files are all links, and of files within the folder."""
    (tmp_path / "secret").write_text("a secret")
    hub = tmp_path / "hub" / "models--a--b"
    for source, blobs in ((tmp_path / "model", tmp_path / "model"), (hub / "snapshots" / "1", hub / "blobs")):
        for folder in (source / "part", source / "cut", blobs):
            folder.mkdir(parents=True, exist_ok=True)
        (blobs / "config").write_text("{}")
        (source / "config.json").symlink_to(os.path.relpath(blobs / "config", source))
        (source / "part" / "own.txt").write_text("own")
        (source / "cut" / "left.txt").write_text("left")
        (source / "weights.bin").write_text("weights")
        for name, target in {"secret.txt": tmp_path / "secret", "part/again": source, "nowhere": "nowhere"}.items():
            (source / name).symlink_to(target)
        os.mkfifo(source / "pipe")
        copy = tmp_path / f"copy-{source.name}"
        with pytest.warns(UserWarning, match="is not copied"):
            files.copy_files(source, copy, ("cut", "*.bin"))
        copied = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
        assert copied - {"config"} == {"config.json", "part/own.txt"}
        assert not any(path.is_symlink() for path in copy.rglob("*")) and (copy / "config.json").read_text() == "{}"


def test_temporary_names_cannot_be_guessed_and_files_are_readable_as_others_are(tmp_path):
    seen = set()
    for _ in range(3):
        with files.atomic_path(tmp_path / "a") as temporary:
            seen.add(temporary.name)
    assert len(seen) == 3 and all(len(name) >= 16 for name in seen)
    (tmp_path / "plain").touch()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "plain")]
    assert modes[0] == modes[1]


def test_files_of_a_folder_are_for_whom_the_umask_says(tmp_path):
    with files.atomic_folder(tmp_path / "model") as temporary:
        (temporary / "part").mkdir()
        (temporary / "part" / "weights").touch(mode=0o600)  # as safetensors does
    (tmp_path / "usual").touch()
    assert (tmp_path / "model" / "part" / "weights").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("locks", [True, False])
def test_what_a_living_process_writes_is_not_cleared_away(tmp_path, monkeypatch, locks):
    if not locks:
        monkeypatch.setattr(files, "fcntl", None)
    with (
        another_process(lambda: files.atomic_path(tmp_path / "a")),
        another_process(lambda: files.atomic_folder(tmp_path / "b")),
    ):
        assert len(hidden(tmp_path)) == 2
        files.remove_leftovers(tmp_path)
        assert len(hidden(tmp_path)) == 2
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_planted_leftovers_harm_nobody(tmp_path):
    """A link, a pipe and a name that leads out of the folder, called as a killed writer's would be."""
    (tmp_path / "mine").write_text("mine")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / ".0123456789abcdef.vargen-tmp").symlink_to(tmp_path / "mine")
    os.mkfifo(inside / ".1123456789abcdef.vargen-tmp")
    files.remove_leftovers(inside)
    assert (tmp_path / "mine").read_text() == "mine"
    assert os.listdir(inside) == [".0123456789abcdef.vargen-tmp"]


def test_one_run_at_a_time_in_a_folder(tmp_path):
    folder = tmp_path / "new" / "out"
    with another_process(lambda: files.own_folder(folder)):
        with pytest.raises(UserError, match="another run is writing to"), files.own_folder(folder):
            pass
        assert folder.is_dir()
    with files.own_folder(folder):
        (folder / "kept").touch()
    with files.own_folder(folder):
        assert (folder / "kept").exists()


def test_a_link_to_nothing_in_the_way_is_a_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder in (tmp_path / "link", tmp_path / "link" / "out"):
        with pytest.raises(UserError, match=r"^output: .*link is a file; name a folder"), files.own_folder(folder):
            pass


def test_a_folder_in_which_nothing_was_kept_is_gone_again(tmp_path):
    with pytest.raises(ValueError), files.own_folder(tmp_path / "new" / "out"):
        raise ValueError
    assert os.listdir(tmp_path) == []
    (tmp_path / "was there").mkdir()
    with files.own_folder(tmp_path / "was there"):
        pass
    assert os.listdir(tmp_path) == ["was there"]


def test_a_killed_runs_leftovers_are_cleared_where_the_next_one_writes(tmp_path):
    for place in (tmp_path, tmp_path / "a" / "images", tmp_path / "other"):
        place.mkdir(parents=True, exist_ok=True)
        (place / ".0123456789abcdef.vargen-tmp").write_bytes(b"torn")
    with files.own_folder(tmp_path, ("*/images",)):
        pass
    assert [path.parent.name for path in tmp_path.rglob(".*")] == ["other"]


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_whatever_was_torn_off_a_file_of_records_the_next_one_is_whole(before, torn):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        lines = b"".join(json.dumps({"n": byte}).encode() + b"\n" for byte in before)
        path.write_bytes(lines + torn.replace(b"\n", b""))
        files.append_jsonl(path, {"last": "ä"})
        assert files.read_jsonl(path) == [{"n": byte} for byte in before] + [{"last": "ä"}]


def test_a_failed_write_leaves_the_lines_that_were_there(tmp_path):
    """A disk that fills up after half of a line."""
    path = tmp_path / "a.jsonl"
    files.append_jsonl(path, {"n": 1})
    whole = path.read_bytes()
    with file_size_limit(len(whole) + 4), pytest.raises(OSError, match="File too large"):
        files.append_jsonl(path, {"n": 2})
    assert path.read_bytes() == whole


def test_a_record_that_comes_twice_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": 2}\n{"a": 1, "b": 3}\n{"a": 1, "b": 2}\n')
    assert len(files.read_jsonl(path)) == 3
    refused("line 3 repeats the record of line 1", files.read_jsonl, path, once=("a", "b"))
    refused("line 2 repeats the record of line 1", files.read_jsonl, path, once=("a",))
