"""Greedy decoding by every exact method gives the tokens of plain decoding, one for one, in fp32 on the shipped model.

    python benchmarks/greedy_equality.py                       # 200 prompts, batches of 1 and of 5
    python benchmarks/greedy_equality.py --prompts 10 --batch_sizes 5

Writes benchmarks/results/greedy_equality.json and exits 1 if a token differs. A token may differ without a fault where
the two best logits of plain decoding lie within the rounding of another batch shape; such places are counted apart,
with the margin there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from metrics.provenance import write_result
from vargen.evaluation import sample_prompts
from vargen.methods import MethodConfig, resolve_method
from vargen.pipeline import LlamaGenPipeline
from vargen.resources import find_model
from vargen.target import LlamaGenTarget

RESULTS = Path(__file__).resolve().parent / "results"
NEAR_TIE = 1e-3
"""Logits (guided) closer than this are a tie to fp32 sums of another order."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle, dynamic tree": ("eagle", {"total_tokens": 16, "depth": 3}),
    "eagle, static tree": ("eagle", {"tree": "reverse_balanced_25"}),
    "eagle, chain": ("eagle", {"tree": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}),
    "sjd": ("sjd", {"window": 8}),
    "scd": ("scd", {"window": 8}),
    "draft-model": ("draft-model", {"draft_length": 4}),
}


def decode(pipeline: LlamaGenPipeline, prompts: list[str], method: MethodConfig) -> Tensor:
    """Greedy tokens [B, N]."""
    return pipeline(prompts, temperature=0.0, method=method, output_type="latent").tokens


@torch.no_grad()
def margins(pipeline: LlamaGenPipeline, prompts: list[str], tokens: Tensor) -> Tensor:
    """[B, N]: by how much the best guided logit leads the second, given the tokens before."""
    embeds, mask = pipeline.encode_prompt(prompts)
    batch_size, num_tokens = tokens.shape
    target = LlamaGenTarget(
        pipeline.transformer,
        pipeline.transformer.embed_condition(caption_embeds=embeds),
        mask,
        guidance_scale=pipeline.config["default_guidance_scale"],
        max_draft_nodes=num_tokens,
    )
    first = target.prefill().logits[:, -1:]
    causal = torch.ones(batch_size, num_tokens - 1, num_tokens - 1, dtype=torch.bool).tril()
    depths = torch.arange(num_tokens - 1).expand(batch_size, -1)
    rest = target.forward(tokens[:, :-1], causal, depths).logits
    best = torch.cat((first, rest), dim=1).topk(2).values
    return best[..., 0] - best[..., 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    pipeline = LlamaGenPipeline.from_pretrained(find_model(options.model))
    pipeline.set_progress_bar_config(disable=True)
    prompts = [case.caption.text for case in sample_prompts(options.prompts)]
    chosen = {
        label: resolve_method(name, settings)
        for label, (name, settings) in METHODS.items()
        if not (name == "eagle" and pipeline.drafter is None)
        and not (name == "draft-model" and pipeline.draft_transformer is None)
    }
    counts = {
        (label, size): {"prompts": 0, "equal": 0, "near_ties": 0, "faults": 0}
        for label in chosen
        for size in options.batch_sizes
    }
    for size in options.batch_sizes:
        for start in tqdm(range(0, len(prompts), size), desc=f"batches of {size}", mininterval=5):
            batch = prompts[start : start + size]
            plain = decode(pipeline, batch, resolve_method("ar"))
            lead = None
            for label, method in chosen.items():
                tokens = decode(pipeline, batch, method)
                count = counts[label, size]
                for row in range(len(batch)):
                    count["prompts"] += 1
                    differs = (tokens[row] != plain[row]).nonzero()
                    if not len(differs):
                        count["equal"] += 1
                        continue
                    lead = margins(pipeline, batch, plain) if lead is None else lead
                    tie = float(lead[row, int(differs[0])]) < NEAR_TIE
                    count["near_ties" if tie else "faults"] += 1
    rows = [{"method": label, "batch_size": size, **count} for (label, size), count in counts.items()]
    for row in rows:
        print(row)
    if not options.dry_run:
        model = find_model(options.model).name
        write_result(RESULTS / "greedy_equality.json", {"model": model, "near_tie": NEAR_TIE, "rows": rows})
    sys.exit(any(row["faults"] for row in rows))


if __name__ == "__main__":
    main()
