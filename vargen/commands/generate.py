"""`vargen generate`: pictures from prompts into a folder, resumable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vargen.base.world import require_world
from vargen.commands.arguments import build_parser, fill, parse
from vargen.jobs.generation import GenerateConfig, RunTotals, generate
from vargen.jobs.ranking import Ranker


def run(arguments: Sequence[str]) -> int:
    """Make the pictures that are not there yet, and say what that cost."""
    parser = build_parser(
        "generate",
        "Make pictures from prompts. An interrupted run is continued by the same command.",
        GenerateConfig,
        epilog="Under `accelerate launch` or `torchrun` all processes share the pictures. Without --model, the shipped "
        "model draws one to three spheres, cubes, cylinders and cones on grass, sand or wood; it names the words of a "
        "prompt that it does not know.",
    )
    parser.add_argument("prompts", nargs="*", type=str, help="what to draw, one quoted sentence each")
    parser.add_argument("--json", action="store_true", help="print a JSON summary to standard output, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    values = parse(parser, arguments)
    config = fill(GenerateConfig, values)

    totals = generate(config, values.prompts, _judge_ranker, values.quiet)
    if totals is not None:
        _report(Path(config.output), totals, values.json)
    return 0


def _judge_ranker(image_size: int) -> Ranker:
    return require_world("ranker", "use clip").ranker(image_size)


def _report(output: Path, totals: RunTotals, as_json: bool) -> None:
    ms_per_token = totals.ms_per_token
    if as_json:
        summary = {
            "output": str(output),
            "images": totals.images,
            "new_images": totals.new_images,
            "tokens": totals.tokens,
            "forward_passes": totals.forward_passes,
            "ms_per_token": None if ms_per_token is None else round(ms_per_token, 3),
            "seconds": {phase: round(value, 3) for phase, value in totals.seconds.items()},
        }
        print(json.dumps(summary))
        return
    place = output / "images"
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
