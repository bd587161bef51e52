"""What each thing that helps the picture model learn is worth, by leaving it out.

Small runs of the shipped architecture from random weights, all over the same pictures in the same order, each with one
of the shipped recipe's helps left out, its rate falling to zero at the end. They are too short to draw well, and rank
what helps early; a help for the number of objects, which comes late, has its own table in docs/training.md.

    python benchmarks/left_out.py --commands > train.sh && sh train.sh
    python benchmarks/left_out.py

`--runs` holds a folder for each run, as those commands leave it. Writes benchmarks/results/left_out.json: the last
evaluation of each on held-out pictures, and what the judge finds right of prompts for one object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record_training import summarise

from metrics.provenance import write_result
from scenes.cases import sample_prompts
from scenes.judge.judge import load_judge
from scenes.judge.report import evaluate_prompts
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"
LEFT_OUT = {
    "nothing": "",
    "grounding": "--grounding_weight 0.0",
    "weight_on_objects": "--object_loss_weight 1.0",
    "weight_on_the_first_token": "--first_token_weight 1.0",
    "identity_rows": "--model.condition_rotary zero",
}
COMMON = (
    "--object_loss_weight 3.0 --object_loss_until 1.0 --grounding_weight 2.0 --grounding_until 1.0 "
    "--first_token_weight 16.0 --replaced_rows 0.0 --counting_weight 0.0 --compile true --num_threads 1 --steps 480 "
    "--decay_start 0.6 --warmup_steps 60 --ema_decay 0.98 --evaluate_every 120 --evaluation_size 256"
)
"""The shipped recipe for so few steps: what helps falls to nothing by the end."""
WEIGHTS = "--vqvae scenes/weights/scenes-128/vqvae --frozen_text_encoder scenes/weights/scenes-128"


def commands(runs: str, codes: str) -> list[str]:
    """That train all of them, one after the other."""
    return [
        f"vargen train transformer --output {runs}/{name} {WEIGHTS} --codes {codes} {COMMON} {option}".strip()
        for name, option in LEFT_OUT.items()
    ]


def judged(export: Path, prompts: int) -> dict[str, Any]:
    """By kind of claim, what the judge finds right of pictures of one object."""
    pipeline = LlamaGenPipeline.from_pretrained(export)
    pipeline.set_progress_bar_config(disable=True)
    cases = sample_prompts(prompts, 0, "all", num_objects=1)
    report = evaluate_prompts(pipeline, load_judge(None, "cpu"), cases, batch_size=16, seed=0, progress=True)
    return report.tallies["generated"].to_dict()["all"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="runs/left_out", help="folder of the runs")
    parser.add_argument("--codes", default="runs/codes", help="store of `vargen train data`, for --commands")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--commands", action="store_true", help="print how to train them, and nothing else")
    options = parser.parse_args()
    if options.commands:
        print("\n".join(commands(options.runs, options.codes)))
        return
    rows = []
    for name in LEFT_OUT:
        log = Path(options.runs) / name / "log.jsonl"
        run = summarise(log) if log.is_file() else {"evaluations": []}
        if not run["evaluations"]:
            parser.error(f"--runs: {options.runs}/{name} has no evaluation; run what --commands prints")
        verdict = judged(Path(options.runs) / name / "export", options.prompts)
        last = run["evaluations"][-1]
        rows.append({"left_out": name, "pictures": run["samples"], "evaluation": last, "judge": verdict})
        print(json.dumps(rows[-1]["evaluation"]))
    write_result(RESULTS / "left_out.json", {"settings": COMMON, "prompts": options.prompts, "rows": rows})


if __name__ == "__main__":
    main()
