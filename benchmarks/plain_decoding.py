"""Plain decoding: milliseconds per token, the bandwidth that means, and how far it is from streaming the weights once.

A decoding step of one picture has to read every weight once, so the time to stream the weights is a floor; the ratio
says how much of a step is something else (small operations, attention, sampling).

    python benchmarks/plain_decoding.py                          # the shipped model, fp32, batch 1, two threads
    python benchmarks/plain_decoding.py --size XL --device cuda --dtype bfloat16     # a published size, random weights

Writes benchmarks/results/plain_decoding_<model>_<device>.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from metrics.provenance import write_result
from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.base.resources import find_model
from vargen.models.llamagen.target import LlamaGenTarget
from vargen.models.llamagen.transformer import LlamaGenTransformer

RESULTS = Path(__file__).resolve().parent / "results"


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(module: nn.Module) -> int:
    """Bytes a decoding step reads: every parameter but the token embedding (one row) and the condition's."""
    skipped = ("token_embedding", "class_embedding", "caption_projection", "null_caption_embeds")
    return sum(p.numel() * p.element_size() for name, p in module.named_parameters() if not name.startswith(skipped))


def streaming_seconds(num_bytes: int, device: torch.device, repeats: int) -> float:
    """Median time to read a buffer of so many bytes once (a sum over it), after a warm-up."""
    buffer = torch.ones(num_bytes // 4, device=device)
    times = []
    for _ in range(repeats + 3):
        synchronise(device)
        started = time.perf_counter()
        buffer.sum()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[3:])


@torch.inference_mode()
def decode_once(transformer: LlamaGenTransformer, batch_size: int, guidance_scale: float, seed: int) -> float:
    """Seconds of the decoding phase (prefill excluded) of one batch, per step."""
    device, config = transformer.device, transformer.config
    if config.condition_type == "text":
        features = torch.randn(batch_size, 12, config.caption_dim, device=device, dtype=transformer.dtype)
        embeds = transformer.embed_condition(caption_embeds=features)
        mask = torch.ones(batch_size, 12, dtype=torch.bool, device=device)
    else:
        embeds = transformer.embed_condition(class_labels=torch.zeros(batch_size, dtype=torch.long, device=device))
        mask = None
    target = LlamaGenTarget(transformer, embeds, mask, guidance_scale=guidance_scale)
    result = decode(
        target,
        max_new_tokens=transformer.num_image_tokens,
        sampling=SamplingConfig(temperature=1.0),
        streams=RandomStreams.from_seeds(range(seed, seed + batch_size), device=device),
    )
    return result.trace.phase_seconds["decode"] / (transformer.num_image_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="pipeline folder or shipped name (default: the shipped model)")
    parser.add_argument("--size", help="a published LlamaGen size with random weights instead, such as XL")
    parser.add_argument("--grid_size", type=int, default=16, help="tokens along a side, with --size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--guidance_scale", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num_threads", type=int, default=2)
    parser.add_argument("--output_dir", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.num_threads)
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    if arguments.size:
        name = f"LlamaGen-{arguments.size} (random weights)"
        transformer = LlamaGenTransformer.from_size(
            arguments.size, condition_type="text", grid_size=arguments.grid_size
        )
        transformer = transformer.to(device, dtype).eval()
    else:
        folder = find_model(arguments.model)
        name = folder.name
        transformer = LlamaGenTransformer.from_pretrained(folder / "transformer", torch_dtype=dtype).to(device).eval()

    decode_once(transformer, arguments.batch_size, arguments.guidance_scale, seed=0)
    seconds = [
        decode_once(transformer, arguments.batch_size, arguments.guidance_scale, seed=1 + run)
        for run in range(arguments.repeats)
    ]
    step = statistics.median(seconds)
    num_bytes = weight_bytes(transformer)
    floor = streaming_seconds(num_bytes, device, repeats=50)
    result = {
        "benchmark": "plain decoding",
        "model": name,
        "parameters": sum(p.numel() for p in transformer.parameters()),
        "batch_size": arguments.batch_size,
        "guidance_scale": arguments.guidance_scale,
        "dtype": arguments.dtype,
        "device": arguments.device,
        "tokens_per_image": transformer.num_image_tokens,
        "repeats": arguments.repeats,
        "milliseconds_per_step": step * 1e3,
        "milliseconds_per_step_all": [value * 1e3 for value in seconds],
        "weight_bytes_per_step": num_bytes,
        "achieved_gb_per_second": num_bytes / step / 1e9,
        "streaming_milliseconds": floor * 1e3,
        "streaming_gb_per_second": num_bytes / floor / 1e9,
        "ratio_to_streaming": step / floor,
    }
    label = (arguments.size or name).replace("/", "_")
    path = arguments.output_dir / f"plain_decoding_{label}_{device.type}_batch{arguments.batch_size}.json"
    write_result(path, result)
    print(f"{name}, {arguments.dtype}, batch {arguments.batch_size}, guidance {arguments.guidance_scale:g}")
    print(f"  {step * 1e3:.2f} ms per step ({arguments.batch_size} tokens), median of {arguments.repeats} pictures")
    print(f"  {num_bytes / 2**20:.1f} MiB of weights a step: {num_bytes / step / 1e9:.2f} GB/s achieved")
    print(f"  streaming them once: {floor * 1e3:.2f} ms ({num_bytes / floor / 1e9:.1f} GB/s); ratio {step / floor:.1f}")
    print(f"  written to {path}")


if __name__ == "__main__":
    main()
