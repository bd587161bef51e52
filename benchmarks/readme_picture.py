"""The picture on top of the README: the same prompts by plain decoding and by an exact method, with what each took.

    python benchmarks/readme_picture.py

Of `CANDIDATES` pictures of each prompt and method the judge keeps the one that shows most of what was asked for, as
`vargen generate --num_candidates` does; seeds are counted from 0.
"""

from __future__ import annotations

from pathlib import Path

import torch

from scenes.judge.claim_judge import JudgeRanker
from vargen import LlamaGenPipeline
from vargen.base.resources import find_model
from vargen.drawing.sheet import contact_sheet
from vargen.runs.files import save_image_atomic

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "plain_and_accelerated.png"
METHODS = {"plain decoding": "ar", "jacobi": "jacobi"}
CANDIDATES = 8
PROMPTS = (
    "a large shiny purple cone on grass",
    "a shiny red sphere left of a small blue cube",
    "a yellow cone right of a large purple cylinder on sand",
    "a striped orange sphere on wood at sunset",
    "a matte white sphere on grass",
    "a small red cone and a large white cylinder on grass",
)


def main() -> None:
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    ranker = JudgeRanker(pipeline.image_size)
    images, captions = [], []
    for label, method in METHODS.items():
        for prompt in PROMPTS:
            generators = [torch.Generator().manual_seed(seed) for seed in range(CANDIDATES)]
            drawn = [pipeline(prompt, method=method, generator=each) for each in generators]  # each as if alone
            scores = ranker.score([each.images[0] for each in drawn], [prompt] * CANDIDATES)
            best = drawn[scores.index(max(scores))]
            passes = best.trace.target_passes
            images.append(best.images[0])
            captions.append(f"{prompt}\n{label}: {passes} forward passes")
    save_image_atomic(contact_sheet(images, captions, columns=len(PROMPTS)), PICTURE)
    print(f"wrote {PICTURE.name}")


if __name__ == "__main__":
    main()
