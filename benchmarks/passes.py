"""What a pass costs: milliseconds by model, precision, tokens, batch and cache length, beside the machine's bandwidth.

    python benchmarks/passes.py                                       # everything; some minutes a model
    python benchmarks/passes.py --models B --dtypes bfloat16 --tokens 1 8      # a part, in seconds
    python benchmarks/passes.py --reference ~/LlamaGen --models B XL  # the public code beside it, in turns
    python benchmarks/passes.py --smoke --output /tmp/passes.json     # does it work at all?

A pass reads every weight once, so streaming them is its floor; `streaming_ms` is that, at the bandwidth that a plain
sum over a buffer larger than any cache reaches in the same minute, and `bandwidth_share` is floor over measured. Models
have random weights of the named geometry, but for "shipped". On a CPU `arithmetic_ms` is what the products
of all rows take at the speed of products on registers alone (`arithmetic.py`), and `roof_share` the greater of both
floors over measured. Kernels are those of `VARGEN_KERNELS=auto` and `plain`, in turns, and of `auto` with the decoder's
layers in int8, int8-dynamic and int4. With `--compiled` torch's operations are also measured as compiled code.

`--reference` is a checkout of the public LlamaGen code, which is not part of this project: one guided token of its
`decode_one_token`, as its `generate` calls it.

Every row is kept as soon as it is measured; the same command goes on behind the last one. Times are no measurement
while anything else runs.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from arithmetic import flops_per_second

from metrics.provenance import provenance, write_result
from specdecode.kernels.build import kind, why_not
from specdecode.kernels.quantized import quantize_linears
from vargen.base.resources import find_model
from vargen.checkpoints.options import OWN_QUANTIZATION
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES, LlamaGenTransformer

SHIPPED = "shipped"
MODELS = (SHIPPED, "B", "L", "XL")
RESULTS = Path(__file__).resolve().parent / "results"
CONDITION_LENGTH = 12
GUIDANCE_SCALE = 4.0
CACHE_GRIDS = {256: 16, 1024: 32, 4096: 64}
KERNELS = ("auto", "plain")


def milliseconds(calls: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """The times of every call, taken in turns, after two that do not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 2):
        for name, call in calls.items():
            _wait(device)
            began = time.perf_counter()
            call()
            _wait(device)
            if repeat >= 2:
                times[name].append((time.perf_counter() - began) * 1e3)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(module: torch.nn.Module) -> int:
    """Bytes that a pass reads: every parameter but the token embedding (a few rows) and the condition's."""
    skipped = ("token_embedding", "class_embedding", "caption_projection", "null_caption_embeds")
    return sum(p.numel() * p.element_size() for name, p in module.named_parameters() if not name.startswith(skipped))


def bandwidth(device: torch.device, num_bytes: int, repeats: int) -> dict[str, float]:
    """GB/s of a plain sum, which reads, and of a copy, which reads and writes as much; the best of several."""
    buffer = torch.ones(num_bytes // 4, device=device)
    other = torch.empty_like(buffer)
    times = milliseconds({"sum": buffer.sum, "copy": lambda: other.copy_(buffer)}, repeats, device)
    return {
        "read_gb_per_second": num_bytes / min(times["sum"]) / 1e6,
        "copy_gb_per_second": 2 * num_bytes / min(times["copy"]) / 1e6,
    }


def random_transformer(name: str, dtype: torch.dtype, device: torch.device, grid: int) -> LlamaGenTransformer:
    """The shipped model, or one of a published geometry with random weights, made in its precision."""
    if name == SHIPPED:
        path = find_model() / "transformer"
        return LlamaGenTransformer.from_pretrained(path, torch_dtype=dtype).to(device).eval()
    with torch.device("meta"):
        model = LlamaGenTransformer(**LLAMAGEN_SIZES.get(name, {}), condition_type="text", grid_size=grid)
    model = torch.nn.Module.to(model, dtype).to_empty(device=device).eval()
    generator = torch.Generator(device=device).manual_seed(0)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.normal_(std=0.02, generator=generator)
    return model


def llamagen_target(model: LlamaGenTransformer, batch: int, guided: bool, most_tokens: int, length: int) -> Any:
    """A target that has committed `length` tokens of nothing."""
    features = torch.zeros(batch, CONDITION_LENGTH, model.config.caption_dim, dtype=model.dtype, device=model.device)
    embeds = model.embed_condition(caption_embeds=features)
    scale = GUIDANCE_SCALE if guided else 1.0
    target = LlamaGenTarget(model, embeds, guidance_scale=scale, max_draft_nodes=most_tokens)
    target.prefill()
    target.kv_cache.advance(length)  # what the slots hold does not matter to the clock
    target.kv_cache.expect(length)
    return target


def one_pass(target: Any, tokens: int) -> Callable[[], object]:
    """A chain of `tokens` tokens, judged and forgotten."""
    batch, device = target.batch_size, target.device
    ids = torch.zeros(batch, tokens, dtype=torch.long, device=device)
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril().expand(batch, -1, -1)
    depths = torch.arange(tokens, device=device).expand(batch, -1)
    return lambda: target.forward(ids, mask, depths)


def with_kernels(kernels: str, call: Callable[[], object]) -> Callable[[], object]:
    """The same call under a setting of `VARGEN_KERNELS`."""

    def run() -> object:
        os.environ["VARGEN_KERNELS"] = kernels
        return call()

    return run


def reference_pass(folder: Path, name: str, dtype: torch.dtype, length: int) -> Callable[[], object]:
    """One guided token by the public code of `folder`, with a cache of its own; random weights."""
    sys.path.insert(0, str(folder))
    try:
        gpt = importlib.import_module("autoregressive.models.gpt")
        generate = importlib.import_module("autoregressive.models.generate")
    finally:
        sys.path.pop(0)
    torch.manual_seed(0)
    model = gpt.GPT_models[f"GPT-{name}"](vocab_size=16384, block_size=256, cls_token_num=1, model_type="c2i")
    model = model.to(dtype).eval()
    model.setup_caches(max_batch_size=2, max_seq_length=257, dtype=dtype)
    token, place = torch.zeros(1, 1, dtype=torch.long), torch.tensor([length], dtype=torch.int)
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return lambda: generate.decode_one_token(model, token, place, GUIDANCE_SCALE, True, **sampling)


class Measured:
    """One model in one precision, built when the first row asks for it.

    Args:
        name, dtype: which.
        options: of the command line.
        grid: tokens a side.
    """

    def __init__(self, name: str, dtype: str, options: argparse.Namespace, grid: int = 16) -> None:
        self.name, self.dtype, self.options, self.grid = name, getattr(torch, dtype), options, grid
        self.device = torch.device(options.device)
        self._built: LlamaGenTransformer | None = None
        self._rounded: dict[str, LlamaGenTransformer] = {}

    def model(self) -> LlamaGenTransformer:
        if self._built is None:
            self._built = random_transformer(self.name, self.dtype, self.device, self.grid)
        return self._built

    def rounded(self, quantization: str) -> LlamaGenTransformer:
        """The same model with rounded layers."""
        if quantization not in self._rounded:
            self._rounded[quantization] = copy.deepcopy(self.model())
            quantize_linears(self._rounded[quantization].transformer_blocks, quantization)
        return self._rounded[quantization]

    def flops(self, rows: int, way: str) -> dict[torch.dtype, int]:
        """Products and sums of one pass over so many rows, by what is multiplied; attention's are left out."""
        weights = weight_bytes(self.model()) // self.dtype.itemsize
        rounded = self.rounded(way).transformer_blocks.modules() if way in OWN_QUANTIZATION else ()
        of_bytes = sum(module.weight.numel() for module in rounded if getattr(module, "dynamic", False))
        return {self.dtype: 2 * rows * (weights - of_bytes), torch.int8: 2 * rows * of_bytes}

    @torch.inference_mode()
    def row(self, tokens: int, batch: int, guided: bool, length: int) -> dict[str, Any]:
        """Times of one kind of pass, by every kind of kernels, and of the public code where it is asked for."""
        options = self.options
        target = llamagen_target(self.model(), batch, guided, tokens, length)
        call = one_pass(target, tokens)
        has_kernels = self.device.type == "cpu" and not options.no_kernels
        calls = {kernels: with_kernels(kernels, call) for kernels in (KERNELS if has_kernels else ("plain",))}
        bytes_read = weight_bytes(self.model())
        bytes_of = dict.fromkeys((*calls, "compiled", "reference"), bytes_read)
        if options.compiled:
            other = llamagen_target(self.model(), batch, guided, tokens, length)
            other.kv_cache.slots_in_graph = other.kv_cache.reach(tokens)
            compiled = torch.compile(one_pass(other, tokens), fullgraph=True, dynamic=False)
            calls["compiled"] = with_kernels("plain", compiled)
        for quantization in OWN_QUANTIZATION if has_kernels and why_not() is None else ():
            network = self.rounded(quantization)
            quantized = llamagen_target(network, batch, guided, tokens, length)
            calls[quantization] = with_kernels("auto", one_pass(quantized, tokens))
            bytes_of[quantization] = weight_bytes(network)
        if options.reference and self.name != SHIPPED and (tokens, batch, guided) == (1, 1, True):
            calls["reference"] = reference_pass(options.reference, self.name, self.dtype, length)
        times = milliseconds(calls, options.repeats, self.device)
        speed = bandwidth(self.device, options.buffer_mib * 2**20, 5)
        floors = {name: bytes_of[name] / speed["read_gb_per_second"] / 1e6 for name in calls}
        best = {name: statistics.median(values) for name, values in times.items()}
        roof = {}
        if has_kernels and why_not() is None:
            peaks = {kind: flops_per_second(kind, options.num_threads) for kind in (self.dtype, torch.int8)}
            rows = tokens * batch * (2 if guided else 1)
            arithmetic = {
                name: 1e3 * sum(flops / peaks[kind] for kind, flops in self.flops(rows, name).items()) for name in calls
            }
            roof = {
                "gflops_per_second": {str(kind).removeprefix("torch."): peak / 1e9 for kind, peak in peaks.items()},
                "arithmetic_ms": arithmetic,
                "roof_share": {name: max(floors[name], arithmetic[name]) / best[name] for name in calls},
            }
        return {
            **({"kernels": kind()} if has_kernels else {}),
            "milliseconds": times,
            "median_ms": best,
            **speed,
            "bytes_read": bytes_read,
            "streaming_ms": floors["plain"],
            "bandwidth_share": {name: floors[name] / value for name, value in best.items()},
            **roof,
            "cache_bytes": target.kv_cache._rows.numel() * target.kv_cache.dtype.itemsize,
        }


class Rows:
    """Rows on disk, each kept, and told in a line, as soon as it is there.

    Args:
        path: the file. Rows of other settings or another machine are measured anew.
        settings: what all rows of a run share.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
        self.hardware = provenance()["hardware"]["processor"]

    def add(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
        """Measure a row that is not there yet."""
        whole = {**key, "settings": self.settings, "processor": self.hardware}
        if any(all(row.get(name) == value for name, value in whole.items()) for row in self.rows):
            return
        row = {**whole, **measure()}
        same = [other for other in self.rows if all(other.get(name) == value for name, value in key.items())]
        self.rows = [other for other in self.rows if other not in same] + [row]
        write_result(self.path, {"rows": self.rows})
        print(self.tell(row), flush=True)

    @staticmethod
    def tell(row: dict[str, Any]) -> str:
        """What is printed of a row."""
        key = f"{row['model']} {row['dtype']} tokens {row['tokens']} batch {row['batch']} length {row['length']}"
        shares = row["bandwidth_share"]
        times = ", ".join(f"{name} {value:.2f} ms ({shares[name]:.0%})" for name, value in row["median_ms"].items())
        return f"{key}: {times}; streaming {row['streaming_ms']:.2f} ms at {row['read_gb_per_second']:.0f} GB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64], help="of a pass")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1])
    parser.add_argument("--lengths", nargs="*", type=int, choices=CACHE_GRIDS, default=[], help="pictures of so many")
    parser.add_argument("--unguided", action="store_true", help="one row a picture instead of two")
    parser.add_argument("--no_kernels", action="store_true", help="only torch's own operations")
    parser.add_argument("--compiled", action="store_true", help="torch's operations as compiled code, too")
    parser.add_argument("--reference", type=Path, help="a checkout of the public LlamaGen code, to be timed beside")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num_threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--buffer_mib", type=int, default=256, help="of the buffer that is streamed")
    parser.add_argument("--output", type=Path, default=RESULTS / "passes.json")
    parser.add_argument("--smoke", action="store_true", help="the shipped model, two kinds of passes, no measurement")
    options = parser.parse_args()
    if options.reference and not (options.reference / "autoregressive" / "models" / "gpt.py").is_file():
        parser.error(f"--reference: {options.reference} is no checkout of the public LlamaGen code")
    if options.smoke:
        if options.output == RESULTS / "passes.json":
            parser.error("--smoke needs an --output of its own: its rows are no record")
        options.models, options.tokens, options.repeats, options.buffer_mib = [SHIPPED], [1, 8], 1, 8
    torch.set_num_threads(options.num_threads)
    if reason := why_not():
        print(f"no kernels of our own: {reason}", flush=True)

    shared = {"repeats": options.repeats, "num_threads": options.num_threads, "torch": torch.__version__}
    shared |= {"device": options.device, "with_reference": bool(options.reference)}
    shared |= {"compiled": True} if options.compiled else {}
    rows = Rows(options.output, shared)
    for name in options.models:
        for dtype in options.dtypes:
            for tokens_of_picture in options.lengths or [256]:
                grid = CACHE_GRIDS[tokens_of_picture]
                if name == SHIPPED and grid != 16:
                    continue  # it has one grid
                measured = Measured(name, dtype, options, grid)
                length = tokens_of_picture - max(options.tokens) - 1 if options.lengths else tokens_of_picture // 2
                for batch in options.batch_sizes:
                    for tokens in options.tokens:
                        key = {
                            "model": name if name == SHIPPED else f"{name} (random weights)",
                            "dtype": dtype,
                            "tokens": tokens,
                            "batch": batch,
                            "guided": not options.unguided,
                            "length": length,
                        }
                        measure = partial(measured.row, tokens, batch, not options.unguided, length)
                        rows.add(key, measure)
                del measured
                gc.collect()


if __name__ == "__main__":
    main()
