"""A PROJECTION, not a measurement: VVS and its baselines on an A40, beside the speed-ups that the paper prints; and
plain decoding of published models, launch by launch and captured, beside the seconds that papers print.

    python benchmarks/projection.py                # adds its studies to results/projection.json

Tokens a target pass are the paper's. Everything else is reckoned, and nothing is fitted. Eagerly a pass takes as long
as the host needs for its launches, so only their counts matter: those of the public LlamaGen code, by reading it. A
captured pass takes the longer of reading and multiplying, and `KERNEL` for each kernel that remains. The other studies
of the record were reckoned on 27 November; their script is in the history (a531eacb).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from metrics.provenance import provenance, write_result
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES

RECORD = Path(__file__).resolve().parent / "results" / "projection.json"
STUDY = "Projection of VVS and its baselines beside the speed-ups that its paper prints"
BANDWIDTH, ARITHMETIC = 696e9, 149.7e12
"""Bytes and bfloat16 operations a second of an A40."""
READS, MULTIPLIES = 0.85, 0.6
"""The shares of these peaks that decoding reaches."""
KERNEL = 1.5e-6
"""Seconds that a captured kernel takes besides reading and multiplying."""
FUSED, PRODUCTS = 0.2, 6
"""Small operations that remain as kernels of their own once torch's compiler has fused them; kernels of a layer that
stay, its products and attention."""
LAYER, REST = 53, 60
"""Launches of a layer of the public code, and of a pass besides: guidance, filters, a draw, growing a tree's level."""
NODES, LEVELS = 60, 5
"""Nodes and levels of the paper's trees; a draft is a pass of its one-layer head for the root and each level."""
VOCABULARY = 16_384
PUBLISHED = (
    # stage, tokens of a picture, method, tokens a target pass, drafts a target pass, nodes, published speed-up
    ("I", 256, "plain decoding", 1.0, 0.0, 1, 1.0),
    ("I", 256, "EAGLE-2", 1.22, 1.0, NODES, 0.87),
    ("I", 256, "LANTERN, delta 0.3", 2.10, 1.0, NODES, 1.45),
    ("I", 256, "VVS-U(4), delta 0.2", 2.24, 4 / 3, NODES, 1.63),
    ("II", 1024, "plain decoding", 1.0, 0.0, 1, 1.0),
    ("II", 1024, "EAGLE-2", 1.22, 1.0, NODES, 0.92),
    ("II", 1024, "LANTERN, delta 0.2", 1.83, 1.0, NODES, 1.26),
    ("II", 1024, "VVS-U(2), delta 0.1", 2.86, 2.0, NODES, 1.76),
)
"""The main table of VVS (arXiv 2511.13587), LlamaGen-XL with text. VVS-U(i) drafts i times for i - 1 target passes."""


PLAIN = "Projection of plain decoding, captured, beside published seconds"
CARDS = {"A100": (2.04e12, 17.4e-6), "H100": (3.35e12, 5.3e-6)}
"""Bytes a second, and the host's seconds for a launch, as the record fitted them."""
PUBLISHED_SECONDS = (
    # model, card, layers, launches of a layer, GB of weights, GB of keys and values at the end, tokens, plain seconds
    # and source, seconds of a method and its name
    ("LlamaGen-XL, 256 px", "A100", 36, LAYER, 1.55, 0.14, 256, 5.29, "LPD", 0.41, "LPD, trained anew"),
    ("LlamaGen-XL, 512 px", "A100", 36, LAYER, 1.56, 0.42, 1024, 49.6, "PJD", 11.8, "PJD"),
    ("Janus-Pro-7B", "A100", 30, 48, 14.8, 0.63, 576, 7.87, "SSD", 1.38, "SSD"),
    ("Lumina-mGPT 7B, 768 px", "A100", 32, 42, 14.0, 2.5, 2351, 102.0, "SCD", 24.4, "SCD"),
    ("Emu3 8B, 720 px", "H100", 32, 48, 17.0, 2.2, 8190, 300.0, "its authors", 25.6, "SSD"),
    ("Emu3.5 34B, 512 px", "H100", 64, 48, 68.0, 0.6, 1055, 130.0, "FlashAR", 5.68, "FlashAR"),
    ("Emu3.5 34B, 1,024 px", "H100", 64, 48, 68.0, 2.2, 4159, 200.0, "its authors", None, None),
    ("GLM-Image, prior", "H100", 40, 48, 18.0, 0.06, 1280, 19.0, "vLLM-Omni", None, None),
)
"""Most papers do not tell the card; launches are those that the record counted of LlamaGen, Chameleon and Qwen3."""


def plain_rows() -> list[dict[str, Any]]:
    """Each published model with plain decoding reckoned for it, and how far that is from what was published."""
    made = []
    for model, card, layers, layer, weights, cache, tokens, plain, source, seconds, method in PUBLISHED_SECONDS:
        bandwidth, launch = CARDS[card]
        reading = (weights + cache / 2) * 1e9 / (READS * bandwidth)
        kernels = layers * (PRODUCTS + FUSED * (layer - PRODUCTS)) + FUSED * REST
        captured = tokens * (reading + kernels * KERNEL)
        eager = max(captured, tokens * (layers * layer + REST) * launch)
        own = {"model": model, "card": card, "published_seconds": plain, "source": source, "projected_seconds": eager}
        own |= {"error_percent": round(100 * (eager / plain - 1), 1), "captured_seconds": captured}
        over = None if seconds is None else seconds / captured
        made.append(own | {"method": method, "method_seconds": seconds, "captured_plain_over_it": over})
    return made


def captured_seconds(layers: int, dim: int, nodes: int) -> float:
    """Seconds of a captured pass of so many layers and the output head over a guided tree."""
    inner = 256 * -(-int(8 * dim / 3) // 256)
    weights = layers * (4 * dim**2 + 3 * dim * inner) + dim * VOCABULARY
    kernels = layers * (PRODUCTS + FUSED * (LAYER - PRODUCTS)) + FUSED * REST
    return max(2 * weights / (READS * BANDWIDTH), 4 * weights * nodes / (MULTIPLIES * ARITHMETIC)) + kernels * KERNEL


def rows() -> list[dict[str, Any]]:
    """Each row of the paper's table with what is reckoned for it."""
    layers, dim = LLAMAGEN_SIZES["XL"]["num_layers"], LLAMAGEN_SIZES["XL"]["dim"]
    launches, draft_launches = layers * LAYER + REST, (LEVELS + 1) * (LAYER + REST)
    plain, draft = captured_seconds(layers, dim, 1), (LEVELS + 1) * captured_seconds(1, dim, 10)
    made = []
    for stage, tokens, method, a_pass, drafts, nodes, published in PUBLISHED:
        eager = a_pass * launches / (launches + drafts * draft_launches)
        seconds = tokens / a_pass * (captured_seconds(layers, dim, nodes) + drafts * draft)
        made.append(
            {
                "stage": stage,
                "method": method,
                "tokens_a_pass": a_pass,
                "published_speedup": published,
                "projected_speedup": eager,
                "error_percent": round(100 * (eager / published - 1), 1),
                "captured_seconds": seconds,
                "over_captured_plain": tokens * plain / seconds,
            }
        )
    return made


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    studies = json.loads(RECORD.read_text())["studies"]
    made = {name: {"rows": each, "provenance": provenance()} for name, each in ((STUDY, rows()), (PLAIN, plain_rows()))}
    write_result(RECORD, {"studies": {**studies, **made}})


if __name__ == "__main__":
    main()
