"""Does the model draw what the prompt says: the judge's verdict on prompts that training never saw.

Three columns, on the same sentences: pictures the model generates; renders of the scenes behind the sentences (what the
judge gets wrong); the tokenizer's reconstructions of those renders (what the tokenizer loses). Two sets of prompts:
held-out combinations with one to three objects, and single objects of any combination. Then the judge alone, on
everything that is true of a scene whether a sentence says it or not.

    python benchmarks/judge_report.py                                    # the shipped model, 500 + 200 prompts
    python benchmarks/judge_report.py --guidance_scale 3 --count 100 --images /tmp/pictures
    python benchmarks/judge_report.py --count 16 --contact_sheet docs/images/scenes-128.png

Writes benchmarks/results/judge_<model>.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from judged_prompts import (
    PromptReport,
    draw_prompt_sheet,
    evaluate_judge,
    evaluate_prompts,
)
from torch import Tensor

from metrics.provenance import write_result
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.claim_checks import Tally, verdict_table
from scenes.judge.network import load_judge
from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.drawing.sheet import to_pil
from vargen.runs.files import append_jsonl, save_image_atomic

RESULTS = Path(__file__).resolve().parent / "results"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="pipeline folder or shipped name (default: the shipped model)")
    parser.add_argument("--judge", help="judge folder (default: the shipped judge)")
    parser.add_argument("--count", type=int, default=500, help="held-out prompts")
    parser.add_argument("--one_object_count", type=int, default=200, help="prompts for one object; 0 for none")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--guidance_scale", type=float, help="default: the pipeline's own")
    parser.add_argument("--temperature", type=float, help="default: the pipeline's own")
    parser.add_argument("--top_k", type=int, help="default: the pipeline's own")
    parser.add_argument("--top_p", type=float, help="default: the pipeline's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--num_threads", type=int, default=2)
    parser.add_argument("--images", type=Path, help="folder for the generated pictures and a verdicts.jsonl")
    parser.add_argument("--contact_sheet", type=Path, help="PNG of a fixed list of 16 prompts")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/judge_<model>.json")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Judge, print, write."""
    from vargen.pipelines.llamagen import LlamaGenPipeline

    torch.set_num_threads(arguments.num_threads)
    folder = find_model(arguments.model)
    judge = load_judge(arguments.judge, arguments.device)
    pipeline = LlamaGenPipeline.from_pretrained(folder, torch_dtype=getattr(torch, arguments.dtype))
    pipeline.to(arguments.device)
    pipeline.set_progress_bar_config(disable=True)
    names = ("guidance_scale", "temperature", "top_k", "top_p")
    generation = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}

    sets = {"heldout": sample_prompts(arguments.count, arguments.seed)}
    if arguments.one_object_count:
        sets["one_object"] = sample_prompts(arguments.one_object_count, arguments.seed, "all", num_objects=1)
    reports: dict[str, PromptReport] = {}
    for name, cases in sets.items():
        print(f"{name}: {len(cases)} prompts", file=sys.stderr)
        keeper = ImageKeeper(arguments.images / name, cases) if arguments.images else None
        reports[name] = evaluate_prompts(
            pipeline,
            judge,
            cases,
            batch_size=arguments.batch_size,
            seed=arguments.seed,
            progress=True,
            on_images=keeper,
            **generation,
        )
        if keeper:
            keeper.write_verdicts(reports[name])
    judge_alone = evaluate_judge(judge, pipeline.vqvae, arguments.count, arguments.seed)
    if arguments.contact_sheet:
        draw_prompt_sheet(pipeline, arguments.contact_sheet, seed=arguments.seed, **generation)

    result = {
        "benchmark": "judge's verdict",
        "model": folder.name,
        "settings": {
            **{name: getattr(arguments, name) for name in ("batch_size", "seed", "device", "dtype")},
            **dict.fromkeys(names, "pipeline default"),
            **generation,
        },
        "prompts": {name: len(cases) for name, cases in sets.items()},
        "generation_seconds": {name: round(report.seconds, 1) for name, report in reports.items()},
        "verdicts": {name: _as_dicts(report.tallies) for name, report in reports.items()},
        "judge_alone": _as_dicts(judge_alone),
    }
    path = arguments.output or RESULTS / f"judge_{folder.name}.json"
    write_result(path, result)
    for name, report in reports.items():
        print(f"\n{name}, {len(sets[name])} prompts, {report.seconds:.0f} s of generating\n")
        print(verdict_table(report.tallies))
        for named in report.tallies["generated"].named_objects() if name == "heldout" else []:
            print(f"\n{name}, sentences naming {named} object{'s' * (named != 1)}\n")
            print(verdict_table(report.tallies, named))
    print(f"\nthe judge alone, everything that is true of {arguments.count} held-out scenes\n")
    print(verdict_table(judge_alone))
    print(f"\nwritten to {path}")


def _as_dicts(tallies: dict[str, Tally]) -> dict[str, Any]:
    return {source: tally.to_dict() for source, tally in tallies.items()}


class ImageKeeper:
    """Writes generated pictures as they come, and afterwards what was found wrong with each."""

    def __init__(self, folder: Path, cases: list[PromptCase]) -> None:
        self.folder, self.cases = folder, cases
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, start: int, images: Tensor) -> None:
        for index, image in enumerate(to_pil(images), start=start):
            save_image_atomic(image, self.folder / f"{index:06d}.png")

    def write_verdicts(self, report: PromptReport) -> None:
        (self.folder / "verdicts.jsonl").unlink(missing_ok=True)
        for index, (case, verdict) in enumerate(zip(self.cases, report.verdicts, strict=True)):
            record = {
                "file_name": f"{index:06d}.png",
                "prompt": case.caption.text,
                "right": verdict.right,
                "wrong": [check.kind for check in verdict.checks if not check.right],
            }
            append_jsonl(self.folder / "verdicts.jsonl", record)


if __name__ == "__main__":
    try:
        run(build_parser().parse_args())
    except UserError as error:
        print(f"judge_report: error: {error}", file=sys.stderr)
        sys.exit(2)
