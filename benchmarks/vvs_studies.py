"""The studies of VVS's paper on the shipped model, each beside the paper's own figure: tables for the lab book.

    python benchmarks/vvs_studies.py --list
    python benchmarks/vvs_studies.py --prompts 64                      # all of them
    python benchmarks/vvs_studies.py --prompts 2 --studies staleness   # a look
    python benchmarks/vvs_studies.py --studies "main table" --model scenes-256 --output new.json

Trees are the paper's, 59 nodes and 5 deep, with the released acceptance, but for "drawn trees" (smaller ones, whose
nodes are drawn and whose acceptance knows by which chance). The judge reads every picture. The model
draws in bfloat16, which own kernels draw the same whatever is drafted. Every row is kept in runs/vvs_studies as soon as
it is through, so the same command goes on after a kill, and settings that several studies share are drawn once; rows of
other weights or another number of prompts are measured anew. What is drawn stands in `vvs_studies.yaml`. Writes
benchmarks/results/vvs_studies.json.

The paper has two stages of LlamaGen-XL, of 256 and 1,024 tokens a picture, and so have the shipped models. Its main
table is a record of its own for each of the two.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from judge_report import judge_images
from torch import Tensor

from metrics.proportion import Proportion
from metrics.provenance import write_result
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.network import load_judge
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.methods.vvs.feature_cache import FeatureCache
from vargen.methods.vvs.method import VVSConfig
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.runs.files import append_jsonl, read_jsonl

RESULTS = Path(__file__).resolve().parent / "results"
DTYPE = "bfloat16"
KEPT = Path(__file__).resolve().parent.parent / "runs" / "vvs_studies" / "rows.jsonl"


class StaleFeatureCache(FeatureCache):
    """Features older than need be, for the paper's staleness study (Fig. 4).

    Args:
        num_image_tokens: as of `FeatureCache`.
        after_skipped: the paper's s_2: after a skipped step, read features so many positions older than the newest.
        after_verification: its s_1: after a verification step, -1 reads its own, fresh features; 0 and more those known
            before it, so many positions older.
    """

    def __init__(self, num_image_tokens: int, after_skipped: int = 0, after_verification: int = -1) -> None:
        super().__init__(num_image_tokens)
        self.after_skipped, self.after_verification = after_skipped, after_verification

    def after_verified(self, features: Tensor, first: Tensor, counts: Tensor) -> Tensor:
        """See `FeatureCache.after_verified`."""
        if self.after_verification < 0:
            return super().after_verified(features, first, counts)
        before = self._older(counts, features.shape[1], self.after_verification)
        self.write(features, first, counts)
        return before

    def read(self, first: Tensor, counts: Tensor, width: int) -> Tensor:
        """See `FeatureCache.read`."""
        return self._older(counts, width, self.after_skipped)

    def _older(self, counts: Tensor, width: int, by: int) -> Tensor:
        place = torch.arange(width, device=counts.device)
        return self.at(self.newest[:, None] - (counts[:, None] - 1) + place - by)


@dataclass(frozen=True)
class VVSStudyConfig(VVSConfig):
    """VVS with a choice of how old the features are that the drafter reads.

    Args:
        staleness, verified_staleness: `after_skipped` and `after_verification` of `StaleFeatureCache`.
    """

    staleness: int = 0
    verified_staleness: int = -1

    def _feature_cache(self, num_tokens: int) -> FeatureCache:
        return StaleFeatureCache(num_tokens, self.staleness, self.verified_staleness)


def resolve(method: str, settings: Mapping[str, Any]) -> ImageMethodConfig:
    """A method or a preset by name, with settings that differ; VVS's may be stale."""
    stale = {name: value for name, value in settings.items() if name.endswith("staleness")}
    others = {name: value for name, value in settings.items() if name not in stale}
    config = resolve_method(method, others)
    return VVSStudyConfig(**asdict(config), **stale) if stale else config


@dataclass(frozen=True)
class Row:
    """One setting of a study.

    Args:
        method: as `resolve` takes it. settings: what differs from its defaults.
        paper: the paper's figures, tokens a pass if it is one; None: it has none.
    """

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    paper: str | None = None

    @property
    def identity(self) -> str:
        """Everything that decides its pictures; the same for rows that several studies share."""
        return json.dumps(resolve(self.method, self.settings).to_dict(), sort_keys=True)


STUDIES: dict[str, dict[str, Row]] = {
    study: {label: Row(**told) for label, told in rows.items()}
    for study, rows in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())["studies"].items()
}
"""Methods by study and label."""
MAIN_TABLE = "main table"
"""The study of the methods of the paper's table 1."""


def draw(pipeline: LlamaGenPipeline, row: Row, cases: list[PromptCase], batch_size: int, judge: Any) -> dict[str, Any]:
    """Tokens a pass, tokens never verified and the share of claims that the judge finds right, over all prompts."""
    method = resolve(row.method, row.settings)
    traces, verdicts = [], []
    for start in range(0, len(cases), batch_size):
        batch = cases[start : start + batch_size]
        output = pipeline(
            [case.caption.text for case in batch],
            method=method,
            generator=[torch.Generator().manual_seed(start + number) for number in range(len(batch))],
            output_type="pt",
        )
        traces.append(output.trace)
        verdicts += judge_images(judge, output.images, batch)
    claims = [check.right for verdict in verdicts for check in verdict.checks]
    tokens = sum(trace.tokens for trace in traces)
    steps = [length for trace in traces for lengths in trace.accepted_lengths for length in lengths]
    return {
        "tokens_per_pass": tokens / sum(sum(trace.row_passes) for trace in traces),
        "accepted_length": sum(steps) / max(len(steps), 1),
        "unverified": sum(trace.skipped_tokens for trace in traces) / tokens,
        "relaxed": sum(trace.relaxed_tokens for trace in traces) / tokens,
        "claims_right": Proportion(sum(claims), len(claims)).to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--studies",
        default=",".join(name for name in STUDIES if name != MAIN_TABLE),
        help="which, by name; all but the main table",
    )
    parser.add_argument("--model", help="folder of a model with a drafter; the shipped default if not given")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the rows that are through")
    parser.add_argument("--output", type=Path, default=RESULTS / "vvs_studies.json")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    arguments = parser.parse_args()
    wanted = arguments.studies.split(",")
    if unknown := [name for name in wanted if name not in STUDIES]:
        parser.error(f"studies: no {unknown[0]!r}; there are {', '.join(STUDIES)}")
    if arguments.list:
        print("\n".join(f"{study}: {'; '.join(rows)}" for study, rows in STUDIES.items()))
        return

    folder = find_model(arguments.model)
    identity = {"weights": weights_fingerprint(folder), "prompts": arguments.prompts, "dtype": DTYPE}
    through = {
        kept["settings"]: kept["measured"]
        for kept in (read_jsonl(arguments.kept) if arguments.kept.exists() else [])
        if {name: kept.get(name) for name in identity} == identity
    }
    pipeline = LlamaGenPipeline.from_pretrained(folder, torch_dtype=getattr(torch, DTYPE))
    judge = load_judge(None, "cpu")
    pipeline.set_progress_bar_config(disable=True)
    cases = sample_prompts(arguments.prompts)

    studies: dict[str, list[dict[str, Any]]] = {}
    for study, label, row in ((name, *item) for name in wanted for item in STUDIES[name].items()):
        if row.identity not in through:
            began = time.monotonic()
            through[row.identity] = draw(pipeline, row, cases, arguments.batch_size, judge)
            arguments.kept.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(arguments.kept, {**identity, "settings": row.identity, "measured": through[row.identity]})
            print(f"{study}: {label}  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        own = {name: getattr(row, name) for name in ("method", "settings", "paper")}
        studies.setdefault(study, []).append({"label": label, **own, **through[row.identity]})
    write_result(arguments.output, {"benchmark": "vvs_studies", "model": folder.name, **identity, "studies": studies})
    print(json.dumps({study: len(rows) for study, rows in studies.items()}), f"written to {arguments.output}")


if __name__ == "__main__":
    main()
