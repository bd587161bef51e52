"""`vargen generate`: pictures from prompts into a folder, resumable."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vargen.base.world import require_world
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs.generation import GenerateConfig, RunTotals, generate
from vargen.jobs.ranking import Ranker
from vargen.methods.advice import FEW, IN_BATCHES


def run(arguments: Sequence[str]) -> int:
    """Make the missing pictures, and print their cost."""
    parser = build_parser(
        "generate",
        "Make pictures from prompts. The same command continues a stopped run.",
        GenerateConfig,
        epilog="Under `accelerate launch` or `torchrun` all processes share the pictures, or with --tp_plan one model. "
        "Without --model, the shipped model draws one to three spheres, cubes, cylinders and cones on grass, sand or "
        "wood. It warns of the words of a prompt that it does not know.",
    )
    parser.usage = "vargen generate [options] PROMPT [PROMPT ...]"
    parser.add_argument("prompts", nargs="*", type=str, help="prompts, one quoted sentence each")
    add_switches(parser, json="print a JSON summary instead of a sentence")
    values = parse(parser, arguments)
    config = fill(GenerateConfig, values)

    totals = generate(config, values.prompts, _judge_ranker, values.quiet)
    if totals is not None:
        _report(totals, values.json)
        at_once = 1 if values.quiet or config.method != "jacobi" else min(config.batch_size, totals.new_images)
        if at_once > 1 and totals.tokens < FEW * totals.forward_passes * at_once:
            print(f"vargen: jacobi saved few passes in this batch; {IN_BATCHES}", file=sys.stderr)
    return 0


def _judge_ranker(image_size: int) -> Ranker:
    return require_world("ranker", "use clip").ranker(image_size)


def _report(totals: RunTotals, as_json: bool) -> None:
    ms_per_token = totals.ms_per_token
    if as_json:
        seconds = {phase: round(value, 3) for phase, value in totals.seconds.items()}
        rounded = None if ms_per_token is None else round(ms_per_token, 3)
        print(json.dumps({**asdict(totals), "ms_per_token": rounded, "seconds": seconds}))
        return
    place = Path(totals.output, "images")
    if not totals.new_images:
        print(f"{_count(totals.images, 'image')} in {place}, all there already")
        return
    earlier = totals.images - totals.new_images
    there = f", {earlier} more already there" if earlier else ""
    print(
        f"{_count(totals.new_images, 'image')} in {place}{there}: {totals.tokens:,} tokens, "
        f"{_count(totals.forward_passes, 'forward pass', 'es')}, {ms_per_token:.2f} ms per token"
    )


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"
