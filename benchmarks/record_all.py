"""Measure anew everything that was measured on the shipped picture model, after its weights were replaced.

    python benchmarks/record_all.py --list                 # what there is, and what is out of date
    python benchmarks/record_all.py                        # whatever is out of date, quality first, then times
    python benchmarks/record_all.py judge evaluation       # only these
    python benchmarks/record_all.py --compare HEAD~3       # a page of what changed since that commit

Each step is one of the project's own commands, run as a process of its own. `benchmarks/results/recorded_on.json` keeps
the weights each step was last run on; a step is out of date when they are not those that are shipped. Killed at any
moment, the same command goes on: finished steps are skipped, and the long ones resume within themselves. Steps that
time something say so: keep the machine to itself for them. After a new drafter alone, what draws without it stays.
What the steps are stands in `record_all.yaml`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.runs.files import write_json_atomic

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RECORDED_ON = RESULTS / "recorded_on.json"
WORK = ROOT / "runs" / "record_all"
COMPARED = ("bench_batch", "bench_picks", "evaluation", "front_", "judge_")
WRITTEN = {
    "evaluate": "scores.json",
    "bench": "results.json",
    "weighted_bench": "results.json",
    "guided_seconds": "results.json",
    "tune": "pareto.json",
}
"""What a command writes into its folder, by its name; a copy of that is the record."""
OWN_RECORDS = ("rows_side_by_side", "vvs_studies")
"""Scripts that write a record by themselves, where they are told."""


@dataclass(frozen=True)
class Step:
    """One thing to record.

    Args:
        command: arguments of Python, run in the repository.
        timed: whether it times something.
        copies: where its figures lie and the record they become, if it does not write that itself.
        reads_drafter: whether an EAGLE head takes part.
        model: a folder; None: the default one.
    """

    command: tuple[str, ...]
    timed: bool = False
    copies: tuple[Path, Path] | None = None
    reads_drafter: bool = True
    model: str | None = None


@dataclass(frozen=True)
class Weights:
    """Fingerprints of the shipped model: of all of it, and of what draws without its EAGLE head."""

    whole: str
    without_drafter: str

    @classmethod
    def shipped(cls) -> Weights:
        """Those of the package."""
        folder = find_model()
        return cls(weights_fingerprint(folder), weights_fingerprint(folder, apart_from="drafter"))

    def of(self, step: Step) -> str:
        """What a step is to be recorded on."""
        if step.model is not None:
            return weights_fingerprint(ROOT / step.model, apart_from=None if step.reads_drafter else "drafter")
        return self.whole if step.reads_drafter else self.without_drafter


def read_steps() -> dict[str, Step]:
    """The steps of `record_all.yaml`, by name and in order."""
    told = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    lists = {name: ",".join(members) for name, members in told["lists"].items()}
    return {name: _step(lists, **{"record": name, **each}) for name, each in told["steps"].items()}


def _step(lists: dict[str, str], record: str, run: str, drafter: bool = True) -> Step:
    first, *words = (word.format(**lists) for word in shlex.split(run))
    name = words[0] if first == "vargen" else first
    command = ["-m", "vargen.cli"] if first == "vargen" else [f"benchmarks/{name}.py"]
    copies = None
    if name in WRITTEN:
        words += ["--output", str(WORK / record)]
        copies = WORK / record / WRITTEN[name], RESULTS / f"{record}.json"
    elif name in OWN_RECORDS:
        words += ["--output", str(RESULTS / f"{record}.json")]
    model = words[words.index("--model") + 1] if "--model" in words else None
    return Step((*command, *words), name in WRITTEN and name != "evaluate", copies, drafter, model)


STEPS = read_steps()


def out_of_date(name: str, recorded: dict[str, Any], weights: Weights) -> bool:
    """Whether a step was never run on these weights. Documents are built whenever something else was recorded."""
    return name == "documents" or recorded.get(name, {}).get("weights") != weights.of(STEPS[name])


def run(names: list[str], recorded: dict[str, Any], weights: Weights) -> None:
    """Run the steps one after the other, keeping each as soon as it is through.

    Raises:
        SystemExit: with the exit code of the step that failed.
    """
    for number, name in enumerate(names, start=1):
        step = STEPS[name]
        note = "; it times something: keep the machine to itself" if step.timed else ""
        print(f"{number} of {len(names)}  {name}{note}", file=sys.stderr)
        started = time.monotonic()
        code = subprocess.run((sys.executable, *step.command), cwd=ROOT).returncode
        if code:
            print(f"{name} failed; once mended, the same command goes on", file=sys.stderr)
            raise SystemExit(code)
        if step.copies is not None:
            source, record = step.copies
            write_json_atomic(record, json.loads(source.read_text()))
        recorded[name] = {"weights": weights.of(step), "minutes": round((time.monotonic() - started) / 60, 1)}
        write_json_atomic(RECORDED_ON, recorded)


def figures(record: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """All numbers of a record with their places; rows of a list go by their method's name."""
    if isinstance(record, dict):
        for key, value in record.items():
            if key not in ("provenance", "interval", "settings", "hardware", "protocol", "calls"):
                yield from figures(value, (*path, str(key)))
    elif isinstance(record, list):
        for row in record:
            if isinstance(row, dict) and "method" in row:
                yield from figures(row, (*path, row["method"]))
    elif isinstance(record, int | float) and not isinstance(record, bool):
        yield path, float(record)


def compare(commit: str) -> str:
    """Markdown: every figure of the picture model's records that differs from the one in `commit`."""
    lines = [f"# What changed since {commit}", ""]
    for path in sorted(RESULTS.glob("*.json")):
        name = path.relative_to(ROOT).as_posix()
        if not path.stem.startswith(COMPARED):
            continue
        shown = subprocess.run(("git", "show", f"{commit}:{name}"), cwd=ROOT, capture_output=True, text=True)
        before = dict(figures(json.loads(shown.stdout))) if shown.returncode == 0 else {}
        rows = [
            f"| {' / '.join(place)} | {before[place]:.4g} | {value:.4g} |"
            for place, value in figures(json.loads(path.read_text()))
            if place in before and before[place] != value
        ]
        if rows:
            lines += [f"## {path.stem}", "", "| figure | before | now |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; all that are out of date if none is named")
    parser.add_argument("--list", action="store_true", help="say what there is and what is out of date, and stop")
    parser.add_argument("--compare", metavar="COMMIT", help="print what changed since a commit, and stop")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.steps if name not in STEPS]:
        parser.error(f"steps: no {unknown[0]!r}; there are {', '.join(STEPS)}")
    if arguments.compare:
        print(compare(arguments.compare))
        return
    weights = Weights.shipped()
    recorded = json.loads(RECORDED_ON.read_text()) if RECORDED_ON.exists() else {}
    if arguments.list:
        for name, step in STEPS.items():
            minutes = recorded.get(name, {}).get("minutes", "?")
            state = "out of date" if out_of_date(name, recorded, weights) else "as shipped"
            print(f"{name:26}{state:14}{minutes} min{'  timed' if step.timed else ''}")
        return
    run(arguments.steps or [name for name in STEPS if out_of_date(name, recorded, weights)], recorded, weights)


if __name__ == "__main__":
    main()
