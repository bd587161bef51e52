"""What pictures lose when guidance ends before they do, paired with guidance to the end: `guided_tokens` of a call.

The judge reads every picture of the shipped model in bfloat16; differences are to plain decoding that is guided to the
end, over the same captions and seeds, with 95 % intervals over captions. A guided token feeds two rows, another one;
`rows` counts them all, in batches of 20.

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

from metrics.provenance import provenance, write_result
from scenes.cases import sample_prompts
from scenes.judge.network import load_judge
from specdecode.kernels.native import NewTokens
from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"
GUIDED = {"ar": (256, 128, 64, 192, 1), "rows-quality": (256, 128), "rows-fast": (256, 128)}
"""By method, how many tokens of 256 have guidance; plain decoding that is guided to the end comes first."""


class Fed:
    """Counts the rows that passes in the kernels feed.

    Args:
        pipeline: whose passes are counted from now on.
    """

    def __init__(self, pipeline: LlamaGenPipeline) -> None:
        self.rows = 0
        self.run = pipeline.transformer.fast_pass.run
        pipeline.transformer.fast_pass.run = self  # type: ignore[method-assign, assignment]

    def __call__(self, new: NewTokens, *rest: Any, **named: Any) -> Any:
        found = self.run(new, *rest, **named)
        if found is None:
            raise UserError("rows are counted in the project's kernels, which do not serve here")
        if new.tokens is not None:  # no prompt
            self.rows += new.halves * new.tokens.numel()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(1)
    pipeline: Any = LlamaGenPipeline.from_pretrained(find_model(), torch_dtype=torch.bfloat16)
    pipeline.set_progress_bar_config(disable=True)
    fed, judge, cases = Fed(pipeline), load_judge(None, "cpu"), sample_prompts(options.prompts)
    record = {"provenance": provenance(), "model": Path(find_model()).name}
    rows: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    for method, guided in ((name, guided) for name, counts in GUIDED.items() for guided in counts):
        guides, fed.rows = partial(pipeline, guided_tokens=guided), 0
        parts = [(first, cases[first : first + BATCH]) for first in range(0, options.prompts, BATCH)]
        batches = [draw(guides, resolve_method(method), first, part, judge) for first, part in parts]
        whole = whole or batches
        told = figures(batches, whole, pipeline.grid_size)
        kept = {name: told[name] for name in told if name.startswith(("pictures", "claims", "numbers", "passes"))}
        rows.append({"method": method, "guided_tokens": guided, "rows": fed.rows / options.prompts, **kept})
        print(rows[-1], file=sys.stderr, flush=True)
        if not options.dry_run:
            write_result(RESULTS / "guided_tokens.json", {**record, "rows": rows})


if __name__ == "__main__":
    main()
