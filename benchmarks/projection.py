"""A PROJECTION, not a measurement: seconds a picture of published models on GPUs that nobody here has.

From what is measured here (passes and rows fed a token: `bench_batch_1.json`, `rows_side_by_side.json`; launches of a
step: counted by this script in operations of torch, without the project's CPU kernels) and from a card's bandwidth,
arithmetic and launch time. The shipped model's acceptance is taken for the large ones'. Batches are continuous, so no
picture waits for another. Where a plain timing is published, the projection stands beside it with its error.

    python benchmarks/projection.py                # counts, and writes benchmarks/results/projection.json
    python benchmarks/projection.py --dry_run      # prints the same

A pass takes the longer of reading (weights, keys and values) and multiplying. Each kernel adds `KERNEL`
seconds. An eager pass takes at least its launches times the host's seconds for one. The host's seconds are
fitted to one published timing a card, which the table marks; all others are checks.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from metrics.provenance import provenance, write_result

RESULTS = Path(__file__).resolve().parent / "results"
READS, MULTIPLIES = 0.85, 0.6
"""The shares of a card's peaks that decoding reaches."""
KERNEL = 1.5e-6
"""Seconds that a captured kernel takes besides reading and multiplying."""
FUSED = 0.2
"""Kernels that remain of small operations when torch's compiler has fused them; 0.16 to 0.24 were counted."""
PRODUCTS = 6
"""Kernels of a layer that stay: four or more products, and attention."""


@dataclass(frozen=True)
class Card:
    """Bytes and operations (bfloat16) a second, bytes of memory, and the host's seconds for a launch."""

    bandwidth: float
    arithmetic: float
    memory: float
    launch: float


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder of bfloat16 weights.

    Args:
        layers, dim, inner, vocab, heads_kv: `heads_kv` is channels of the keys of a layer.
        side, ends: rows of codes and codes of a row; tokens behind each row.
        kind: whose launches a layer makes, see `counted`.
        attention: channels of the queries.
    """

    layers: int
    dim: int
    inner: int
    vocab: int
    heads_kv: int
    side: int
    ends: int
    kind: str
    attention: int

    @property
    def layer(self) -> int:
        """Weights of a layer."""
        return self.dim * (2 * self.attention + 2 * self.heads_kv + 3 * self.inner)

    @property
    def weights(self) -> int:
        """Weights that a pass reads."""
        return self.layers * self.layer + self.dim * self.vocab

    @property
    def tokens(self) -> int:
        """The tokens of a picture."""
        return self.side * (self.side + self.ends)

    def slot(self) -> int:
        """Bytes of a token's keys and values."""
        return 4 * self.layers * self.heads_kv


def llamagen(layers: int, dim: int, side: int) -> Model:
    """A LlamaGen of a published size."""
    inner = 256 * -(-int(8 * dim / 3) // 256)
    return Model(layers, dim, inner, 16_384, dim, side, 0, "public LlamaGen code", dim)


MODELS = {
    "LlamaGen-XL, 512 px": llamagen(36, 1280, 32),
    "Lumina-mGPT 7B, 768 px": Model(32, 4096, 11_008, 65_536, 4096, 48, 1, "Chameleon", 4096),
    "Emu3.5 34B, 1,024 px": Model(64, 5120, 25_600, 282_926, 1024, 64, 1, "Qwen3", 8192),
}
CARDS = {"A100": Card(2.039e12, 312e12, 80e9, 0.0), "H100": Card(3.35e12, 989e12, 80e9, 0.0)}
LLAMA_3 = Model(32, 4096, 14_336, 128_256, 1024, 0, 0, "Qwen3", 4096)
LLAMA_2 = Model(32, 4096, 11_008, 32_000, 4096, 0, 0, "Qwen3", 4096)
PUBLIC_LAYER, PUBLIC_REST = 53, 60
"""Launches of a layer of the public LlamaGen code, and of a step besides: counted by reading it."""

_README = "LlamaGen, autoregressive/serve/README.md"
_QUEUE = "its engine's own loop, scheduler and sampler around the graph, on the host, are not in the projection"
_PLACE = "the card is not told"
TIMINGS: tuple[tuple[str, Model, str, bool, int, float, float, str, str], ...] = (
    # what, model, card, captured, guided pictures a pass (0: one row), context, published ms a token, source, remark
    *(
        (f"LlamaGen-{size}, 8 pictures", llamagen(layers, dim, 24), "A100", captured, 8, 288, 1000 * seconds / 576,
         _README + (", vLLM 0.4.1" if captured else ""), _QUEUE if captured else "")
        for size, layers, dim, eager, fast in (
            ("B", 12, 768, 7.80, 2.39), ("L", 24, 1024, 13.72, 3.48), ("XL", 36, 1280, 19.76, 4.84),
            ("XXL", 48, 1536, 26.38, 6.36), ("3B", 24, 3200, 14.73, 6.26),
        )
        for captured, seconds in ((False, eager), (True, fast))
    ),
    ("LlamaGen-XL, 1 picture", MODELS["LlamaGen-XL, 512 px"], "A100", False, 1, 512, 44.52 / 1.024,
     "arXiv 2510.09012, table 2", _PLACE),
    ("LlamaGen-XL, 1 picture", MODELS["LlamaGen-XL, 512 px"], "A100", False, 1, 512, 49.58 / 1.024,
     "PJD, arXiv 2606.05703", _PLACE),
    *(
        ("Lumina-mGPT 7B, 1 picture", MODELS["Lumina-mGPT 7B, 768 px"], "A100", False, 1, 1200, milliseconds, source,
         f"{_PLACE}; publications differ by a factor of 2.2 on the same model")
        for milliseconds, source in (
            (88.55 / 2.357, "SJD2, arXiv 2510.08994"), (102 / 2.390, "SCD, arXiv 2510.24211"),
            (170.14 / 2.357, "Cool-SD, arXiv 2601.09212"), (197.3 / 2.357, "PJD, arXiv 2606.05703"),
        )
    ),
    ("Emu3.5 34B, 1 picture", MODELS["Emu3.5 34B, 1,024 px"], "A100", False, 1, 2080, 410 / 4.160, "Emu3.5, issue 33",
     "on two cards of an unknown kind, and the whole call, pixels included"),
    ("Llama-2-7B, 1 row", LLAMA_2, "A100", True, 0, 200, 1000 / 104.9, "gpt-fast, README", ""),
    ("Llama-3.1-8B, 1 row", LLAMA_3, "H100", False, 0, 200, 8.4, "cloudai.pt", ""),
    ("Llama-3.1-8B, 1 row", LLAMA_3, "H100", True, 0, 200, 5.1, "cloudai.pt", ""),
)  # fmt: skip
FITTED = {"A100": ("LlamaGen-XL, 8 pictures", False), "H100": ("Llama-3.1-8B, 1 row", False)}
"""The timings, by what and whether captured, that give the host's seconds for a launch."""
METHODS = ("ar", "jacobi", "scd", "gsd", "vvs-jacobi", "zipar", "eagle-chain", "likeness-quality")
OF_HEADS = ("eagle-chain", "likeness-quality")
"""Methods that need a draft head, which is published for LlamaGen-XL's kind alone."""
ZIPAR_WINDOW = 4


class Launches(TorchDispatchMode):
    """Counts operations that launch something on a GPU: neither views nor empty tensors."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.count += not (function.is_view or "empty" in name or name in ("detach", "_unsafe_view", "lift_fresh"))
        return function(*given, **(named or {}))


def launches(draw: Callable[[], Any], layer: torch.nn.Module) -> dict[str, float]:
    """Launches of a step, of its target pass and of one layer, and draft head passes a step, over one picture."""
    import vargen.pipelines.base as base

    counter, plain = Launches(), base.new_run
    seen = {"steps": 0, "step": 0, "pass": 0, "layer": 0, "layers": 0, "drafts": 0}

    def counted(function: Callable[..., Any], name: str, number: str | None = None) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            before = counter.count
            result = function(*given, **named)
            seen[name] += counter.count - before
            if number is not None and result is not None:
                seen[number] += bool(result) if number == "steps" else 1
            return result

        return call

    def watched(*given: Any, **named: Any) -> Any:
        run = plain(*given, **named)
        for name in ("forward", "forward_places"):
            if hasattr(run.target, name):
                setattr(run.target, name, counted(getattr(run.target, name), "pass"))
        head = getattr(getattr(run.drafter, "drafter", run.drafter), "head", None)
        if head is not None:
            extend = head.forward
            head.forward = lambda *a, **k: (seen.__setitem__("drafts", seen["drafts"] + 1), extend(*a, **k))[1]
        step = counted(run.step, "step", "steps")

        def marked() -> int:
            layer.forward = counted(forward, "layer", "layers")  # type: ignore[method-assign]
            with counter:
                return step()

        run.step = marked
        return run

    forward = layer.forward
    base.new_run = watched
    try:
        draw()
    finally:
        base.new_run, layer.forward = plain, forward  # type: ignore[method-assign]
    steps = seen["steps"]
    return {
        "step": seen["step"] / steps,
        "pass": seen["pass"] / steps,
        "layer": seen["layer"] / seen["layers"],
        "drafts": seen["drafts"] / steps,
    }


def counted() -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Launches of a step of the shipped model by method, and those of one layer by kind."""
    from family_loops import token_images

    from scenes.cases import sample_prompts
    from vargen.base.resources import find_model
    from vargen.methods.catalogue import resolve_method
    from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES
    from vargen.pipelines.llamagen import LlamaGenPipeline

    pipeline = LlamaGenPipeline.from_pretrained(find_model(None))
    pipeline.set_progress_bar_config(disable=True)
    prompt = sample_prompts(1)[0].caption.text

    def draw(name: str) -> None:
        method = resolve_method(name, {"window": ZIPAR_WINDOW} if name == "zipar" else {})
        pipeline(prompt, method=method, generator=torch.Generator().manual_seed(1), output_type="latent")

    steps = {name: launches(partial(draw, name), pipeline.transformer.transformer_blocks[0]) for name in METHODS}
    layers = {"this project's LlamaGen": steps["ar"]["layer"], "public LlamaGen code": float(PUBLIC_LAYER)}
    for kind, family in (("Chameleon", "lumina_mgpt"), ("Qwen3", "emu3_5")):
        drawn: Any = token_images(TOKEN_IMAGE_FAMILIES[family])
        layer = next(each for name, each in drawn.func.model.named_modules() if name.endswith("layers.0"))
        layers[kind] = launches(partial(drawn, method="ar"), layer)["layer"]
    return steps, layers


def pass_seconds(
    model: Model,
    card: Card,
    captured: bool,
    sequences: int,
    nodes: float,
    context: float,
    layer: float,
    rest: float,
    drafts: float = 0.0,
) -> float:
    """Seconds of a step.

    Args:
        sequences: rows of a batch, guided ones twice.
        nodes: tokens fed a row. context: tokens that each row's attention reads.
        layer, rest: launches of a layer of the target, and of a step besides.
        drafts: passes of a draft head of one layer, over one token.
    """
    read = 2 * model.weights + sequences * context * model.slot()
    multiplied = 2 * model.weights * sequences * nodes
    device = max(read / (READS * card.bandwidth), multiplied / (MULTIPLIES * card.arithmetic))
    device += drafts * 2 * (model.layer + 2 * model.dim**2 + model.dim * model.vocab) / (READS * card.bandwidth)
    kernels = model.layers * (PRODUCTS + FUSED * max(layer - PRODUCTS, 0)) + FUSED * rest
    device += kernels * KERNEL
    return device if captured else max(device, (model.layers * layer + rest) * card.launch)


def timing_rows(layers: dict[str, float]) -> list[dict[str, Any]]:
    """Published plain timings beside the projection."""
    rows = []
    for what, model, name, captured, pictures, context, published, source, remark in TIMINGS:
        sequences = 2 * pictures or 1
        seconds = pass_seconds(model, CARDS[name], captured, sequences, 1, context, layers[model.kind], PUBLIC_REST)
        error = 1000 * seconds / published - 1
        fitted = FITTED[name] == (what, captured)
        rows.append(
            {
                "what": what, "card": name, "captured": captured, "published_ms_a_token": published,
                "projected_ms_a_token": 1000 * seconds, "error_percent": round(100 * error, 1), "source": source,
                "remark": "fitted" if fitted else "within 25 %" if abs(error) <= 0.25 else remark,
            }
        )  # fmt: skip
    return rows


def fit(layers: dict[str, float]) -> None:
    """Set the host's seconds for a launch of each card."""
    for what, model, name, captured, _, _, published, _, _ in TIMINGS:
        if FITTED[name] == (what, captured):
            card, count = CARDS[name], model.layers * layers[model.kind] + PUBLIC_REST
            CARDS[name] = Card(card.bandwidth, card.arithmetic, card.memory, published / 1000 / count)


def of_method(name: str, model: Model) -> tuple[float, float]:
    """Passes of a picture, and tokens fed a pass and row."""
    if name == "zipar":  # rows of the grid follow each other at a distance: known without measuring
        passes = (model.side - 1) * ZIPAR_WINDOW + model.side
        return passes, model.side**2 / passes
    rows = json.loads((RESULTS / "bench_batch_1.json").read_text())
    row = next(each for each in rows if each["method"] == name)
    passes = row["target_passes"]
    return model.tokens * passes / row["tokens"], (passes + row["drafted"] + row["skipped_tokens"]) / passes


def picture_rows(steps: dict[str, dict[str, float]], layers: dict[str, float]) -> list[dict[str, Any]]:
    """Seconds a picture of each method, eager / captured, by model, card and batch."""
    rows = []
    for title, model in MODELS.items():
        layer = layers["this project's LlamaGen" if model.kind.startswith("public") else model.kind]
        for card_name, card in CARDS.items():
            plain: dict[int, float] = {}
            for name in METHODS:
                if name in OF_HEADS and not title.startswith("LlamaGen"):
                    continue
                passes, nodes = of_method(name, model)
                step, cells = steps[name], {}
                rest = step["step"] - 8 * step["layer"]  # the shipped model has eight layers
                for batch in (1, 8, 32):
                    held = 2 * model.weights + 2 * batch * model.tokens * model.slot()
                    given = (2 * batch, nodes, model.tokens / 2, layer, rest, step["drafts"])
                    eager, captured = (
                        passes * pass_seconds(model, card, each, *given) / batch for each in (False, True)
                    )
                    plain.setdefault(batch, captured)
                    cells[f"batch {batch}"] = (
                        "does not fit"
                        if held > card.memory
                        else f"{eager:.3g} / {captured:.3g} ({plain[batch] / captured:.2f}x)"
                    )
                row = {"model": title, "card": card_name, "method": name}
                rows.append(row | {"passes": passes, "fed_a_pass": nodes} | cells)
    return rows


def cpu_rows() -> list[dict[str, Any]]:
    """Passes of LlamaGen-XL on this project's machine, as `passes.json` has them, beside the same reckoning."""
    model, rows = MODELS["LlamaGen-XL, 512 px"], []
    for each in json.loads((RESULTS / "passes.json").read_text())["rows"]:
        if "XL" in each["model"] and each["dtype"] == "bfloat16" and each["guided"]:
            peaks = each["read_gb_per_second"], each["gflops_per_second"]["bfloat16"]
            card = Card(1e9 * peaks[0], 1e9 * peaks[1], 0.0, 0.0)
            seconds = pass_seconds(model, card, False, 2 * each["batch"], each["tokens"], each["length"], 0, 0)
            measured = each["median_ms"]["auto"]
            error = 1000 * seconds / measured - 1
            rows.append(
                {
                    "batch": each["batch"], "tokens": each["tokens"], "measured_ms": measured,
                    "projected_ms": 1000 * seconds, "error_percent": round(100 * error, 1),
                    "remark": "within 25 %" if abs(error) <= 0.25 else "few rows: products reach 57 % of the speed "
                    "of reading here",
                }
            )  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry_run", action="store_true", help="print, write nothing")
    options = parser.parse_args(arguments)
    os.environ["VARGEN_KERNELS"] = "plain"  # a GPU has not the CPU's kernels
    torch.set_num_threads(1)
    with torch.no_grad():
        steps, layers = counted()
    fit(layers)
    origin = provenance()
    launched = [{"what": f"a layer of {kind}", "launches": count} for kind, count in layers.items()]
    launched += [{"what": f"a step of {name}, eight layers", "launches": each["step"]} for name, each in steps.items()]
    launched += [
        {"what": f"host's microseconds for a launch, {name}, fitted", "launches": 1e6 * card.launch}
        for name, card in CARDS.items()
    ]
    studies = {
        "Projection: seconds a picture, eager / captured (captured over plain captured)": picture_rows(steps, layers),
        "Projection beside published timings of plain decoding": timing_rows(layers),
        "Projection beside this machine's passes of LlamaGen-XL": cpu_rows(),
        "Launches that were counted": launched,
    }
    if options.dry_run:
        print(json.dumps(studies, indent=1))
    else:
        told = {name: {"rows": rows, "provenance": origin} for name, rows in studies.items()}
        write_result(RESULTS / "projection.json", {"studies": told})


if __name__ == "__main__":
    main()
