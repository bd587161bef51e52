"""The picture on top of the README: the same prompts and seeds by plain decoding and by jacobi, with their passes.

    python benchmarks/readme_picture.py

Prompts and seeds were chosen by eye, so that every picture shows what its caption asks for; README says so. The window
has a fixed size, so that the passes are the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import torch

from vargen import LlamaGenPipeline
from vargen.base.resources import find_model
from vargen.drawing.sheet import contact_sheet
from vargen.runs.files import save_image_atomic

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "plain_and_accelerated.png"
METHODS = {"plain decoding": ("ar", {}), "jacobi, window 16": ("jacobi", {"window": 16})}
PROMPTS = {  # and their seeds
    "a large shiny purple cone on grass": 1,
    "two shiny balls on sand": 0,
    "three cones on sand": 0,
    "a striped orange sphere on wood at sunset": 1,
    "a large cyan cylinder on wood": 0,
    "a small red cone and a large white cylinder on grass": 1,
}


def main() -> None:
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    images, captions = [], []
    for label, (name, options) in METHODS.items():
        method = pipeline.resolve_method(name, options)
        for prompt, seed in PROMPTS.items():
            drawn = pipeline(prompt, method=method, generator=torch.Generator().manual_seed(seed))
            images.append(drawn.images[0])
            captions.append(f"{prompt}\n{label}: {drawn.trace.target_passes} forward passes")
    for plain, jacobi in zip(images, images[len(PROMPTS) :], strict=False):
        if plain.tobytes() != jacobi.tobytes():
            raise SystemExit("readme_picture: error: jacobi drew another picture than plain decoding")
    save_image_atomic(contact_sheet(images, captions, columns=len(PROMPTS)), PICTURE)
    print(f"wrote {PICTURE.name}")


if __name__ == "__main__":
    main()
