"""Passes as compiled code against eager ones: milliseconds a pass, what compiling takes, and how many tokens differ.

Plain decoding and a window of guesses (jacobi), the same prompts and seeds, in turns. Compiled code adds in another
order, so a token may differ where two are about as likely; from there on the picture is another one, no worse.

    python benchmarks/compiled.py                                   # the shipped model, float32, two threads
    python benchmarks/compiled.py --size B --tokens 32              # a published size, random weights
    python benchmarks/compiled.py --dtype bfloat16 --batch_size 8
    VARGEN_KERNELS=plain python benchmarks/compiled.py              # torch's operations where eager passes have our own

Writes its rows to benchmarks/results/compiled.json, in place of those of the same model, precision, batch and tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.provenance import write_result
from specdecode.compilation import PassCompiler
from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.kernels.build import why_not
from specdecode.loop import DecodeResult, decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.base.resources import find_model
from vargen.models.llamagen.target import LlamaGenTarget
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.pipelines.compilation import check_compiler

RECORD = Path(__file__).resolve().parent / "results" / "compiled.json"
GUIDANCE = 4.0
WINDOW = 7


@torch.no_grad()
def draw(
    transformer: LlamaGenTransformer,
    batch_size: int,
    tokens: int,
    method: str,
    compiler: PassCompiler | None,
    seed: int,
) -> DecodeResult:
    """The first tokens of one batch of pictures, of random text features."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch_size, 12, transformer.config.caption_dim, generator=generator)
    embeds = transformer.embed_condition(caption_embeds=features.to(transformer.device, transformer.dtype))
    target = LlamaGenTarget(transformer, embeds, guidance_scale=GUIDANCE, max_draft_nodes=WINDOW + 1)
    target.compiler = compiler  # `compile` would leave to the project's own kernels what they serve
    sizer = FixedDraftSize(DraftSize(WINDOW + 1, WINDOW))
    drafter = JacobiDrafter(transformer.config.vocab_size, sizer, coupling="target") if method == "jacobi" else None
    return decode(
        target,
        max_new_tokens=tokens,
        sampling=SamplingConfig(temperature=1.0, top_k=1000),
        streams=RandomStreams.from_seeds(range(seed, seed + batch_size), device=transformer.device),
        drafter=drafter,
    )


def differing(one: Tensor, other: Tensor) -> int:
    """Pictures of [B, N] tokens in which the first difference is somewhere."""
    return int((one != other).any(1).sum())


def compare(
    transformer: LlamaGenTransformer, batch_size: int, tokens: int, repeats: int, bucket: int, methods: list[str]
) -> list[dict[str, Any]]:
    """One row a method."""
    rows = []
    for method in methods:
        compiler = PassCompiler(bucket=bucket)
        draw(transformer, batch_size, 3 + WINDOW, method, compiler, seed=0)
        draw(transformer, batch_size, 3 + WINDOW, method, None, seed=0)
        milliseconds: dict[str, list[float]] = {"eager": [], "compiled": []}
        different = passes = 0
        for seed in range(repeats):
            results = {}
            for name, each in (("eager", None), ("compiled", compiler)):
                results[name] = result = draw(transformer, batch_size, tokens, method, each, 1 + seed * batch_size)
                steps = result.trace.target_passes - 1
                milliseconds[name].append(1e3 * result.trace.phase_seconds["decode"] / steps)
            passes += results["compiled"].trace.target_passes
            different += differing(results["eager"].tokens, results["compiled"].tokens)
        medians = {name: statistics.median(values) for name, values in milliseconds.items()}
        rows.append(
            {
                "method": method,
                "eager_milliseconds_per_pass": medians["eager"],
                "compiled_milliseconds_per_pass": medians["compiled"],
                "gain": medians["eager"] / medians["compiled"],
                "graphs": compiler.num_compiled,
                "pictures": repeats * batch_size,
                "different_pictures": different,
                "passes": passes,
            }
        )
        print(
            f"  {method}: {medians['eager']:.2f} ms a pass eager, {medians['compiled']:.2f} compiled, "
            f"{different} of {repeats * batch_size} pictures differ, {compiler.num_compiled} graphs in "
            f"{compiler.seconds:.0f} s"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="pipeline folder or shipped name (default: the shipped model)")
    parser.add_argument("--size", help="a published LlamaGen size with random weights instead, such as B")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256, help="of each picture, from its beginning")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bucket", type=int, default=128)
    parser.add_argument("--methods", default="ar,jacobi")
    parser.add_argument("--num_threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RECORD, help="where rows are kept, beside those that are there")
    parser.add_argument("--compile_only", action="store_true", help="only fill the cache of compiled code")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.num_threads)
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    check_compiler(device)
    if arguments.size:
        name = f"LlamaGen-{arguments.size} (random weights)"
        torch.manual_seed(0)
        transformer = LlamaGenTransformer.from_size(arguments.size, condition_type="text")
        torch.nn.init.normal_(transformer.lm_head.weight, std=0.02)  # new ones say nothing: all tokens alike
    else:
        folder = find_model(arguments.model)
        name = folder.name
        transformer = LlamaGenTransformer.from_pretrained(folder / "transformer")
    transformer = transformer.to(device, dtype).eval()
    methods = arguments.methods.split(",")
    if arguments.compile_only:
        for method in methods:
            began, compiler = time.perf_counter(), PassCompiler(bucket=arguments.bucket)
            draw(transformer, arguments.batch_size, 3 + WINDOW, method, compiler, seed=0)
            print(
                f"{name}, {method}: {compiler.num_compiled} graphs in {time.perf_counter() - began:.0f} s", flush=True
            )
        return
    print(f"{name}, {arguments.dtype}, batch {arguments.batch_size}, {arguments.tokens} tokens")
    key = {
        "model": name,
        "device": arguments.device,
        "dtype": arguments.dtype,
        "batch_size": arguments.batch_size,
        "tokens": arguments.tokens,
        "window": WINDOW,
        "guidance_scale": GUIDANCE,
        "threads": arguments.num_threads,
        "kernels": "plain" if why_not() else "own",
    }
    new = [
        {**key, **row}
        for row in compare(
            transformer, arguments.batch_size, arguments.tokens, arguments.repeats, arguments.bucket, methods
        )
    ]
    record = arguments.output
    earlier = json.loads(record.read_text())["rows"] if record.exists() else []
    replaced = [{**key, "method": row["method"]} for row in new]
    kept = [row for row in earlier if {each: row[each] for each in (*key, "method")} not in replaced]
    write_result(record, {"benchmark": "compiled passes", "rows": [*kept, *new]})


if __name__ == "__main__":
    main()
