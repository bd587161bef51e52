"""`vargen judge`: what the pictures of a generate run show of what their prompts ask for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vargen.base.bounds import MAX_BATCH_SIZE
from vargen.base.errors import UserError
from vargen.base.options import LOADING, Settings, option
from vargen.base.path_roles import READ_FOLDER, writes_in
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.runs.files import own_folder, write_json_atomic


@dataclass(frozen=True)
class JudgeConfig(Settings):
    """What to judge."""

    judge_model: str | None = option(None, path=READ_FOLDER, group=LOADING)
    """Folder of a judge; null for the shipped one."""
    batch_size: int = option(32, least=1, most=MAX_BATCH_SIZE)
    """Number of pictures that are read at once."""
    device: str = option("auto", choices=("auto", "cpu", "cuda"), group=LOADING)
    """Device that reads, "cpu" or "cuda"; "auto" takes a GPU if there is one."""


def run(arguments: Sequence[str]) -> int:
    """Read every picture of a folder, compare it with its prompt, write judge.json there and print a table."""
    parser = build_parser(
        "judge",
        "Read the pictures of a `vargen generate` folder and say which claims of their prompts hold.",
        JudgeConfig,
        epilog="The judge knows the scene world only. Prompts it cannot read are named, counted and left out. "
        "In the table, `prompt` counts the prompts whose claims all hold. `object count` of a prompt without a "
        "number is right if there are as many objects as the prompt names.",
    )
    parser.add_argument("folder", type=str, help="output folder of vargen generate")
    add_switches(parser, quiet=False, json="print a JSON summary and nothing else")
    values = parse(parser, arguments)
    config, folder = fill(JudgeConfig, values, folder=writes_in("judge.json")), Path(values.folder)
    results = folder / "result.jsonl"
    if not results.is_file():
        raise UserError(f"folder: {folder} has no result.jsonl; name the output folder of vargen generate")

    import torch

    from scenes.judge.claim_checks import verdict_table
    from scenes.judge.folder import judge_folder
    from scenes.judge.network import load_judge

    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise UserError(f"device: {config.device!r} is not available here; use cpu")
    device = "cuda" if has_gpu and config.device != "cpu" else "cpu"
    with own_folder(folder, argument="folder"):
        result, tally = judge_folder(load_judge(config.judge_model, device), folder, config.batch_size)
        write_json_atomic(folder / "judge.json", result)
    summary = {name: value for name, value in result.items() if name != "verdicts"}
    unreadable = summary["unreadable_prompts"]
    for case in unreadable:
        print(f"vargen: warning: prompt {case['index']} left out: {case['reason']}", file=sys.stderr)
    if values.json:
        print(json.dumps(summary))
    else:
        place = folder / "judge.json"
        print(f"{summary['images']} pictures judged, {len(unreadable)} prompts left out; written to {place}\n")
        print(verdict_table({"pictures": tally}))
    return 0
