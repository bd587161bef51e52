"""Peak memory of drawing eight pictures of 1,024 tokens, against what there must be: weights, cache, one step.

    python benchmarks/generate_memory.py --record benchmarks/results/generate_memory.json

LlamaGen-B with the VQ-16 tokenizer, random weights, guided, on the CPU; every figure is from a process of its own.
What a process holds after its imports is not counted. `needed` is the bytes of all weights, of keys and values for
every slot, and of the largest step: logits of both halves and of what they are guided to, or, where pixels are wanted,
what the tokenizer takes for one picture, which is measured on it alone. The aim is a peak of at most 1.2 times that.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from typing import Any

from own_process import forget_peak, held_bytes, in_own_process, peak_bytes

BATCH, GRID, GUIDANCE_SCALE, VOCABULARY = 8, 32, 4.0, 16384
WAYS = ("ar tokens", "jacobi tokens", "ar pictures")


def measure(way: str, dtype_name: str, grid: int) -> dict[str, int]:
    """Bytes, in this process. `way` "decode": the tokenizer alone, one picture."""
    import torch

    from vargen.models.llamagen.transformer import LlamaGenTransformer
    from vargen.models.llamagen.vq import build_vq_model, decode_codes
    from vargen.pipelines.llamagen import LlamaGenPipeline

    torch.manual_seed(0)
    (torch.ones(64, 64) @ torch.ones(64, 64)).sum()  # what is loaded when first used
    before = held_bytes()
    vqvae = build_vq_model("VQ-16").eval()
    if way == "decode":
        held = held_bytes()
        forget_peak()
        with torch.no_grad():
            decode_codes(vqvae, torch.randint(VOCABULARY, (1, grid * grid)))
        return {"bytes_peak": peak_bytes() - held}
    dtype = getattr(torch, dtype_name)
    torch.set_default_dtype(dtype)  # made in the precision it is kept in
    transformer = LlamaGenTransformer.from_size("B", condition_type="class", grid_size=grid).eval()
    torch.set_default_dtype(torch.float32)
    pipeline = LlamaGenPipeline(transformer, vqvae)
    pipeline.set_progress_bar_config(disable=True)
    weights = sum(p.numel() * p.element_size() for module in (transformer, vqvae) for p in module.parameters())
    method, kind = way.split()
    rows, slots = 2 * BATCH, []

    def watch(pipeline: Any, step: int, lengths: Any, tensors: Any) -> None:
        slots[:] = [lengths.max().item()]

    gc.collect()
    forget_peak()
    pipeline(
        class_labels=list(range(BATCH)),
        method=method,
        guidance_scale=GUIDANCE_SCALE,
        generator=[torch.Generator().manual_seed(seed) for seed in range(BATCH)],
        output_type="latent" if kind == "tokens" else "pil",
        callback_on_step_end=watch,
    )
    assert slots == [grid * grid]
    cache = 2 * transformer.config.num_layers * rows * (grid * grid) * transformer.config.dim * dtype.itemsize
    step = (rows + BATCH) * VOCABULARY * 4
    return {"bytes_weights": weights, "bytes_cache": cache, "bytes_step": step, "bytes_peak": peak_bytes() - before}


def main() -> None:
    """Measure everything, print it, record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--record", type=Path, help="JSON file for the figures")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--grid", type=int, default=GRID, help="tokens along a picture's side")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "DTYPE"), help="one measurement, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.grid)))
        return

    from metrics.provenance import provenance

    def one(way: str, dtype: str) -> dict[str, int]:
        return in_own_process(__file__, "--one", way, dtype, "--grid", options.grid)

    decode = one("decode", "float32")["bytes_peak"]
    rows = []
    for dtype in options.dtypes:
        for way in WAYS:
            row = {"way": way, "dtype": dtype, **one(way, dtype)}
            if way.endswith("pictures"):
                row["bytes_step"] = decode
            row["bytes_needed"] = row["bytes_weights"] + row["bytes_cache"] + row["bytes_step"]
            row["ratio"] = row["bytes_peak"] / row["bytes_needed"]
            rows.append(row)
            said = ", ".join(f"{name[6:]} {row[name] / 2**20:,.0f}" for name in row if name.startswith("bytes_"))
            print(f"{dtype} {way}: {row['ratio']:.2f} ({said} MiB)", flush=True)
    if options.record is not None:
        shape = {"model": "LlamaGen-B, VQ-16", "batch_size": BATCH, "tokens": options.grid**2}
        options.record.write_text(json.dumps({**shape, "rows": rows, "provenance": provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
