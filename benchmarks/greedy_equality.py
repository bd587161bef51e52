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
from scenes.cases import sample_prompts
from vargen.base.resources import find_model
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.runs.files import append_jsonl, read_jsonl

RESULTS = Path(__file__).resolve().parent / "results"
NEAR_TIE = 1e-3
"""Logits (guided) closer than this are a tie to fp32 sums of another order."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle, dynamic tree": ("eagle", {"total_tokens": 10, "depth": 3}),
    "eagle, static tree": ("eagle", {"tree": [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]], "depth": 3}),
    "eagle, chain": ("eagle", {"tree": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], "depth": 4}),
    "sjd": ("sjd", {"window": 8}),
    "draft-model": ("draft-model", {"draft_length": 3}),
}
"""The methods draft by fixed sizes, so that every machine compares the same. Greedily, "scd" is "sjd"."""


def decode(pipeline: LlamaGenPipeline, prompts: list[str], method: ImageMethodConfig) -> Tensor:
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


def compare(
    pipeline: LlamaGenPipeline, prompts: list[str], methods: dict[str, ImageMethodConfig]
) -> dict[str, list[int]]:
    """How many of the prompts' pictures are equal, differ first at a near tie, or differ elsewhere, by method."""
    plain = decode(pipeline, prompts, resolve_method("ar"))
    lead = None
    counts = {label: [0, 0, 0] for label in methods}
    for label, method in methods.items():
        tokens = decode(pipeline, prompts, method)
        for row in range(len(prompts)):
            differs = (tokens[row] != plain[row]).nonzero()
            if not len(differs):
                counts[label][0] += 1
                continue
            lead = margins(pipeline, prompts, plain) if lead is None else lead
            counts[label][1 if float(lead[row, int(differs[0])]) < NEAR_TIE else 2] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--records", type=Path, help="JSONL of finished batches; the same command goes on from there")
    parser.add_argument("--shard", type=int, nargs=2, default=[0, 1], help="this process's number, and how many share")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(max(1, torch.get_num_threads() // options.shard[1]))
    pipeline = LlamaGenPipeline.from_pretrained(find_model(options.model))
    pipeline.set_progress_bar_config(disable=True)
    prompts = [case.caption.text for case in sample_prompts(options.prompts)]
    methods = {
        label: resolve_method(name, settings)
        for label, (name, settings) in METHODS.items()
        if not (name == "eagle" and pipeline.drafter is None)
        and not (name == "draft-model" and pipeline.draft_model is None)
    }
    done = {} if options.records is None else read_records(options.records)
    work = [(size, start) for size in options.batch_sizes for start in range(0, len(prompts), size)]
    for number, (size, start) in enumerate(tqdm(work, mininterval=10)):
        if (size, start) in done or number % options.shard[1] != options.shard[0]:
            continue
        done[size, start] = compare(pipeline, prompts[start : start + size], methods)
        if options.records is not None:
            append_jsonl(options.records, {"batch_size": size, "start": start, "counts": done[size, start]})
    if options.records is not None:
        done = read_records(options.records)
    if any(key not in done for key in work):
        print("other shards are not finished; the last one writes the result")
        return
    rows = []
    for size in options.batch_sizes:
        for label in methods:
            cells = [counts[label] for (batch_size, _), counts in done.items() if batch_size == size]
            equal, near_ties, faults = (sum(column) for column in zip(*cells, strict=True))
            total = equal + near_ties + faults
            rows.append(
                {
                    "method": label,
                    "batch_size": size,
                    "prompts": total,
                    "equal": equal,
                    "near_ties": near_ties,
                    "faults": faults,
                }
            )
            print(rows[-1])
    if not options.dry_run:
        model = find_model(options.model).name
        write_result(RESULTS / "greedy_equality.json", {"model": model, "near_tie": NEAR_TIE, "rows": rows})
    sys.exit(any(row["faults"] for row in rows))


def read_records(path: Path) -> dict[tuple[int, int], dict[str, list[int]]]:
    """Finished batches by size and first prompt."""
    return {(line["batch_size"], line["start"]): line["counts"] for line in read_jsonl(path)}


if __name__ == "__main__":
    main()
