"""Faults planted one at a time, and whether the tests notice.

    nice python benchmarks/planted_faults.py [--processes 2] [--only specdecode/loop.py]

The faults stand in `planted_faults.txt`, each with the tests that must fail; without a fault these pass, as the suite
says. Nothing on disk changes: the tests are collected once, and for every fault a process is forked in which the
functions get their faulty code and the tests run until the first of them fails (a fault in what runs when a module is
imported has a process of its own that imports it so). What was found is kept after every fault, with the test that
failed and how, so that the same command goes on where it was stopped, and looks again only at faults whose code or
tests have changed since, the test that failed last time first.

Survivors that change nothing anybody can see are listed in `HARMLESS`, with the reason.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import resource
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_name("planted_faults.txt")
RESULT = ROOT / "benchmarks" / "results" / "planted_faults.json"
DOCUMENT = ROOT / "benchmarks" / "lab" / "planted_faults.md"
MOST_SECONDS = 60
"""Seconds of a processor after which the tests are given up: a fault may keep a loop from ending. No test fails
then."""
MOST_WAITING = 1800
"""Seconds of a clock, likewise: a fault may keep two processes waiting for each other, and a machine may be busy."""
ENDLESS = "does not end"
"""How a fault shows itself that keeps a test from ending."""
ALONE = "found alone: "

HARMLESS: dict[str, str] = {
    "595dbe2d68": "where each node has one child no earlier one has been drawn",
    "0d41d24408": "where nothing is left the two distributions are equal up to rounding",
    "69473fb0dc": "no chain says that it is deeper than it has nodes",
    "9d77d37b6b": "no codebook of a model that draws has more than 65,536 codes, and trying so many takes a minute",
    "3c45d9934d": "what a child has of the mass is not free, and what is not free no other child takes",
    "b9af2f9bb3": "a root is a leaf only where it is alone, and its path has no tokens to be taken",
    "c35dd86cfe": "a temperature of 0 is below the least one, and there the likeliest token is taken either way",
    "cfd1565270": "where there is no leaf the root is chosen, and its path has no tokens to be taken",
    "ef8b5a7d2a": "it is made for what needs a picture alone",
    "1f3892d8f8": "resizing to multiples of one pixel resizes nothing",
    "7ab8343e5f": "layouts of a run are all of one size, or none is",
    "7814d05763": "of scales with the same error any is best",
    "132a2f6db2": "no layer takes a single number, in torch neither",
    "a7708af41c": "where a row feeds fewer, its first token is fed again, and rows that ended feed none",
    "5170c335a3": "any number below zero stands for what is not fed",
    "453ca381c9": "what is known is found anew, the same",
}
"""Why it does no harm that a fault survives, by its key."""


@dataclass(frozen=True)
class Fault:
    """One fault: in `file` the text `search`, which stands there once, becomes `replace`; `tests` must fail."""

    file: str
    tests: tuple[str, ...]
    search: str
    replace: str

    @property
    def key(self) -> str:
        """Stands for the fault, whatever the code around it."""
        return hashlib.sha256(f"{self.file}\0{self.search}\0{self.replace}".encode()).hexdigest()[:10]

    @property
    def module(self) -> str:
        """The module's name. Tests import what lies in benchmarks/ as scripts do, from that folder."""
        return self.file.removesuffix(".py").removeprefix("benchmarks/").replace("/", ".").removesuffix(".__init__")

    def state(self) -> str:
        """Stands for the fault with its code and tests as they are."""
        content = [(ROOT / name.split("::")[0]).read_bytes() for name in (self.file, *self.tests)]
        return hashlib.sha256(b"\0".join([self.key.encode(), *content])).hexdigest()[:10]

    def planted(self) -> str:
        """The faulty source. Raises ValueError where the text does not stand there exactly once."""
        source = (ROOT / self.file).read_text()
        if source.count(self.search) != 1:
            raise ValueError(f"{self.file}: {self.search!r} stands there {source.count(self.search)} times, not once")
        return source.replace(self.search, self.replace)


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """The list; see its first lines."""
    faults: list[Fault] = []
    file, tests = "", ()
    for line in path.read_text().splitlines():
        if line.startswith("@"):
            _, file, *tests = line.split()
        elif line and not line.startswith("#"):
            search, replace = (side.replace("\\n", "\n") for side in line.split(" => "))
            faults.append(Fault(file, tuple(tests), search, replace))
    return faults


class _Plant(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module from a source that is not on disk."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.module, str(ROOT / fault.file))
        self.source = fault.planted()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.path)

    def get_code(self, fullname: str | None = None) -> object:
        return compile(self.source, self.path, "exec")  # never from a cache, never into one


def functions_by_file() -> dict[str, list[types.FunctionType]]:
    """All functions that there are, whoever holds them, by the file of their code."""
    gc.unfreeze()  # tests/conftest.py freezes what was imported, and `gc` lists nothing that is frozen
    found: dict[str, list[types.FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is types.FunctionType:  # `isinstance` would ask a weak proxy whose object has ended
            found.setdefault(each.__code__.co_filename, []).append(each)
    return found


def plant(fault: Fault, functions: dict[str, list[types.FunctionType]]) -> bool:
    """Give functions of a module that is imported their faulty code; whether that was all.

    False, and nothing is changed, where the fault is in what runs when the module is imported.
    """
    path = str(ROOT / fault.file)
    sound, faulty = (compile(source, path, "exec") for source in ((ROOT / fault.file).read_text(), fault.planted()))
    if _skeleton(sound) != _skeleton(faulty):
        return False
    # Pairs of code that are the same function, told by its first line of the sound source.
    pairs = {old.co_firstlineno: new for old, new in zip(_functions(sound), _functions(faulty), strict=True)}
    own = [each for each in functions.get(path, []) if each.__code__.co_firstlineno in pairs]
    for function in own:
        if function.__code__.co_freevars != pairs[function.__code__.co_firstlineno].co_freevars:
            return False
    for function in own:
        function.__code__ = pairs[function.__code__.co_firstlineno]
    return bool(own)


def _functions(code: types.CodeType) -> list[types.CodeType]:
    """The functions that a module and its classes define when they are run, in order."""
    found = []
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            found += [part] if part.co_flags & inspect.CO_NEWLOCALS else _functions(part)
    return found


def _skeleton(code: types.CodeType) -> object:
    """What runs when a module is imported: its code and that of its classes, not that of functions."""
    parts = [
        (part.co_name if part.co_flags & inspect.CO_NEWLOCALS else _skeleton(part))
        if isinstance(part, types.CodeType)
        else (type(part), part)
        for part in code.co_consts
        if not isinstance(part, int)  # line numbers among them
    ]
    numbers = [part for part in code.co_consts if isinstance(part, int)] if code.co_name == "<module>" else []
    return code.co_code, code.co_names, parts, numbers


def run_alone(fault: Fault, tests: Sequence[str]) -> tuple[str, str]:
    """The test that failed and how, in a process that imports the module faulty; of empty strings where none did."""
    import pytest

    sys.meta_path.insert(0, _Plant(fault))
    watcher = _Planter([], {}, 0)
    pytest.main([*_OPTIONS, "-x", *tests], [watcher])
    return watcher.failed


_OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", "-n", "0", "-W", "ignore::pytest.PytestAssertRewriteWarning")


class _Planter:
    """A plugin of pytest: where tests would run, plants each fault in a forked process and runs its tests there."""

    def __init__(self, faults: list[Fault], known: dict[str, dict[str, object]], processes: int) -> None:
        self.faults, self.known, self.processes = faults, known, processes
        self.failed = ("", "")
        self.running: dict[int, tuple[float, Fault, int]] = {}
        self.functions: dict[str, list[types.FunctionType]] = {}

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        self.failed = (node.nodeid, call.excinfo.type.__name__)

    def pytest_runtestloop(self, session: Any) -> bool | None:
        if not self.faults:
            return None
        self.functions = functions_by_file()
        gc.freeze()  # collecting garbage would copy all that is shared with the forked processes
        for fault in self.faults:
            self.start(fault, session.items)
            if len(self.running) >= self.processes:
                self.wait()
        while self.running:
            self.wait()
        return True

    def start(self, fault: Fault, items: list[Any]) -> None:
        last = self.known.get(fault.key, {}).get("by")
        # In the order in which the fault names its tests, and that which failed last time before all others.
        named = [(item, item.nodeid.replace("[", "::") + "::") for item in items]  # a test's parameters are part of it
        chosen = [item for test in fault.tests for item, name in named if name.startswith(test + "::")]
        chosen.sort(key=lambda item: item.nodeid != last)
        note = os.memfd_create("note")
        child = os.fork()
        if child:
            self.running[child] = (time.monotonic(), fault, note)
            return
        try:
            os.setpgid(0, 0)  # what the tests start ends with them
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 5))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            self.run(fault, chosen, note)
        finally:
            os._exit(0)

    def run(self, fault: Fault, items: list[Any], note: int) -> None:
        """In the forked process. `note` says at every time what is to be said if this process ends: a test and how it
        failed, or nothing."""
        from _pytest.runner import runtestprotocol

        def say(*words: str) -> None:
            os.truncate(note, 0)
            os.pwrite(note, "\t".join(words).encode(), 0)

        if not plant(fault, self.functions):
            say(ENDLESS, "in a process of its own")
            tests = dict.fromkeys(item.nodeid for item in items)
            alone = [sys.executable, __file__, "--alone", fault.key, *(list(tests) if len(tests) < 40 else fault.tests)]
            printed = subprocess.run(alone, capture_output=True, text=True, check=False).stdout
            say(*printed.rpartition(ALONE)[2].split("\t"))
            return
        for item, following in zip(items, [*items[1:], None], strict=True):
            say(item.nodeid, ENDLESS)
            runtestprotocol(item, log=False, nextitem=following)
            if self.failed[0]:
                return say(*self.failed)
        say()

    def wait(self) -> None:
        """Until one has ended, and note what it found."""
        while True:
            for child, (began, fault, note) in list(self.running.items()):
                ended, _ = os.waitpid(child, os.WNOHANG)
                seconds = time.monotonic() - began
                if not ended and seconds < MOST_WAITING:
                    continue
                if not ended:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                test, _, how = os.pread(note, 10_000, 0).decode().partition("\t")
                os.close(note)
                del self.running[child]
                return _note(fault, test, how.strip(), seconds, self.known)
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--render", action="store_true", help="only write the table into the lab book")
    parser.add_argument("--only", nargs="+", default=[""], help="faults in files whose path begins so, or keys")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import pytest
    from hypothesis import Phase, settings

    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)
    sys.dont_write_bytecode = True
    # The first example that fails is enough; to look for the smallest takes minutes.
    settings.register_profile("planted", phases=(Phase.explicit, Phase.generate), deadline=None, derandomize=True)
    settings.load_profile("planted")
    if options.alone:
        key, *tests = options.alone
        found = run_alone(next(fault for fault in read_faults() if fault.key == key), tests)
        print(ALONE + "\t".join(found), flush=True)
        return 0
    if options.render:
        DOCUMENT.write_text(render(DOCUMENT.read_text(), _read()))
        return 0
    from metrics.provenance import provenance

    told = provenance()  # now: the record is written fault by fault, and the tree is not clean then
    only = tuple(options.only)
    faults = [fault for fault in read_faults() if fault.file.startswith(only) or fault.key in only]
    stale = [fault for fault in faults if (ROOT / fault.file).read_text().count(fault.search) != 1]
    for fault in stale:
        print(f"STALE  {fault.file}: {fault.search!r} does not stand there once any more; mend the list")
    faults = [fault for fault in faults if fault not in stale]
    known = {str(row["key"]): row for row in _read()}
    waiting = [fault for fault in faults if known.get(fault.key, {}).get("state") != fault.state()]
    waiting.sort(key=lambda fault: fault.key in known)  # those never planted first
    print(f"{len(faults)} faults, {len(waiting)} to look at", flush=True)
    if waiting:
        import torch

        torch.set_num_threads(1)
        for module in dict.fromkeys(fault.module for fault in waiting):
            importlib.import_module(module)
        tests = dict.fromkeys(test.split("::")[0] for fault in waiting for test in fault.tests)
        pytest.main([*_OPTIONS, *tests], [_Planter(waiting, known, options.processes)])
    return _report(faults, known, told)


def render(document: str, rows: list[dict[str, object]]) -> str:
    """The lab book's page with the table of what was found between its marks."""
    places: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        places.setdefault(os.path.dirname(str(row["file"])), []).append(row)
    lines = ["| folder | planted | caught |", "|---|---|---|"]
    lines += [
        f"| `{folder}` | {len(own)} | {sum(bool(row['caught']) for row in own)} |" for folder, own in places.items()
    ]
    caught = sum(bool(row["caught"]) for row in rows)
    lines += [f"| together | {len(rows)} | {caught} |", ""]
    for row in rows:
        if not row["caught"]:
            reason = HARMLESS.get(str(row["key"]), "a gap: its test is missing")
            planted = str(row["replace"]).split("\n")[0]
            lines.append(f"- `{row['file']}`: `{planted}` survived; {reason}")
    if len(rows) < len(read_faults()):
        lines = [f"{len(rows)} of {len(read_faults())} have been planted so far.", "", *lines]
    text = "\n".join(lines).rstrip() if rows else "Nothing has been recorded yet."
    before, rest = document.split("<!-- faults:begin -->\n")
    after = rest.split("<!-- faults:end -->")[1]
    return f"{before}<!-- faults:begin -->\n{text}\n<!-- faults:end -->{after}"


def _note(fault: Fault, test: str, how: str, seconds: float, known: dict[str, dict[str, object]]) -> None:
    known[fault.key] = {
        "key": fault.key,
        "state": fault.state(),
        "file": fault.file,
        "search": fault.search,
        "replace": fault.replace,
        "caught": bool(test),
        **({"by": test, "how": how} if test else {}),
    }
    _write(list(known.values()))
    found = f"caught {seconds:6.1f} s  {test} ({how})" if test else f"SURVIVED {seconds:6.1f} s"
    print(f"{found}  {fault.file}: {fault.replace!r}", flush=True)


def _read() -> list[dict[str, object]]:
    return json.loads(RESULT.read_text())["faults"] if RESULT.exists() else []


def _write(rows: list[dict[str, object]], **more: object) -> None:
    place = {fault.key: number for number, fault in enumerate(read_faults())}
    rows = sorted((row for row in rows if row["key"] in place), key=lambda row: place[str(row["key"])])
    temporary = RESULT.with_suffix(".tmp")
    temporary.write_text(json.dumps({**more, "harmless": HARMLESS, "faults": rows}, indent=1) + "\n")
    os.replace(temporary, RESULT)


def _report(faults: list[Fault], known: dict[str, dict[str, object]], told: dict[str, object]) -> int:
    _write(list(known.values()), provenance=told)
    DOCUMENT.write_text(render(DOCUMENT.read_text(), _read()))
    missing = [fault for fault in faults if known.get(fault.key, {}).get("state") != fault.state()]
    survivors = [fault for fault in faults if fault not in missing and not known[fault.key]["caught"]]
    for fault in survivors:
        print(f"{HARMLESS.get(fault.key, 'A GAP')}  {fault.key}  {fault.file}: {fault.search!r} => {fault.replace!r}")
    print(f"{len(faults) - len(missing) - len(survivors)} caught, {len(survivors)} survived, {len(missing)} not run")
    return int(bool(missing) or any(fault.key not in HARMLESS for fault in survivors))


if __name__ == "__main__":
    sys.exit(main())
