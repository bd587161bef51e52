"""What methods lose and save that draw several rows of the grid at once, paired with plain decoding.

    python benchmarks/rows_side_by_side.py --list
    python benchmarks/rows_side_by_side.py --prompts 1000                          # the full protocol
    python benchmarks/rows_side_by_side.py --prompts 200 --labels "zipar 4"        # a look

The judge reads every picture. Claims are all that a caption says; the number of objects is judged by itself, where the
caption or its scene implies one, because that is what these methods lose first. Each figure is a difference to plain
decoding over the same captions and seeds, with its 95 % interval over captions. Passes and rows fed are per picture.
Every batch is kept in runs/rows_side_by_side as soon as it is through, so the same command goes on after a kill, and
more captions continue fewer. Batches of other weights are made anew.
A label may end in `, 128 guided` (guidance leads the first 128 tokens alone), in `, guidance 3, temperature 0.9, top-k
100`, and in `, in int8-dynamic` (weights are rounded, plain decoding is not).
Writes benchmarks/results/rows_side_by_side.json.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from judge_report import judge_images
from results_page.records import percent_points
from torch import Tensor

from metrics.bootstrap import student_interval
from metrics.provenance import write_result
from metrics.quality import figure
from metrics.tables import markdown_table
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.claim_checks import Judgement
from scenes.judge.network import load_judge
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.runs.files import append_jsonl, read_jsonl

RESULTS = Path(__file__).resolve().parent / "results"
KEPT = Path(__file__).resolve().parent.parent / "runs" / "rows_side_by_side" / "batches.jsonl"
BATCH = 20
DRAWS = 1000
"""Bootstrap draws of an interval."""
FORM = r"(.+?)(?:, (\d+) guided)?(?:, guidance ([\d.]+), temperature ([\d.]+), top-k (\d+))?(?:, in (int\S+))?"
"""A label: one of `SETTINGS`, and what differs from how the model is drawn from."""
NUMBERS = ("object_count", "count")
"""The judge's kinds that are about how many objects there are."""


def _wide_in_the_middle(
    *windows: tuple[int, int, int, int, int], guesses: Sequence[int]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Rows that open after `narrow` tokens, and after `wide` ones from row `first` to row `last` of 16, by label."""
    return {
        f"vvs-rows {narrow}, {wide} in rows {first} to {last}, {count} guesses, 1 looks, {columns} columns": (
            "vvs-rows",
            {
                "opens_after": [wide if first <= row <= last else narrow for row in range(16)],
                "guesses": count,
                "max_visits": 1,
                "guessed_columns": columns,
            },
        )
        for count in guesses
        for narrow, wide, first, last, columns in windows
    }


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("ar", {}),
    "zipar 4": ("zipar", {"window": 4}),
    **{
        f"zipar 4, {wide} in rows 4 to 9": ("zipar", {"window": [4] * 4 + [wide] * 6 + [4] * 6}) for wide in (8, 10, 12)
    },
    "pjd 5, 2 guesses": ("pjd", {"opens_after": 5, "guesses": 2}),
    "vvs-rows 5, 2 guesses, 2 looks": ("vvs-rows", {"opens_after": 5, "guesses": 2, "max_visits": 2}),
    **_wide_in_the_middle((4, 10, 5, 8, 12), (4, 12, 4, 9, 12), guesses=(1, 2, 3)),
}
"""The method and its settings, by label. Rows are counted as in 16; on another grid they are spread evenly."""
ON_LARGER_GRIDS = _wide_in_the_middle((8, 24, 4, 9, 24), guesses=(1, 2, 3))
"""More, whose windows do not fit into 16 columns."""


def chosen(label: str) -> tuple[str, dict[str, Any], dict[str, Any], str | None]:
    """The method, its settings, what a call is told, how weights are rounded. Raises KeyError for an unknown label."""
    if (found := re.fullmatch(FORM, label)) is None:
        raise KeyError(label)
    name, guided, guidance, temperature, top_k, rounded = found.groups()
    call: dict[str, Any] = {"guided_tokens": None if guided is None else int(guided)}
    if guidance is not None:
        call |= {"guidance_scale": float(guidance), "temperature": float(temperature), "top_k": int(top_k)}
    return *SETTINGS[name], call, rounded


def judged(verdict: Judgement) -> list[int]:
    """Right claims, claims, right numbers of objects, and numbers of objects, of one picture."""
    said = [check.right for check in verdict.checks if check.kind != "object_count"]
    numbers = [check.right for check in verdict.checks if check.kind in NUMBERS]
    return [sum(said), len(said), sum(numbers), len(numbers)]


def draw(
    pipeline: Callable[..., Any], method: ImageMethodConfig, first: int, cases: list[PromptCase], judge: Any
) -> dict[str, Any]:
    """One batch: what the judge finds in each picture, and what it cost. Its seeds are the captions' numbers."""
    output = pipeline(
        [case.caption.text for case in cases],
        method=method,
        generator=[torch.Generator().manual_seed(first + number) for number in range(len(cases))],
        output_type="pt",
    )
    trace = output.trace
    return {
        "judged": [judged(verdict) for verdict in judge_images(judge, output.images, cases)],
        "passes": trace.row_passes,
        "rows_fed": trace.rows_fed,
        "unverified": trace.skipped_tokens / trace.tokens,
    }


def figures(batches: list[dict[str, Any]], plain: list[dict[str, Any]], side: int) -> dict[str, Any]:
    """Shares, differences to plain decoding with intervals, and costs. The captions are those of both."""
    ours, theirs = (torch.tensor([each for batch in given for each in batch["judged"]]) for given in (batches, plain))
    told: dict[str, Any] = {"pictures": len(ours)}
    for name, at in (("claims", 0), ("numbers", 2)):
        right, made, plain_right, plain_made = (
            each[:, at + more].double() for each in (ours, theirs) for more in (0, 1)
        )

        def over(chosen: Tensor, parts: Any = (right, made, plain_right, plain_made)) -> float:
            sums = [float(part[chosen].sum()) for part in parts]
            return sums[0] / max(sums[1], 1) - sums[2] / max(sums[3], 1)

        every = torch.arange(len(ours))
        told[name] = float(right.sum() / made.sum())
        told[f"{name}_judged"] = int(made.sum())
        told[f"{name}_against_plain"] = figure(over(every), student_interval(len(ours), over, DRAWS))
    told["prompts"] = float((ours[:, 0] == ours[:, 1]).double().mean())
    for name in ("passes", "rows_fed"):
        values = [value for batch in batches for value in batch[name]]
        told[name] = sum(values) / len(values)
    told["fewer_passes"] = side**2 / told["passes"]
    told["unverified"] = sum(batch["unverified"] for batch in batches) / len(batches)
    return told


def table(rows: list[dict[str, Any]]) -> str:
    """In percent and percentage points."""
    cells = [
        (
            row["label"],
            f"{row['passes']:.0f}",
            f"{row['fewer_passes']:.1f}",
            f"{row['rows_fed']:.0f}",
            f"{100 * row['claims']:.1f}",
            percent_points(row["claims_against_plain"]),
            f"{100 * row['numbers']:.1f}",
            percent_points(row["numbers_against_plain"]),
        )
        for row in rows
    ]
    head = ("settings", "passes", "fewer", "rows fed", "claims", "to plain", "number of objects", "to plain")
    return markdown_table(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a LlamaGen model; the shipped one without it")
    parser.add_argument("--labels", default=",".join(SETTINGS), help="which settings; a comma and no space between")
    parser.add_argument("--prompts", type=int, default=200, help=f"captions, a multiple of {BATCH}")
    parser.add_argument("--first", type=int, default=0, help=f"the first caption, a multiple of {BATCH}")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the batches that are through")
    parser.add_argument("--output", type=Path, default=RESULTS / "rows_side_by_side.json")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    arguments = parser.parse_args()
    SETTINGS.update(ON_LARGER_GRIDS)
    if arguments.list:
        print("\n".join(f"{label}: {method} {settings}" for label, (method, settings) in SETTINGS.items()))
        return
    wanted = _labels(arguments.labels)
    try:
        named = {label: chosen(label) for label in dict.fromkeys(("plain", *wanted))}
    except KeyError as error:
        parser.error(f"labels: no {error}; --list says what there is")
    if arguments.prompts < BATCH or arguments.prompts % BATCH:
        parser.error(f"prompts: must be a multiple of {BATCH}, got {arguments.prompts}")
    if arguments.first < 0 or arguments.first % BATCH:
        parser.error(f"first: must be a multiple of {BATCH}, got {arguments.first}")

    folder = find_model(arguments.model)
    identity = {"weights": weights_fingerprint(folder), "dtype": arguments.dtype}
    kept = read_jsonl(arguments.kept) if arguments.kept.exists() else []
    through = {
        (str(each["settings"]), each["first"]): each["measured"]
        for each in kept
        if {name: each.get(name) for name in identity} == identity
    }
    judge = load_judge(None, "cpu")
    numbers = range(arguments.first, arguments.first + arguments.prompts)
    cases = dict(zip(numbers, sample_prompts(numbers.stop)[numbers.start :], strict=True))

    @cache
    def rounded_to(quantization: str | None) -> LlamaGenPipeline:
        pipeline = LlamaGenPipeline.from_pretrained(folder, torch_dtype=getattr(torch, arguments.dtype))
        pipeline.set_progress_bar_config(disable=True)
        return pipeline if quantization is None else pipeline.quantize(quantization)

    measured: dict[str, list[dict[str, Any]]] = {}
    for label, (name, settings, call, rounded) in named.items():
        method, began = resolve_method(name, settings), time.monotonic()
        told = f"{method.to_dict()}, {call}, {rounded}"
        firsts, draws = numbers[::BATCH], partial(rounded_to(rounded), **call)
        for first in firsts:
            if (told, first) not in through:
                batch = draw(draws, method, first, [cases[first + row] for row in range(BATCH)], judge)
                arguments.kept.parent.mkdir(parents=True, exist_ok=True)
                append_jsonl(arguments.kept, {**identity, "settings": told, "first": first, "measured": batch})
                through[told, first] = batch
        measured[label] = [through[told, first] for first in firsts]
        print(f"{label}  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    rows = []
    for label, (name, settings, call, rounded) in named.items():
        own = {"label": label, "method": name, "settings": settings, **call, "quantization": rounded}
        rows.append({**own, **figures(measured[label], measured["plain"], rounded_to(None).grid_size)})
    record = {"benchmark": "rows_side_by_side", "model": folder.name, **identity, "rows": rows}
    write_result(arguments.output, {**record, "first": numbers.start, "prompts": len(numbers)})
    print(table(rows), f"written to {arguments.output}", sep="\n\n")


def _labels(text: str) -> list[str]:
    """Labels of a list in which a comma without a space behind it ends a label."""
    return [label.replace("\0", ", ") for label in text.replace(", ", "\0").split(",") if label]


if __name__ == "__main__":
    main()
