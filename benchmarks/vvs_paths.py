"""How alike the paths of drafted trees are, by both readings of figure 2(b) in VVS's paper.

    python benchmarks/vvs_paths.py --prompts 8

The released code, which `dynamic` follows, counts a path that has ended as unlike every other one. The other reading
compares, at each depth, the paths that reach it. The paper prints that three quarters of all steps lie above 0.7 and
does not say which it means. Trees are LANTERN's at delta 0.2, 59 nodes and 5 deep, on the shipped model in bfloat16.

Writes benchmarks/results/vvs_paths.json. Does not belong here: what skipping by it costs (`vvs_studies.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from vvs_studies import MAIN_TABLE, resolve

from metrics.provenance import write_result
from scenes.cases import sample_prompts
from specdecode.roles import Draft
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.methods.base import Components, ImageMethodConfig, Method
from vargen.methods.vvs.schedule import ALPHA, tree_similarity
from vargen.methods.vvs.selector import path_vectors
from vargen.pipelines.llamagen import LlamaGenPipeline

RECORD = Path(__file__).resolve().parent / "results" / "vvs_paths.json"
LIKE = 0.7
"""The paper's line."""


def similarity_of_those_there(draft: Draft, codebook: Tensor) -> Tensor:
    """As `tree_similarity`, [B], over the pairs of paths that reach a depth; a depth without a pair does not count."""
    vectors = path_vectors(draft, draft.tree.leaves() & (draft.tree.depth > 0), codebook)  # [B, n, depth, d]
    there = (vectors.square().sum(-1) > 0).sum(1)  # [B, depth]
    mean = (vectors.sum(1).square().sum(-1) - there) / (there * (there - 1)).clamp(min=1)
    weights = ALPHA ** torch.arange(1, mean.shape[1] + 1) * (there > 1)
    return (mean * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


READINGS = {"an ended path is unlike": tree_similarity, "paths that reach the depth": similarity_of_those_there}


def rows_of(pipeline: LlamaGenPipeline, prompts: Sequence[str], method: ImageMethodConfig) -> list[dict[str, Any]]:
    """The likeness of all trees that the method drafts, by each reading; rows that are finished are left out."""
    seen: dict[str, list[Tensor]] = {name: [] for name in READINGS}
    build = ImageMethodConfig.build

    def watched(self: ImageMethodConfig, components: Components) -> Method:
        players = build(self, components)
        drafter: Any = players.drafter
        propose, codebook = drafter.propose, components.codebook()

        def proposed(state: Any) -> Draft:
            draft = propose(state)
            if draft.tree.max_depth > 0:
                for name, reading in READINGS.items():
                    seen[name].append(reading(draft, codebook)[state.active])
            return draft

        drafter.propose = proposed
        return players

    generators = [torch.Generator().manual_seed(number) for number in range(len(prompts))]
    with patch.object(ImageMethodConfig, "build", watched):
        pipeline(list(prompts), method=method, generator=generators, output_type="latent")
    found = {name: torch.cat(each) for name, each in seen.items()}
    return [
        {"reading": name, "trees": len(of), "mean": float(of.mean()), "above_0.7": float((of > LIKE).float().mean())}
        for name, of in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--output", type=Path, default=RECORD)
    arguments = parser.parse_args()
    folder, row = find_model(), MAIN_TABLE["LANTERN, delta 0.2"]
    pipeline = LlamaGenPipeline.from_pretrained(folder, torch_dtype=torch.bfloat16)
    pipeline.set_progress_bar_config(disable=True)
    prompts = [case.caption.text for case in sample_prompts(arguments.prompts)]
    rows = rows_of(pipeline, prompts, resolve(row.method, row.settings))
    record = {"benchmark": "vvs_paths", "model": folder.name, "weights": weights_fingerprint(folder)}
    write_result(arguments.output, {**record, "prompts": arguments.prompts, "rows": rows})
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
