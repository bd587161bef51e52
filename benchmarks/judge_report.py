"""Does the model draw what the prompt says: the judge's verdict on prompts that training never saw.

Three columns, on the same sentences: pictures the model generates; renders of the scenes behind the sentences (what the
judge gets wrong); the tokenizer's reconstructions of those renders (what the tokenizer loses). Two sets of prompts:
held-out combinations with one to three objects, and single objects of any combination. Then the judge alone, on
everything that is true of a scene whether a sentence says it or not.

    python benchmarks/judge_report.py                                    # the shipped model, 500 + 200 prompts
    python benchmarks/judge_report.py --guidance_scale 3 --count 100
    python benchmarks/judge_report.py --count 16 --contact_sheet docs/images/scenes-128.png

Writes benchmarks/results/judge_<model>.json. Does not belong here: reading pictures (`scenes.judge.network`), judging
claims (`scenes.judge.claim_checks`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from metrics.provenance import write_result
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.claim_checks import Judgement, Tally, claims_from_scene, judge_claims, verdict_table
from scenes.judge.network import SceneJudge, load_judge, read_images
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import Scene, sample_scene
from scenes.seeds import PROMPT_SEED
from scenes.training.judge import reconstruct
from vargen import LlamaGenPipeline
from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.runs.files import save_image_atomic

RESULTS = Path(__file__).resolve().parent / "results"
SHEET_PROMPTS = (
    "a large shiny red sphere",
    "a small matte blue cube on sand",
    "a large striped yellow cylinder on grass",
    "a checkered green cone under a cloudy sky",
    "a small white sphere on wood at sunset",
    "a large shiny purple cone on grass",
    "two cyan cubes",
    "a red cube left of a blue sphere",
    "a small yellow cone right of a large purple cylinder on sand",
    "a striped orange sphere in front of a green cylinder",
    "a large white cube behind a small red sphere on wood",
    "a shiny green sphere left of a checkered orange cube",
    "a purple cone and a matte white cylinder on grass at sunset",
    "three objects: a red sphere, a green cube and a blue cone",
    "a small cyan sphere, a large yellow cube and a small red cylinder from left to right",
    "two orange cones left of a blue cylinder under a clear sky",
)
"""Prompts of the contact sheet in the documentation, chosen for variety before any picture was seen."""


@dataclass
class PromptReport:
    """What came of judging a set of prompts.

    Attributes:
        tallies: by the source of the pictures: "generated", "renders", "reconstructions".
        verdicts: one per prompt, on the generated pictures.
        seconds: of generating alone.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    verdicts: list[Judgement] = field(default_factory=list)
    seconds: float = 0.0


def evaluate_prompts(
    pipeline: Any,
    judge: SceneJudge,
    cases: Sequence[PromptCase],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = False,
    **generation: Any,
) -> PromptReport:
    """Generate a picture for every prompt and judge it; judge renders and reconstructions of the same scenes.

    Args:
        pipeline: a `LlamaGenPipeline` whose pictures are of the scene world.
        judge: the reader; on its own device.
        cases: the prompts.
        batch_size: pictures per call; the pictures do not depend on it.
        seed: the picture of prompt i is made with the seed `seed + i`.
        progress: show a bar.
        **generation: further arguments of the pipeline's call: `guidance_scale`, `temperature`, `top_k`, ...

    Raises:
        UserError: for a batch size below 1.
    """
    if batch_size < 1:
        raise UserError(f"batch_size: {batch_size} must be 1 or more")
    report = PromptReport()
    sources = {name: (images_of, Tally()) for name, images_of in _references(pipeline.vqvae, pipeline.image_size)}
    for start in tqdm(range(0, len(cases), batch_size), unit="batch", disable=not progress):
        batch = cases[start : start + batch_size]
        began = time.perf_counter()
        images = generate_images(pipeline, [case.caption.text for case in batch], seed + start, **generation)
        report.seconds += time.perf_counter() - began
        report.verdicts += judge_images(judge, images, batch)
        for images_of, tally in sources.values():
            for verdict in judge_images(judge, images_of([case.scene for case in batch]), batch):
                tally.add(verdict)
    report.tallies = {"generated": Tally.of(report.verdicts), **{name: tally for name, (_, tally) in sources.items()}}
    return report


def evaluate_judge(judge: SceneJudge, vqvae: Any, count: int, seed: int = 0, batch_size: int = 64) -> dict[str, Tally]:
    """The judge's own accuracy: everything that is true of scenes, read off their renders and reconstructions.

    Args:
        judge: the reader.
        vqvae: the tokenizer of the reconstructions, a `diffusers.VQModel`; None for renders alone.
        count, seed: which held-out scenes, as for `scenes.cases.sample_prompts`.
        batch_size: pictures at a time.

    Returns:
        Tallies "renders" and, with a tokenizer, "reconstructions".
    """
    scenes = [sample_scene(PROMPT_SEED + seed + index, "heldout") for index in range(count)]
    tallies: dict[str, Tally] = {}
    for source, images_of in _references(vqvae, judge.config.image_size):
        tally = tallies[source] = Tally()
        for start in range(0, count, batch_size):
            batch = scenes[start : start + batch_size]
            for reading, scene in zip(read_images(judge, images_of(batch)), batch, strict=True):
                tally.add(judge_claims(reading, claims_from_scene(scene)))
    return tallies


def generate_images(pipeline: Any, prompts: Sequence[str], seed: int, **generation: Any) -> Tensor:
    """Images `[B, 3, H, W]` fp32 in [0, 1], the one of prompt i with the seed `seed + i`; one call of the pipeline."""
    generators = [torch.Generator().manual_seed(seed + index) for index in range(len(prompts))]
    output = pipeline(prompt=list(prompts), generator=generators, output_type="pt", **generation)
    return output.images.float()


def judge_images(judge: SceneJudge, images: Tensor, cases: Sequence[PromptCase]) -> list[Judgement]:
    """One verdict a picture `[B, 3, H, W]` in [0, 1] on what its prompt says."""
    return [
        judge_claims(reading, case.caption.claims, case.object_count)
        for reading, case in zip(read_images(judge, images), cases, strict=True)
    ]


def draw_prompt_sheet(pipeline: Any, path: Path, seed: int = 0, **generation: Any) -> None:
    """One PNG of a picture for each of `SHEET_PROMPTS`, four a row; nothing is drawn twice or picked out."""
    images = generate_images(pipeline, SHEET_PROMPTS, seed, **generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_image_atomic(contact_sheet(to_pil(images), list(SHEET_PROMPTS), columns=4), path)


def _references(vqvae: Any, image_size: int) -> list[tuple[str, Callable[[Sequence[Scene]], Tensor]]]:
    """Where pictures of known scenes come from, with names."""
    renderer = SceneRenderer(image_size)

    def render(scenes: Sequence[Scene]) -> Tensor:
        return renderer(scenes).images

    reconstructed = [] if vqvae is None else [("reconstructions", lambda scenes: reconstruct(vqvae, render(scenes)))]
    return [("renders", render), *reconstructed]


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
    parser.add_argument("--contact_sheet", type=Path, help="PNG of a fixed list of 16 prompts")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/judge_<model>.json")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Judge, print, write."""
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
    shared = {"batch_size": arguments.batch_size, "seed": arguments.seed}
    reports: dict[str, PromptReport] = {}
    for name, cases in sets.items():
        print(f"{name}: {len(cases)} prompts", file=sys.stderr)
        reports[name] = evaluate_prompts(pipeline, judge, cases, progress=True, **shared, **generation)
    judge_alone = evaluate_judge(judge, pipeline.vqvae, arguments.count, arguments.seed)
    if arguments.contact_sheet:
        draw_prompt_sheet(pipeline, arguments.contact_sheet, seed=arguments.seed, **generation)

    result = {
        "benchmark": "judge's verdict",
        "model": folder.name,
        "settings": {
            **shared,
            **{name: getattr(arguments, name) for name in ("device", "dtype")},
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


if __name__ == "__main__":
    try:
        run(build_parser().parse_args())
    except UserError as error:
        print(f"judge_report: error: {error}", file=sys.stderr)
        sys.exit(2)
