"""The picture on top of the README: the same prompts by plain decoding and by an exact method, with what each took.

    python benchmarks/readme_picture.py

Of `CANDIDATES` pictures of each prompt and method the judge keeps the one that shows most of what was asked for, as
`vargen generate --num_candidates` does; seeds are counted from 0.
"""

from __future__ import annotations

from pathlib import Path

import torch

from vargen import LlamaGenPipeline
from vargen.drawing.sheet import contact_sheet
from vargen.resources import find_model
from vargen.runs.files import save_image_atomic
from vargen.world.judge.judging import JudgeRanker

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
            output = pipeline([prompt] * CANDIDATES, method=method, generator=generators)
            scores = ranker.score(output.images, [prompt] * CANDIDATES)
            best = scores.index(max(scores))
            passes = output.trace.row_passes[best]
            images.append(output.images[best])
            captions.append(f"{prompt}\n{label}: {passes} forward passes")
    save_image_atomic(contact_sheet(images, captions, columns=len(PROMPTS)), PICTURE)
    print(f"wrote {PICTURE.name}")


if __name__ == "__main__":
    main()
