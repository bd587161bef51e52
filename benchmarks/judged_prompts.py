"""How often generated pictures show what their prompts say, by the judge, beside what is reachable.

Belongs here: drawing prompts whose truth is known, and judging the same sentences on three sets of pictures: generated
ones, renders of the scenes behind the sentences, and the tokenizer's reconstructions of those. What the renders lose is
the judge's error, and what the reconstructions lose beyond that is the tokenizer's. Does not belong here: reading
pictures (`scenes.judge.network`), judging claims (`scenes.judge.claim_checks`), figures of a run (`judge_report.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from scenes.cases import PromptCase
from scenes.judge.claim_checks import Tally, Verdict, claims_from_scene, judge_claims
from scenes.judge.network import SceneJudge, read_images
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import Scene, sample_scene
from scenes.seeds import PROMPT_SEED
from scenes.training.judge import reconstruct
from vargen.base.errors import UserError
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.runs.files import save_image_atomic

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
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: float = 0.0


def evaluate_prompts(
    pipeline: Any,
    judge: SceneJudge,
    cases: Sequence[PromptCase],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = False,
    on_images: Callable[[int, Tensor], None] | None = None,
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
        on_images: called after each batch with the index of its first prompt and the generated images
            `[B, 3, H, W]` in [0, 1].
        **generation: further arguments of the pipeline's call: `guidance_scale`, `temperature`, `top_k`, ...

    Raises:
        UserError: for a batch size below 1.
    """
    if batch_size < 1:
        raise UserError(f"batch_size: {batch_size} must be 1 or more")
    report = PromptReport()
    with tqdm(total=len(cases), unit="image", disable=not progress) as bar:
        for start in range(0, len(cases), batch_size):
            batch = cases[start : start + batch_size]
            began = time.perf_counter()
            images = generate_images(pipeline, [case.caption.text for case in batch], seed + start, **generation)
            report.seconds += time.perf_counter() - began
            report.verdicts += judge_images(judge, images, batch)
            if on_images is not None:
                on_images(start, images)
            bar.update(len(batch))
    report.tallies = {"generated": Tally.of(report.verdicts)}
    for source, images_of in _reference_sources(pipeline.vqvae, pipeline.image_size).items():
        report.tallies[source] = Tally()
        for start in range(0, len(cases), batch_size):
            batch = cases[start : start + batch_size]
            for verdict in judge_images(judge, images_of([case.scene for case in batch]), batch):
                report.tallies[source].add(verdict)
    return report


def evaluate_judge(
    judge: SceneJudge, vqvae: Any, count: int, seed: int = 0, split: str = "heldout", batch_size: int = 64
) -> dict[str, Tally]:
    """The judge's own accuracy: everything that is true of scenes, read off their renders and reconstructions.

    Args:
        judge: the reader.
        vqvae: the tokenizer of the reconstructions, a `diffusers.VQModel`; None for renders alone.
        count, seed, split: which scenes, as for `scenes.cases.sample_prompts`.
        batch_size: pictures at a time.

    Returns:
        Tallies "renders" and, with a tokenizer, "reconstructions".
    """
    scenes = [sample_scene(PROMPT_SEED + seed + index, split) for index in range(count)]
    tallies: dict[str, Tally] = {}
    for source, images_of in _reference_sources(vqvae, judge.config.image_size).items():
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


def judge_images(judge: SceneJudge, images: Tensor, cases: Sequence[PromptCase]) -> list[Verdict]:
    """One verdict a picture `[B, 3, H, W]` in [0, 1] on what its prompt says."""
    return [
        judge_claims(reading, case.caption.claims, case.object_count)
        for reading, case in zip(read_images(judge, images), cases, strict=True)
    ]


def draw_prompt_sheet(
    pipeline: Any,
    path: str | PathLike[str],
    prompts: Sequence[str] = SHEET_PROMPTS,
    seed: int = 0,
    columns: int = 4,
    **generation: Any,
) -> Tensor:
    """Generate a picture for each prompt and write them, with the prompts below, as one PNG.

    Args:
        pipeline, seed, **generation: as for `evaluate_prompts`; nothing is drawn twice or picked out.
        path: the file; its folder is made where it does not exist.
        prompts: what to draw.
        columns: pictures a row.

    Returns:
        The images `[B, 3, H, W]` in [0, 1].
    """
    images = generate_images(pipeline, prompts, seed, **generation)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_image_atomic(contact_sheet(to_pil(images), list(prompts), columns), path)
    return images


def _reference_sources(vqvae: Any, image_size: int) -> dict[str, Callable[[Sequence[Scene]], Tensor]]:
    """Where pictures of known scenes come from, by name."""
    renderer = SceneRenderer(image_size)

    def render(scenes: Sequence[Scene]) -> Tensor:
        return renderer(scenes).images

    if vqvae is None:
        return {"renders": render}
    return {"renders": render, "reconstructions": lambda scenes: reconstruct(vqvae, render(scenes))}
