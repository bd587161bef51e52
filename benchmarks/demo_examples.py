"""Which seeds of the page's example prompts come out right: by plain decoding and by `scd`, as the judge sees them.

    python benchmarks/demo_examples.py

Prints, for each prompt, seeds that both draw as asked, best first, and writes a contact sheet to look at. What is
chosen stands in `vargen.demo.pictures.EXAMPLES`; new weights, or another `scd`, need a new choice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from scenes.judge.claim_judge import JudgeRanker
from vargen import LlamaGenPipeline
from vargen.base.resources import find_model
from vargen.demo.pictures import EXAMPLES
from vargen.drawing.sheet import contact_sheet
from vargen.runs.files import save_image_atomic

METHODS = ("ar", "scd")
SEEDS = range(8)
SHOWN = 3
ALL_RIGHT = 0.9
"""The least score of a right picture. A score loses half a claim at most for doubt, and a whole one for a wrong
claim."""


def main(sheet: Path) -> None:
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    ranker = JudgeRanker(pipeline.image_size)
    pictures, captions = [], []
    for prompt, chosen in EXAMPLES:
        images, scores = {}, {}
        for method in METHODS:
            generators = [torch.Generator().manual_seed(seed) for seed in SEEDS]
            images[method] = pipeline([prompt] * len(SEEDS), method=method, generator=generators).images
            scores[method] = ranker.score(images[method], [prompt] * len(SEEDS))
        worst = {seed: min(scores[method][seed] for method in METHODS) for seed in SEEDS}
        best = sorted(SEEDS, key=lambda seed, worst=worst: -worst[seed])
        right = [seed for seed in best if worst[seed] >= ALL_RIGHT]
        print(f"{prompt}: seeds {right}; chosen: {chosen}", flush=True)
        for seed in best[:SHOWN]:
            for method in METHODS:
                pictures.append(images[method][seed])
                captions.append(f"{prompt}\nseed {seed}, {method}, {scores[method][seed]:.2f}")
    save_image_atomic(contact_sheet(pictures, captions, columns=SHOWN * len(METHODS)), sheet)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo_examples.png"))
