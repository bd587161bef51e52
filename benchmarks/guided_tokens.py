"""What pictures lose when guidance ends before they do, paired with guidance to the end: `guided_tokens` of a call.

The judge reads every picture of the shipped model, drawn by plain decoding in bfloat16; differences are over the same
captions and seeds, with 95 % intervals over captions. A guided token feeds two rows, another one.

    python benchmarks/guided_tokens.py --prompts 200

Writes benchmarks/results/guided_tokens.json. Does not belong here: other settings of sampling, and seconds.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rows_side_by_side import BATCH, draw, figures

from metrics.provenance import write_result
from scenes.cases import sample_prompts
from scenes.judge.network import load_judge
from vargen.base.resources import find_model
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"
GUIDED = (256, 128, 64, 192, 1)
"""How many tokens of 256 have guidance; all come first, to which others are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(1)
    pipeline: Any = LlamaGenPipeline.from_pretrained(find_model(), torch_dtype=torch.bfloat16)
    pipeline.set_progress_bar_config(disable=True)
    judge, cases, method = load_judge(None, "cpu"), sample_prompts(options.prompts), resolve_method("ar", {})
    rows: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    for guided in GUIDED:
        guides = partial(pipeline, guided_tokens=guided)
        parts = [(first, cases[first : first + BATCH]) for first in range(0, options.prompts, BATCH)]
        batches = [draw(guides, method, first, part, judge) for first, part in parts]
        whole = whole or batches
        told = figures(batches, whole)
        kept = {name: told[name] for name in told if name.startswith(("pictures", "claims", "numbers"))}
        fed = 2 * told["rows_fed"] - (GUIDED[0] - guided)
        rows.append({"guided_tokens": guided, "rows": fed, "share_of_rows": fed / (2 * told["rows_fed"]), **kept})
        print(rows[-1], file=sys.stderr, flush=True)
        if not options.dry_run:
            write_result(RESULTS / "guided_tokens.json", {"model": Path(find_model()).name, "rows": rows})


if __name__ == "__main__":
    main()
