"""`vargen judge`: what the pictures of a generate run show of what their prompts ask for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vargen.commands.options import build_parser, fill, parse
from vargen.errors import UserError
from vargen.runs.files import inside, own_folder, read_jsonl, write_json_atomic


@dataclass(frozen=True)
class JudgeConfig:
    """How to judge.

    Args:
        judge: folder of a judge; the shipped one by default.
        batch_size: pictures read at a time.
        device: where to read, "cpu" or "cuda".
    """

    judge: str | None = None
    batch_size: int = 32
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {self.batch_size}")


def run(arguments: Sequence[str]) -> int:
    """Read every picture of a folder, compare it with its prompt, write judge.json there and print a table."""
    parser = build_parser(
        "judge",
        "Read the pictures of a `vargen generate` folder and say which claims of their prompts hold.",
        JudgeConfig,
        epilog="The judge knows the scene world only. Prompts it cannot read are named, counted and left out.",
    )
    parser.add_argument("folder", type=str, help="output folder of vargen generate")
    parser.add_argument("--json", action="store_true", help="print a JSON summary and nothing else")
    values = parse(parser, arguments)
    config, folder = fill(JudgeConfig, values), Path(values.folder)
    results = folder / "result.jsonl"
    if not results.is_file():
        raise UserError(f"folder: {folder} has no result.jsonl; name the output folder of vargen generate")
    with own_folder(folder, argument="folder"):
        summary, table = _judge(config, folder, read_jsonl(results))
    for case in summary["unreadable_prompts"]:
        print(f"vargen: warning: prompt {case['index']} left out: {case['reason']}", file=sys.stderr)
    if values.json:
        print(json.dumps(summary))
    else:
        left_out = len(summary["unreadable_prompts"])
        print(f"{summary['images']} pictures judged, {left_out} prompts left out; written to {folder / 'judge.json'}\n")
        print(table)
    return 0


def _judge(config: JudgeConfig, folder: Path, records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Write judge.json; the summary of it, and a table for people."""
    import torch

    from metrics.errors import DataError
    from metrics.images import read_image
    from vargen.world.captions.caption_parser import CaptionError, parse_caption
    from vargen.world.judge.judge import load_judge, read_images
    from vargen.world.judge.verdict import Tally, judge_claims, verdict_table

    if config.device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"device: {config.device!r} is not available here; use cpu")
    judge = load_judge(config.judge, config.device)
    cases, unreadable = [], []
    for record in records:
        text, index = record.get("text") or "", record.get("index")
        if not isinstance(text, str) or not isinstance(index, int):
            raise UserError(f"folder: {folder / 'result.jsonl'} has a record without an index or text; repair it")
        try:
            cases.append((record, parse_caption(text)))
        except CaptionError as error:
            unreadable.append({"index": index, "text": record.get("text"), "reason": str(error)})

    tally, verdicts = Tally(), []
    for start in range(0, len(cases), config.batch_size):
        batch = cases[start : start + config.batch_size]
        try:
            pictures = [read_image(inside(folder, record.get("image_path"))) for record, _ in batch]
        except DataError as error:
            raise UserError(f"folder: {error}") from error
        if len({picture.shape for picture in pictures}) > 1:
            raise UserError(f"folder: {folder} holds pictures of several sizes; judge them one by one: --batch_size 1")
        images = torch.stack(pictures).float().div(255).to(config.device)
        for reading, (record, claims) in zip(read_images(judge, images), batch, strict=True):
            verdict = judge_claims(reading, claims)
            tally.add(verdict)
            wrong = [check.kind for check in verdict.checks if not check.right]
            verdicts.append({"index": record["index"], "text": record["text"], "right": verdict.right, "wrong": wrong})

    summary = {"images": len(cases), "unreadable_prompts": unreadable, "accuracy": tally.to_dict()}
    write_json_atomic(folder / "judge.json", {**summary, "verdicts": verdicts})
    return summary, verdict_table({"pictures": tally})
