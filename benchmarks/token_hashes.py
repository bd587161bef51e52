"""Hashes of the tokens that every method makes, so that anyone can check that a rebuild of the code changed none.

    python benchmarks/token_hashes.py --check benchmarks/results/token_hashes.json     # exit 1, and every difference
    python benchmarks/token_hashes.py --check benchmarks/results/token_hashes.json --only vvs
    python benchmarks/token_hashes.py --record benchmarks/results/token_hashes.json
    python benchmarks/token_hashes.py --record benchmarks/results/token_hashes.json --kind videos   # pictures stay
    python benchmarks/token_hashes.py --record benchmarks/results/token_hashes.json --kind images --only "preset rows"

Every image method and preset on 8 prompts with the seeds 0 to 7 in one batch, further settings and greedy decoding on
two of these; every video method on 2 videos, greedily and sampled (`token_hashes.yaml`); float32, one thread, sizes
fixed. A check runs what the record says, with the settings that it says, so a method keeps its tokens where its
defaults change. Only what users have is called: `LlamaGenPipeline` with a method by name, preset or YAML file, and
`vargen caption`. Takes ten minutes of processor time beside other work.

Sums in float32 depend on the processor and the version of torch, and a near tie on such a sum. On another machine
record anew with the old code, then check with the new.

The methods in `WITHOUT_DRAFTER` are missing: no drafter of theirs is shipped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from metrics.provenance import provenance, write_result
from vargen import LlamaGenPipeline
from vargen.base.resources import find_model
from vargen.cli import main as vargen
from vargen.runs.files import write_atomic

ROOT = Path(__file__).resolve().parent.parent

PROMPTS = (
    "a large shiny red sphere",
    "a small matte blue cube on sand",
    "a checkered green cone under a cloudy sky",
    "two cyan cubes",
    "a red cube left of a blue sphere",
    "a striped orange sphere in front of a green cylinder",
    "three objects: a red sphere, a green cube and a blue cone",
    "a small cyan sphere, a large yellow cube and a small red cylinder from left to right",
)
VIDEOS = [0, 1]
VIDEO_TOKENS = 64

KINDS = ("images", "videos")

ALL, TWO = list(range(len(PROMPTS))), [3, 7]
"""Prompts by number: every one; the shortest and the longest, for settings beside a method's first."""

Case = dict[str, Any]
"""What is run: "method", "settings", "call" for what else the call is given, and the "rows" that are made: pictures by
the number of their prompt and seed, or answers by the number of their video and seed."""

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
"""Settings of all cases."""
WITHOUT_DRAFTER: dict[str, set[str]] = {"image": set(), "video": {"eagle", "msd", "vispec"}}


def image_cases() -> dict[str, Case]:
    """What pictures are made by, by name."""
    cases: dict[str, Case] = {}
    for method, variants in CASES["images"].items():
        first, settings = next(iter(variants.items()))
        for label, others in variants.items():
            cases[_name(method, label)] = _case(method, others, {}, ALL if label == first else TWO)
        cases[_name(method, first, "greedy")] = _case(method, settings, {"temperature": 0.0}, TWO)
        if method in ("ar", "eagle"):
            cases |= {
                _name(method, first, label): _case(method, settings, call, TWO)
                for label, call in CASES["calls"].items()
            }
    cases |= {f"preset {name}": _case(name, {}, {}, ALL) for name in CASES["presets"]}
    return cases | {
        f"studied {name}": _case(f"benchmarks/methods/{name}.yaml", {}, {}, ALL) for name in CASES["studied"]
    }


def video_cases() -> dict[str, Case]:
    """What answers are made by, by name."""
    cases: dict[str, Case] = {}
    for method, variants in CASES["videos"].items():
        for label, others in variants.items():
            # A process of its own is long in starting, and starts anew for every call.
            rows = VIDEOS[:1] if others.get("workers") == "processes" else VIDEOS
            cases[_name(method, label)] = _case(method, others, {"temperature": 0.0}, rows)
        first, settings = next(iter(variants.items()))
        cases[_name(method, first, "sampled")] = _case(method, settings, {"temperature": 1.0, "top_p": 0.95}, VIDEOS)
    return cases | {
        f"preset {name}": _case(name, settings, {"temperature": 0.0}, VIDEOS)
        for name, settings in CASES["video_presets"].items()
    }


def _case(method: str, settings: dict[str, Any], call: dict[str, Any], rows: list[int]) -> Case:
    return {
        "method": method,
        "settings": {**CASES["beside_own"].get(method, {}), **settings},
        "call": call,
        "rows": rows,
    }


def _name(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def token_hash(tokens: Sequence[int]) -> str:
    """SHA-256 of the tokens as little-endian int64."""
    return hashlib.sha256(b"".join(int(token).to_bytes(8, "little", signed=True) for token in tokens)).hexdigest()


def counts(trace: Mapping[str, Any]) -> dict[str, int]:
    """What the account of a run says, over all rows, that no clock decides."""
    return {
        "passes": sum(trace["row_passes"]),
        "accepted": sum(map(sum, trace["accepted_lengths"])),
        "relaxed": trace["relaxed_tokens"],
        "skipped": trace["skipped_tokens"],
    }


def draw(pipeline: LlamaGenPipeline, case: Case, folder: Path, reverse: bool) -> Case:
    """The hashes of the pictures, in the order of the case's rows, and what they took."""
    method = case["method"]
    if method.endswith(".yaml"):
        method = str(ROOT / method)
    if case["settings"]:  # a YAML file is the one way to give settings that needs no name of a class
        path = folder / "method.yaml"
        path.write_text(json.dumps({"method": method, **case["settings"]}))
        method = str(path)
    turn = -1 if reverse else 1
    rows = case["rows"][::turn]
    output = pipeline(
        [PROMPTS[row] for row in rows],
        method=method,
        generator=[torch.Generator().manual_seed(row) for row in rows],
        output_type="latent",
        **case["call"],
    )
    hashes = [token_hash(tokens) for tokens in output.tokens.tolist()]
    return {"tokens": hashes[::turn], **counts(output.trace.to_dict())}


def answer(videos: Sequence[Path], case: Case) -> Case:
    """The hashes of the answers about the videos, and what they took."""
    options = {f"method_options.{name}": value for name, value in case["settings"].items()}
    options |= {"max_new_tokens": VIDEO_TOKENS, "device": "cpu", "dtype": "float32", **case["call"]}
    written = [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()]
    hashes, totals = [], dict.fromkeys(("passes", "accepted", "relaxed", "skipped"), 0)
    for row in case["rows"]:
        asked = ("caption", str(videos[row]), f"--method={case['method']}", f"--seed={row}", "--json")
        said = json.loads(command(*asked, *written))
        hashes.append(token_hash(said["token_ids"]))
        totals = {name: totals[name] + count for name, count in counts(said).items()}
    return {"tokens": hashes, **totals}


def command(*arguments: str) -> str:
    """What `vargen ...` prints.

    Raises:
        RuntimeError: it failed, with what it said.
    """
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = vargen(arguments)
    if code:
        raise RuntimeError(errors.getvalue().strip().splitlines()[-1])
    return output.getvalue()


def run(cases: Mapping[str, Case], make: Callable[[Case], Case]) -> dict[str, Case]:
    """Each case with what came of it."""
    found: dict[str, Case] = {}
    for number, (name, case) in enumerate(cases.items(), 1):
        began = time.perf_counter()
        asked = {key: case[key] for key in ("method", "settings", "call", "rows")}
        found[name] = {**asked, **make(case)}
        print(f"{number:3}/{len(cases)}  {name}  {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return found


def attempt(make: Callable[[Case], Case]) -> Callable[[Case], Case]:
    """The same, but what fails comes as "error": the other cases can still be compared."""

    def made(case: Case) -> Case:
        try:
            return make(case)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    return made


def differences(recorded: Mapping[str, Case], found: Mapping[str, Case]) -> list[str]:
    """One line for each thing that is not as recorded, by the case's name."""
    lines = []
    for name, now in found.items():
        then = recorded[name]
        if "error" in now:
            lines.append(f"{name}: cannot be run: {now['error']}")
            continue
        hashes = zip(now["rows"], then["tokens"], now["tokens"], strict=True)
        lines += [f"{name}: row {row}: other tokens" for row, old, new in hashes if old != new]
        lines += [
            f"{name}: {count} {now[count]}, recorded {then[count]}"
            for count in ("passes", "accepted", "relaxed", "skipped")
            if now[count] != then[count]
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--record", type=Path, metavar="FILE", help="write the hashes")
    task.add_argument("--check", type=Path, metavar="FILE", help="compare with the hashes there")
    parser.add_argument("--only", default="", help="with --check or --kind: cases whose name holds this")
    parser.add_argument("--kind", choices=KINDS, help="only these; the others stay as they were recorded")
    parser.add_argument("--reverse", action="store_true", help="the pictures of a batch the other way round")
    options = parser.parse_args()
    if options.record and (options.reverse or (options.only and not options.kind)):
        parser.error("--reverse goes with --check, and --only with --check or --kind")

    os.environ["OMP_NUM_THREADS"] = "1"  # for the drafter's process
    torch.set_num_threads(1)
    recorded = json.loads(options.check.read_text()) if options.check else {}
    chosen = {
        kind: {name: case for name, case in cases.items() if options.only in name}
        for kind, cases in (recorded or {"images": image_cases(), "videos": video_cases()}).items()
        if kind in ((options.kind,) if options.kind else KINDS)
    }
    if not any(chosen.values()):
        parser.error(f"--only: no case has {options.only!r} in its name")
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scenes = (f"--output={folder / 'scenes'}", f"--num_scenes={len(VIDEOS)}", "--split=heldout", "--seed=0")
        command("scenes", "--task", "video", "--quiet", *scenes)
        videos = sorted(folder.glob("scenes/videos/*.mp4"))
        makers: dict[str, Callable[[Case], Case]] = {
            "images": lambda case: draw(pipeline, case, folder, options.reverse),
            "videos": lambda case: answer(videos, case),
        }
        found: dict[str, Any] = {
            "video_files": [hashlib.sha256(video.read_bytes()).hexdigest() for video in videos],
            **{
                kind: run(cases, attempt(makers[kind]) if options.check else makers[kind])
                for kind, cases in chosen.items()
            },
        }
    if options.record:
        if options.kind:  # each case then says where it came from, since the record's own provenance is of the others
            record, of_now = json.loads(options.record.read_text()), provenance()
            kept = record[options.kind] if options.only else {}
            now = {name: {**case, "commit": of_now["commit"]} for name, case in found[options.kind].items()}
            record[options.kind] = kept | now
            write_atomic(options.record, json.dumps(record, indent=1) + "\n")
        else:
            write_result(options.record, {"prompts": PROMPTS, **found})
        return 0
    return report(recorded, found)


def report(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """Print every difference; exit code 1 if a token or a count differs."""
    lines = [f"{kind}: {line}" for kind in KINDS for line in differences(recorded[kind], found.get(kind, {}))]
    if found["video_files"] != recorded["video_files"]:
        print("note: the videos are other files than recorded, so answers may differ for that reason alone")
    then, now = recorded["provenance"], provenance()
    for what, old, new in (
        ("processor", then["hardware"]["processor"], now["hardware"]["processor"]),
        *((name, then["libraries"][name], now["libraries"][name]) for name in ("torch", "transformers")),
    ):
        if old != new:
            print(f"note: {what} is {new}, recorded with {old}; near ties may fall otherwise")
    print(*lines, sep="\n", end="\n" if lines else "")
    cases = sum(len(found.get(kind, ())) for kind in KINDS)
    print(f"{len(lines)} differences in {cases} cases, recorded at {then['commit']}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
