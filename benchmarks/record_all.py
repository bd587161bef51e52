"""Measure anew everything that was measured on the shipped picture model, after its weights were replaced.

    python benchmarks/record_all.py --list                 # what there is, and what is out of date
    python benchmarks/record_all.py                        # whatever is out of date, quality first, then times
    python benchmarks/record_all.py judge evaluation       # only these
    python benchmarks/record_all.py --compare HEAD~3       # a page of what changed since that commit

Each step is one of the project's own commands, run as a process of its own. `benchmarks/results/recorded_on.json` keeps
the weights each step was last run on; a step is out of date when they are not those that are shipped. Killed at any
moment, the same command goes on: finished steps are skipped, and the long ones resume within themselves. Steps that
time something say so: keep the machine to itself for them. After a new drafter alone, what draws without it stays.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.runs.files import write_json_atomic

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RECORDED_ON = RESULTS / "recorded_on.json"
WORK = ROOT / "runs" / "record_all"
PICKS = "ar,jacobi,scd,eagle-chain,vvs-jacobi,likeness-quality,likeness-fast"
ALL = (
    f"{PICKS},likeness-balanced,lantern-tree,eagle,eagle-tree,benchmarks/methods/eagle-sampled-9.yaml,lantern,sjd,gsd,coolsd,draft-model,"
    "vvs-paper-uniform,vvs-paper-dynamic"
)
STUDIED = "eagle-sampled-9", "eagle-sampled-25", "likeness-sampled-9", "likeness-sampled-25", "vvs-uniform-8"
REST = ",".join(  # of the exact ones those whose pictures are not plain decoding's own
    (
        "ar,sjd",
        *(f"benchmarks/methods/{name}.yaml" for name in (*STUDIED, "vvs-dynamic-8")),
        "vvs-jacobi-wide,vvs-paper-uniform,vvs-paper-dynamic,draft-model,scd-wide,lantern,vvs",
    )
)
COMPARED_BESIDE_XL = "ar,jacobi,scd,vvs-jacobi,likeness-quality,rows-fast"
ROWS_BESIDE_XL = "ar,rows-quality,rows-fast"
HEAVY = ("--weighted_by", "LlamaGen-XL", "--weight_dtype", "bfloat16")
IN_INT8 = ("--quantization", "int8-dynamic", "--draft_quantization", "int8")
COMPARED = ("bench_batch", "bench_picks", "evaluation", "front_", "judge_")
PICKED_ROWS = (  # rows-fast, rows-quality, rows-few, rows-batch
    *(f"vvs-rows 4, 12 in rows 4 to 9, {guesses} guesses, 1 looks, 12 columns" for guesses in (3, 1)),
    "vvs-rows 4, 10 in rows 5 to 8, 1 guesses, 1 looks, 12 columns",
    *(f"zipar 4, 8 in rows 4 to 9{guided}" for guided in ("", ", 96 guided")),
)
PICKED = ",".join(PICKED_ROWS)
ROWS = ",".join(
    (
        *PICKED_ROWS,
        "vvs-rows 4, 12 in rows 4 to 9, 2 guesses, 1 looks, 12 columns",
        "zipar 4",
        "vvs-rows 5, 2 guesses, 2 looks",
        "pjd 5, 2 guesses",
        *(f"zipar 4, 12 in rows 4 to 9{guided}" for guided in ("", ", 96 guided", ", 128 guided")),
        "vvs-rows 4, 12 in rows 4 to 9, 3 guesses, 1 looks, 12 columns, 128 guided",
    )
)
SAMPLINGS = ",".join(
    f"plain, guidance {guidance}, temperature {temperature}, top-k {top_k}"
    for guidance in (2, 2.5, 3)
    for temperature in (0.8, 1)
    for top_k in (0, 100)
)
LARGER = "scenes/weights/scenes-256"
"""The model of 32 by 32 tokens."""
ROWS_256 = ",".join(  # the same windows in proportion
    f"vvs-rows 8, 24 in rows 4 to 9, {guesses} guesses, 1 looks, 24 columns" for guesses in (1, 3)
)
FASTEST = "ar,jacobi,rows-quality,rows-fast,benchmarks/methods/rows-few.yaml,rows-batch,zipar"
"""The default, and what draws rows of the grid side by side, which is fastest on a CPU."""
EVALUATED = "ar,scd,eagle-chain,lantern-tree,gsd,coolsd,vvs-jacobi,likeness-quality,likeness-balanced,likeness-fast"
VVS_STUDIES = "selection,staleness,interval,threshold,delta,drawn trees"
LANTERN = "benchmarks/methods/lantern-chain.yaml,ar"


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


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (f"benchmarks/{name}.py", *arguments)


def _bench(record: str, *arguments: str) -> Step:
    command = ("-m", "vargen.cli", "bench", "--output", str(WORK / record), *arguments)
    return Step(command, timed=True, copies=(WORK / record / "results.json", RESULTS / f"{record}.json"))


def _fresh(record: str, batch_size: int, num_prompts: int, processes: int = 10) -> Step:
    counts = ("--batch_size", str(batch_size), "--num_prompts", str(num_prompts), "--processes", str(processes))
    step = _bench(record, "--methods", FASTEST, "--judge", "false", *counts)
    return replace(step, reads_drafter=False)


def _guided(record: str, batch_size: int, processes: int) -> Step:
    wanted = ("--batch_size", str(batch_size), "--processes", str(processes), "--output", str(WORK / record))
    copies = (WORK / record / "results.json", RESULTS / f"{record}.json")
    return Step(_script("guided_seconds", *wanted), timed=True, copies=copies, reads_drafter=False)


def _weighted(record: str, *arguments: str, methods: str = COMPARED_BESIDE_XL, prompts: int = 4) -> Step:
    counts = ("--num_prompts", str(prompts), "--processes", "5")
    wanted = ("--output", str(WORK / record), "--methods", methods, *counts, *HEAVY, *arguments)
    copies = (WORK / record / "results.json", RESULTS / f"{record}.json")
    return Step(_script("weighted_bench", *wanted), timed=True, copies=copies)


def _evaluation(record: str, count: int, methods: str, protocol: str = "scenes") -> Step:
    folder = WORK / record
    arguments = ("--protocol", protocol, "--dtype", "bfloat16", "--batch_size", "50", "--num_prompts", str(count))
    command = ("-m", "vargen.cli", "evaluate", *arguments, "--methods", methods, "--output", str(folder))
    return Step(command, copies=(folder / "scores.json", RESULTS / f"{record}.json"))


def _vvs(record: str, prompts: int, studies: str = "main table") -> Step:
    wanted = ("--studies", studies, "--prompts", str(prompts), "--output", str(RESULTS / f"{record}.json"))
    return Step(_script("vvs_studies", *wanted))


def _rows(record: str, prompts: int, labels: str, *more: str) -> Step:
    wanted = ("--prompts", str(prompts), "--labels", labels, "--output", str(RESULTS / f"{record}.json"), *more)
    return Step(_script("rows_side_by_side", *wanted), reads_drafter=False)


def _larger(step: Step, reads_drafter: bool = False) -> Step:
    """The same with the larger model."""
    return replace(step, command=(*step.command, "--model", LARGER), model=LARGER, reads_drafter=reads_drafter)


def _prompts(form: str, file: str) -> Step:
    folder = WORK / f"prompts_{form}"
    asked = ("--prompts_file", f"configs/prompts/{file}", "--prompts_format", form, "--num_images_per_prompt", "4")
    command = ("-m", "vargen.cli", "evaluate", *asked, "--methods", "ar,vvs-jacobi", "--dtype", "bfloat16")
    return Step((*command, "--output", str(folder)), copies=(folder / "scores.json", RESULTS / f"prompts_{form}.json"))


def _front(method: str, batch_size: int, seconds: int, quality_loss: float = 0.02) -> Step:
    name = f"front_{method}_batch_{batch_size}"
    options: tuple[str, ...] = ("--method", method, "--batch_size", str(batch_size), "--max_seconds", str(seconds))
    options += ("--max_quality_loss", str(quality_loss))
    command = ("-m", "vargen.cli", "tune", *options, "--output", str(WORK / name))
    copies = (WORK / name / "pareto.json", RESULTS / f"{name}.json")
    return Step(command, timed=True, copies=copies, reads_drafter="jacobi" not in method)


STEPS: dict[str, Step] = {
    "judge": Step(_script("judge_report", "--contact_sheet", "docs/images/contact_sheet.png"), reads_drafter=False),
    "readme_picture": Step(_script("readme_picture"), reads_drafter=False),
    "token_hashes": Step(_script("token_hashes", "--record", str(RESULTS / "token_hashes.json"))),
    "evaluation": _evaluation("evaluation_scenes", 1000, EVALUATED),
    "evaluation_rest": _evaluation("evaluation_scenes_rest", 1000, REST),
    "evaluation_lantern": _evaluation("evaluation_lantern", 1000, LANTERN),
    "evaluation_efficientnet": _evaluation("evaluation_efficientnet", 250, EVALUATED, "scenes-efficientnet"),
    "prompts_geneval": _prompts("geneval", "scenes-geneval.jsonl"),
    "prompts_parti": _prompts("parti", "scenes-parti.tsv"),
    "rows_side_by_side": _rows("rows_side_by_side", 1000, ROWS),
    "rows_side_by_side_bfloat16": _rows("rows_side_by_side_bfloat16", 1000, PICKED, "--dtype", "bfloat16"),
    "rows_side_by_side_fresh": _rows("rows_side_by_side_fresh", 1000, PICKED, "--first", "1000"),
    "evaluation_256": _larger(_evaluation("evaluation_256", 1000, "ar")),
    "rows_side_by_side_256": _larger(_rows("rows_side_by_side_256", 1000, ROWS_256, "--dtype", "bfloat16")),
    "guided_tokens": _rows("guided_tokens", 200, "plain, 128 guided,plain, 64 guided", "--dtype", "bfloat16"),
    "quantized": _rows("quantized", 1000, "plain, in int8-dynamic,plain, in int8", "--dtype", "bfloat16"),
    "sampling_grid": _rows("sampling_grid", 200, SAMPLINGS, "--dtype", "bfloat16"),
    "vvs_studies": _vvs("vvs_studies", 64, VVS_STUDIES),
    "vvs_choices": _vvs("vvs_choices", 64, "our choices"),
    "vvs_paths": Step(_script("vvs_paths")),
    "vvs_main_table": _vvs("vvs_main_table", 32),
    "vvs_main_table_256": _larger(_vvs("vvs_main_table_256", 16), reads_drafter=True),
    "vvs_studies_256": _larger(_vvs("vvs_studies_256", 16, "selection,staleness"), reads_drafter=True),
    "host_work": Step(_script("host_work"), timed=True),
    "bench_picks": _bench("bench_picks", "--methods", PICKS, "--num_prompts", "24"),
    "bench_weighted": _weighted("bench_weighted"),
    "bench_weighted_256": _larger(_weighted("bench_weighted_256", "--warm_up", "0", methods=ROWS_BESIDE_XL, prompts=1)),
    "bench_weighted_int8": _weighted("bench_weighted_int8", *IN_INT8),
    "bench_batch_8": _bench("bench_batch_8", "--methods", PICKS, "--batch_size", "8"),
    "bench_batch_1": _bench("bench_batch_1", "--methods", ALL),
    "bench_rows_batch_1": _fresh("bench_rows_batch_1", 1, 2, 20),
    "bench_rows_batch_8": _fresh("bench_rows_batch_8", 8, 8),
    "bench_guided_batch_8": _guided("bench_guided_batch_8", 8, 10),
    "bench_rows_256_batch_1": _larger(_fresh("bench_rows_256_batch_1", 1, 2, 5)),
    "front_jacobi_batch_1": _front("jacobi", 1, 150),
    "front_jacobi_batch_8": _front("jacobi", 8, 150),
    "front_vvs-jacobi_batch_1": _front("vvs-jacobi", 1, 420),
    "front_vvs-jacobi_batch_8": _front("vvs-jacobi", 8, 420),
    "front_scd_batch_1": _front("scd", 1, 150),
    "front_eagle_batch_1": _front("eagle", 1, 300),
    "front_vvs_batch_1": _front("vvs", 1, 960, quality_loss=0.05),
    "front_vvs_batch_8": _front("vvs", 8, 600, quality_loss=0.05),
    "documents": Step(_script("build_results")),
}


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
