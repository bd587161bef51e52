"""Faults planted one at a time, and whether the tests notice.

    nice python benchmarks/planted_faults.py [--processes 2] [--only specdecode/loop.py]

The faults stand in `planted_faults.txt`, each with the tests that must fail. Nothing on disk changes: a fault is
planted while its module is imported, in a process forked from one that has the large libraries loaded, and the tests
run there until the first of them fails. What was found is kept after every fault, with the test that failed and how, so
that the same command goes on where it was stopped, and looks again only at faults whose code or tests have changed
since, the test that failed last time first.

Survivors that change nothing anybody can see are listed in `HARMLESS`, with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_name("planted_faults.txt")
RESULT = ROOT / "benchmarks" / "results" / "planted_faults.json"
DOCUMENT = ROOT / "docs" / "reliability.md"
MOST_SECONDS = 60
"""Of a processor, after which the tests are given up: a fault may keep a loop from ending. Nobody has failed then."""
MOST_WAITING = 1800
"""Seconds of a clock, likewise: a fault may keep two processes waiting for each other, and a machine may be busy."""
ENDLESS = "does not end"
"""How a fault shows itself that keeps a test from ending."""
_LIBRARIES = ("torch", "numpy", "scipy.stats", "pytest", "hypothesis", "transformers", "diffusers", "PIL.Image", "yaml")

HARMLESS: dict[str, str] = {
    "888539c29e": "a row that has stopped stays at its node with its token, so it finds no child later either",
    "9489591f40": "where nothing is left the two distributions are equal up to rounding",
    "8d980f43f1": "a key that is not kept is computed anew, and no purpose has the number 0",
    "69473fb0dc": "no chain says that it is deeper than it has nodes",
    "a8b11dd77f": "no codebook of a model that draws has more than 65,536 codes, and trying so many takes a minute",
    "3c45d9934d": "what a child has of the mass is not free, and what is not free no other child takes",
    "b9af2f9bb3": "a root is a leaf only where it is alone, and its path has no tokens to be taken",
    "cfd1565270": "where there is no leaf the root is chosen, and its path has no tokens to be taken",
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
        module = fault.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        super().__init__(module, str(ROOT / fault.file))
        self.source = fault.planted()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.path)

    def get_code(self, fullname: str | None = None) -> object:
        return compile(self.source, self.path, "exec")  # never from a cache, never into one


class _Noting:
    """A plugin of pytest that writes the test that runs to a file, and how the first one failed."""

    def __init__(self, file: int) -> None:
        self.file = file

    def write(self, *line: str) -> None:
        os.truncate(self.file, 0)
        os.pwrite(self.file, "\t".join(line).encode(), 0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(nodeid, ENDLESS)

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        self.write(node.nodeid, call.excinfo.type.__name__)


def run_tests(fault: Fault | None, tests: tuple[str, ...], note: int) -> int:
    """In a forked process: pytest's exit code, 0 where nothing failed. `note` is a file for `_Noting`."""
    import pytest
    from hypothesis import Phase, settings

    # The first example that fails is enough; to look for the smallest takes minutes.
    settings.register_profile("planted", phases=(Phase.explicit, Phase.generate), deadline=None, derandomize=True)
    settings.load_profile("planted")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 5))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if fault is not None:
        sys.meta_path.insert(0, _Plant(fault))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *tests], [_Noting(note)]))


class Runner:
    """So many forked processes at a time."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.running: dict[int, tuple[float, object, int]] = {}

    def start(self, job: object, fault: Fault | None, tests: tuple[str, ...]) -> None:
        """Begin; `job` comes back from `wait`."""
        note = os.memfd_create("note")
        child = os.fork()
        if not child:
            os.setpgid(0, 0)  # what the tests start ends with them
            code = 1
            try:
                code = run_tests(fault, tests, note)
            finally:
                os._exit(code)
        self.running[child] = (time.monotonic(), job, note)

    def wait(self) -> tuple[object, int, float, tuple[str, str]]:
        """A job that is over, its exit code (-1 where it took too long), its seconds, and the last test and how it
        failed."""
        while True:
            for child, (began, job, note) in list(self.running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                seconds = time.monotonic() - began
                if not ended and seconds < MOST_WAITING:
                    continue
                del self.running[child]
                if not ended:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                test, _, how = os.pread(note, 10_000, 0).decode().partition("\t")
                os.close(note)
                return job, os.waitstatus_to_exitcode(status) if ended else -1, seconds, (test, how)
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trust", action="store_true", help="the tests have just passed without a fault")
    parser.add_argument("--render", action="store_true", help="only write the table into docs/reliability.md")
    parser.add_argument("--only", default="", help="faults in files whose path begins so")
    options = parser.parse_args()
    if options.render:
        return _report([], {str(row["key"]): row for row in _read()})
    faults = [fault for fault in read_faults() if fault.file.startswith(options.only)]
    stale = [fault for fault in faults if (ROOT / fault.file).read_text().count(fault.search) != 1]
    for fault in stale:
        print(f"STALE  {fault.file}: {fault.search!r} does not stand there once any more; mend the list")
    faults = [fault for fault in faults if fault not in stale]
    known = {row["key"]: row for row in _read()}
    waiting = [fault for fault in faults if known.get(fault.key, {}).get("state") != fault.state()]
    waiting.sort(key=lambda fault: fault.key in known)  # those never planted first
    print(f"{len(faults)} faults, {len(waiting)} to look at", flush=True)
    for library in _LIBRARIES:
        __import__(library)
    import torch

    torch.set_num_threads(1)

    runner, sound = Runner(options.processes), set()
    if options.trust:
        sound |= {fault.tests for fault in waiting}
    for tests in dict.fromkeys(fault.tests for fault in waiting if fault.tests not in sound):
        # Without a fault they must pass.
        runner.start(tests, None, tests)
        if len(runner.running) >= options.processes:
            _note_sound(runner, sound)
    while runner.running:
        _note_sound(runner, sound)
    for fault in waiting:
        if fault.tests not in sound:
            continue
        last = str(known.get(fault.key, {}).get("by", ""))
        there = last.startswith(tuple(test.split("::")[0] for test in fault.tests))
        runner.start(fault, fault, ((last,) if there else ()) + fault.tests)
        if len(runner.running) >= options.processes:
            _note(runner, known)
    while runner.running:
        _note(runner, known)
    return _report(faults, known)


def render(document: str, rows: list[dict[str, object]]) -> str:
    """docs/reliability.md with the table of what was found between its marks."""
    places: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        places.setdefault(str(row["file"]), []).append(row)
    lines = ["| file | planted | caught |", "|---|---|---|"]
    lines += [f"| `{file}` | {len(own)} | {sum(bool(row['caught']) for row in own)} |" for file, own in places.items()]
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


def _note_sound(runner: Runner, sound: set[tuple[str, ...]]) -> None:
    tests, code, seconds, _ = runner.wait()
    assert isinstance(tests, tuple)
    if code == 0:
        sound.add(tests)
    print(f"{'sound' if code == 0 else 'FAIL WITHOUT A FAULT'} {seconds:6.1f} s  {' '.join(tests)}", flush=True)


def _note(runner: Runner, known: dict[str, dict[str, object]]) -> None:
    fault, code, seconds, (test, how) = runner.wait()
    assert isinstance(fault, Fault)
    known[fault.key] = {
        "key": fault.key,
        "state": fault.state(),
        "file": fault.file,
        "search": fault.search,
        "replace": fault.replace,
        "caught": code != 0,
        **({"by": test, "how": how} if code else {}),
    }
    _write(list(known.values()))
    found = f"caught {seconds:6.1f} s  {test} ({how})" if code else f"SURVIVED {seconds:6.1f} s"
    print(f"{found}  {fault.file}: {fault.replace!r}", flush=True)


def _read() -> list[dict[str, object]]:
    return json.loads(RESULT.read_text())["faults"] if RESULT.exists() else []


def _write(rows: list[dict[str, object]], **more: object) -> None:
    place = {fault.key: number for number, fault in enumerate(read_faults())}
    rows = sorted((row for row in rows if row["key"] in place), key=lambda row: place[str(row["key"])])
    temporary = RESULT.with_suffix(".tmp")
    temporary.write_text(json.dumps({**more, "harmless": HARMLESS, "faults": rows}, indent=1) + "\n")
    os.replace(temporary, RESULT)


def _report(faults: list[Fault], known: dict[str, dict[str, object]]) -> int:
    sys.path.insert(0, str(ROOT))
    from metrics.provenance import provenance

    _write(list(known.values()), provenance=provenance())
    DOCUMENT.write_text(render(DOCUMENT.read_text(), _read()))
    missing = [fault for fault in faults if known.get(fault.key, {}).get("state") != fault.state()]
    survivors = [fault for fault in faults if fault not in missing and not known[fault.key]["caught"]]
    for fault in survivors:
        print(f"{HARMLESS.get(fault.key, 'A GAP')}  {fault.key}  {fault.file}: {fault.search!r} => {fault.replace!r}")
    print(f"{len(faults) - len(missing) - len(survivors)} caught, {len(survivors)} survived, {len(missing)} not run")
    return int(bool(missing) or any(fault.key not in HARMLESS for fault in survivors))


if __name__ == "__main__":
    sys.exit(main())
