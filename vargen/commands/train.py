"""`vargen train NAME`: one training run, from a shipped or given configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass

from vargen.base.errors import UserError, did_you_mean
from vargen.base.resources import find_config
from vargen.commands.arguments import add_switches, build_parser, fill, parse, take_task
from vargen.jobs.training import load_trainer, recipes, train

_TASKS = {"image": "drafter", "video": "video-drafter", "text": "drafter-text"}
"""The recipes of `vargen train drafter --task TASK`."""


def run(arguments: Sequence[str]) -> int:
    """Train until the configured end; the same command resumes a run that was stopped."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    rest = list(arguments[1:])
    if name == "drafter":
        task, rest = take_task(rest, _TASKS)
        name = _TASKS[task]
    known = recipes()
    if name not in known:
        one_of = f"choose one of: {', '.join(known)}{did_you_mean(name, known)}"
        raise UserError(f"{name!r} cannot be trained; {one_of}")
    if not any(argument == "--config" or argument.startswith("--config=") for argument in rest):
        rest = ["--config", str(find_config(f"train/{name}")), *rest]

    config_type, _ = load_trainer(known[name])
    parser = build_parser(
        f"train {name}",
        f"Train {known[name].summary}. Without --config, configs/train/{name}.yaml. The same command continues a "
        "stopped run from its last checkpoint.",
        config_type,
    )
    add_switches(parser, quiet=False, json="print how it ended as JSON instead of a sentence")
    values = parse(parser, rest)
    config = fill(config_type, parser.instantiate_classes(values))
    # To standard error, and before what is learned from is loaded or made: that may take minutes.
    print(f"vargen: training the {name}", file=sys.stderr)
    result = train(name, config)
    told = vars(result) if is_dataclass(result) else {"result": result}  # a store of codes gives words
    if values.json:
        print(json.dumps({"output": str(config.output), **told}))
    if stopped_by := told.get("stopped_by"):
        print(f"vargen: interrupted at step {result.step}; the same command goes on", file=sys.stderr)
        return 128 + stopped_by
    if not values.json:
        print(f"training of the {name} is over: {result}")
    return 0


def _usage() -> str:
    listed = {name.replace("drafter-text", "drafter --task text"): each.summary for name, each in recipes().items()}
    lines = [f"  {name:<19}  {summary}" for name, summary in listed.items()]
    return "\n".join(("usage: vargen train NAME [--config FILE.yaml] [--FIELD VALUE ...]", "", *lines))
