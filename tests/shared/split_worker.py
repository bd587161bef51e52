"""One process of several that draw with one model split over them; run as a script by test_tensor_parallel.py."""

import json
import sys
from pathlib import Path

import token_image_models
import torch

from vargen.base.errors import UserError
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.token_images import TokenImagePipeline


def drawn(pipeline, **size):
    """Tokens of two pictures by plain decoding and by two exact methods."""
    pipeline.set_progress_bar_config(disable=True)
    methods = ["ar", "jacobi", pipeline.resolve_method("scd", {"window": 3})]
    generators = [[torch.Generator().manual_seed(seed) for seed in (3, 4)] for _ in methods]
    return [
        pipeline(["a dog", "a red cat"], method=method, generator=each, output_type="latent", **size).tokens.tolist()
        for method, each in zip(methods, generators, strict=True)
    ]


def draw(folder, **split):
    """What each family draws, and what one without a plan says."""
    made = {}
    for name, load, size in (
        ("janus", JanusPipeline.from_pretrained, {}),
        ("emu3_5", None, {}),
        ("simplear", None, {}),
        ("liquid", None, {}),
        ("emu3", Emu3Pipeline.from_pretrained, {"height": 24, "width": 32}),
        ("anole", None, {}),
    ):
        described = {} if load else {"family": token_image_models.tiny_family(name)}
        described |= {"tokenizer": token_image_models.tiny_tokenizer(described["family"])} if described else {}
        try:
            pipeline = (load or TokenImagePipeline.from_pretrained)(folder / name, **described, **split)
            made[name] = drawn(pipeline, **size)
        except UserError as error:
            made[name] = str(error)
    return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    place.joinpath(f"{sys.argv[2]}.json").write_text(json.dumps(draw(place, tp_plan="auto")))
