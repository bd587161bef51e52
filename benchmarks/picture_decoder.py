"""Whether faster ways to decode pictures draw the same pictures: by pixels, and by what the judge reads in them.

    python benchmarks/picture_decoder.py                 # 100 held-out captions, as recorded
    python benchmarks/picture_decoder.py --prompts 20    # a look

Plain decoding draws the codes once; every way decodes the same codes. `float32, as stored` is what the others are
compared with: kernels lie in memory as the weights' file has them. `float32` is how pictures are decoded on a CPU, with
channels last. `bfloat16` is `pixel_dtype`, in the same layout. Rounding depends on the processor.

Writes benchmarks/results/picture_decoder.json. Does not belong here: seconds, which `bench` measures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from judge_report import judge_images
from rows_side_by_side import BATCH, judged
from torch import Tensor

from metrics.provenance import write_result
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.network import SceneJudge, load_judge
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.models.vqgan import decode_codes
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"


@torch.no_grad()
def decoded(pipeline: LlamaGenPipeline, codes: Tensor) -> dict[str, Tensor]:
    """Pictures [B, 3, H, W] in [0, 1] of codes [B, N], by every way."""
    vqvae, grid = pipeline.vqvae, codes.reshape(len(codes), 1, *[pipeline.transformer.config.grid_size] * 2)
    vqvae.decoder.to(memory_format=torch.contiguous_format)
    shape = (*grid.shape[1:], vqvae.quantize.vq_embed_dim)
    stored = torch.cat([vqvae.decode(each, force_not_quantize=True, shape=shape).sample for each in grid])
    ways = {"float32, as stored": stored}
    for dtype in (torch.float32, torch.bfloat16):
        ways[str(dtype).removeprefix("torch.")] = torch.cat([decode_codes(vqvae, each, dtype) for each in grid])
    return {name: (pixels / 2 + 0.5).clamp(0, 1) for name, pixels in ways.items()}


def compared(ways: dict[str, Tensor], cases: list[PromptCase], judge: SceneJudge) -> list[dict[str, Any]]:
    """What each way differs in from the first, in steps of 255 and in what the judge finds."""
    rows, first = [], next(iter(ways))
    verdicts = {name: judge_images(judge, pictures, cases) for name, pictures in ways.items()}
    for name, pictures in ways.items():
        steps = ((pictures * 255).round() - (ways[first] * 255).round()).abs()
        counts = [judged(verdict) for verdict in verdicts[name]]
        right, said, numbers_right, numbers = (sum(each) for each in zip(*counts, strict=True))
        checks = [
            (ours.right, theirs.right)
            for mine, others in zip(verdicts[name], verdicts[first], strict=True)
            for ours, theirs in zip(mine.checks, others.checks, strict=True)
        ]
        rows.append(
            {
                "label": name,
                "largest_difference": int(steps.max()),
                "mean_difference": float(steps.mean()),
                "pixels_that_differ": float((steps > 0).double().mean()),
                "claims": right / said,
                "numbers": numbers_right / numbers,
                "verdicts": len(checks),
                "verdicts_that_differ": sum(ours != theirs for ours, theirs in checks),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100, help="captions")
    parser.add_argument("--output", type=Path, default=RESULTS / "picture_decoder.json")
    arguments = parser.parse_args()
    folder = find_model()
    pipeline = LlamaGenPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    cases = sample_prompts(arguments.prompts)
    codes = torch.cat(
        [
            pipeline(
                [case.caption.text for case in cases[first : first + BATCH]],
                method="ar",
                generator=[torch.Generator().manual_seed(first + k) for k in range(len(cases[first : first + BATCH]))],
                output_type="latent",
            ).tokens
            for first in range(0, len(cases), BATCH)
        ]
    )
    rows = compared(decoded(pipeline, codes), cases, load_judge(None, "cpu"))
    record = {"benchmark": "picture_decoder", "model": folder.name, "weights": weights_fingerprint(folder)}
    write_result(arguments.output, {**record, "prompts": arguments.prompts, "rows": rows})
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
