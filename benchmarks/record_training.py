"""Keep what a training run logged: its settings, its curve, its last figures, the machine.

    python benchmarks/record_training.py runs/transformer --name scenes-128-transformer

Writes benchmarks/results/training_<name>.json. Run it on the machine that trained.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from metrics.provenance import write_result

RESULTS = Path(__file__).resolve().parent / "results"
CURVE_POINTS = 60


def summarise(log: Path) -> dict[str, Any]:
    """Settings, what each resume changed, a thinned loss curve, all evaluations, steps, samples and seconds."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    starts = [entry for entry in entries if entry.get("event") in ("start", "resume")]
    steps = [entry for entry in entries if "event" not in entry]
    evaluations = [
        {k: v for k, v in entry.items() if k != "event"} for entry in entries if "evaluation" in str(entry.get("event"))
    ]
    if not starts or not steps:
        raise SystemExit(f"record_training: error: {log} holds no training steps")
    stride = max(1, len(steps) // CURVE_POINTS)
    settings = [_settings(start) for start in starts]
    changes = [
        {"step": start["step"]} | {name: value for name, value in after.items() if value != before.get(name)}
        for start, (before, after) in zip(starts[1:], itertools.pairwise(settings), strict=True)
    ]
    last = steps[-1]
    ends = [start["step"] for start in starts[1:]] + [last["step"]]
    samples = sum((end - start["step"]) * start["batch_size"] for start, end in zip(starts, ends, strict=True))
    return {
        "settings": settings[0],
        "changes_when_resumed": changes,
        "steps": last["step"],
        "samples": samples,
        "seconds": last["elapsed"],
        "final_loss": last["loss"],
        "curve": [{"step": e["step"], "loss": e["loss"], "elapsed": e["elapsed"]} for e in steps[::stride]],
        "evaluations": evaluations,
    }


def _settings(start: dict[str, Any]) -> dict[str, Any]:
    """What a run was started with. Folders say nothing elsewhere."""
    folders = ("output", "vqvae", "codes", "initial_weights", "frozen_text_encoder", "answers")
    return {
        name: value
        for name, value in start.items()
        if name not in ("event", "step", *folders) and not (isinstance(value, str) and Path(value).is_absolute())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="output of the run")
    parser.add_argument("--name", required=True)
    parser.add_argument("--remark", default="", help="anything the log cannot know, such as what else the machine did")
    arguments = parser.parse_args()
    path = RESULTS / f"training_{arguments.name}.json"
    result = {"benchmark": "training", "name": arguments.name, "remark": arguments.remark}
    write_result(path, result | summarise(arguments.run / "log.jsonl"))
    print(f"written to {path}")


if __name__ == "__main__":
    main()
