"""What the shipped picture model draws, what methods cost in quality, and the README's table.

Belongs here: judged pictures, evaluations, VVS's studies. Does not belong here: seconds alone (`speed.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from metrics.plots import plot_studies
from metrics.tables import format_figure, markdown_groups, markdown_quality
from results_page.records import (
    DRAFTER_RUN,
    TRANSFORMER_RUN,
    Cell,
    Columns,
    Record,
    is_of_earlier_model,
    runs_of,
    source_line,
    table,
    table_of,
)

STUDIES_PLOT = "vvs_studies.png"
"""File name of the plot of VVS's studies."""
PICTURES_OF = {"jacobi": "ar"}
"""Methods that draw another method's very pictures, so that its quality is theirs."""
DRAWS = {
    "ar": "plain decoding, to compare with",
    "jacobi": "the same pictures as plain decoding",
    "scd": "pictures of the same distribution",
    "vvs-jacobi": "other pictures, part of the tokens unverified",
    "likeness-quality": "other pictures, part of the tokens unverified; needs a draft head",
}
"""The methods of the README's table, and what each draws."""


def share(cell: Record | None) -> str:
    """An accuracy in percent with its 95 % interval and the number of claims."""
    if not cell or not cell["n"]:
        return "-"
    low, high = cell["interval"]
    return f"{100 * cell['accuracy']:.1f} ({100 * low:.0f}-{100 * high:.0f}, n {cell['n']})"


def judge_section(record: Record) -> str:
    """What the judge finds in generated pictures, in renders and in reconstructions."""
    verdicts = record["verdicts"]["heldout"]
    sources = {
        "generated": verdicts["generated"]["all"],
        "one object": verdicts["generated"]["1"],
        "two objects": verdicts["generated"]["2"],
        "three objects": verdicts["generated"]["3"],
        "real renders": verdicts["renders"]["all"],
        "tokenizer's reconstructions": verdicts["reconstructions"]["all"],
    }
    rows = [[kind, *(share(source.get(kind)) for source in sources.values())] for kind in sources["generated"]]
    single = record["verdicts"]["one_object"]["generated"]["all"]["prompt"]
    return "\n\n".join(
        [
            "## What the pictures show",
            "The judge, a network trained on renders, reads each picture and checks every claim of the prompt. The "
            "table has the share of claims that hold in percent, its 95 % interval and the number of claims, for "
            f"{record['prompts']['heldout']} held-out prompts. `prompt` counts prompts with all claims right. "
            "`object_count` asks whether nothing else is drawn. The columns by number of objects are of generated "
            "pictures.",
            table(["right, %", *sources], rows),
            f"Single objects of any combination, prompts with all claims right: {share(single)}. "
            f"{source_line(record, TRANSFORMER_RUN)}",
        ]
    )


def picks_table(benches: Sequence[list[Record]], evaluations: dict[str, list[Record]]) -> str:
    """The README's one table: speed-ups as ranges over fresh processes, and quality where it was evaluated.

    Args:
        benches: records of passes of a published model's size, one for each machine.
        evaluations: rows of every evaluation, by record.
    """
    rows_of_all = (row for rows in evaluations.values() for row in rows)
    quality = {row["method"]: row for row in rows_of_all if row["protocol"]["name"] == "scenes"}
    timed = [{row["method"]: row for row in bench} for bench in benches]

    def faster(rows: dict[str, Record], method: str) -> str:
        each = rows[method]["speedups"]
        low, high = f"{min(each):.1f}", f"{max(each):.1f}"
        return f"{low} times" if low == high else f"{low} to {high} times"

    def judged(method: str, name: str) -> str:
        return f"{100 * quality[PICTURES_OF.get(method, method)][name]['value']:.0f} %"

    def numbers(method: str) -> str:
        right = quality[PICTURES_OF.get(method, method)]["judge"]["object_count"]
        low, high = (100 * bound for bound in right["interval"])
        return f"{100 * right['value']:.0f} % ({low:.0f} to {high:.0f})"

    def passes(method: str) -> str:
        row = quality[method]["decoding"] if method in quality else timed[0][method]
        return f"{row['pass_reduction']:.1f} times"

    rows = [
        [
            f"`{method}`",
            what,
            passes(method),
            *(faster(rows, method) for rows in timed),
            judged(method, "judge_accuracy"),
            judged(method, "judge_prompts"),
            numbers(method),
        ]
        for method, what in DRAWS.items()
    ]
    read = [f"faster, {rows['ar']['achieved']['gb_per_second']:.0f} GB/s" for rows in timed]
    header = ["method", "draws", "fewer forward passes", *read, "claims right", "whole prompts", "number of objects"]
    return table(header, rows)


def main_table_section(smaller: Record, larger: Record) -> str:
    """VVS's main table on both shipped models, by `vvs_studies.py`."""
    rows = zip(smaller["studies"]["main table"], larger["studies"]["main table"], strict=True)
    header = ["method", "paper", "tokens a pass, 256", "claims right, %", "tokens a pass, 1,024", "claims right, %"]
    cells = [
        [small["label"], small["paper"]]
        + [cell for row in (small, large) for cell in (f"{row['tokens_per_pass']:.2f}", share(row["claims_right"]))]
        for small, large in rows
    ]
    return "\n\n".join(
        [
            "## The main table of VVS's paper",
            f"The shipped models of 256 and of 1,024 tokens a picture, {smaller['prompts']} and {larger['prompts']} "
            f"prompts, trees of 59 nodes 5 deep, {smaller['dtype']}. The column `paper` has the paper's tokens per "
            "pass on LlamaGen-XL, of 256 tokens in stage I and of 1,024 in stage II.",
            table(header, cells),
            source_line(smaller, TRANSFORMER_RUN, DRAFTER_RUN),
            source_line(larger),
        ]
    )


def studies_section(record: Record) -> str:
    """The studies of VVS's paper, by `vvs_studies.py`."""
    parts = [
        "## The studies of VVS's paper",
        f"On the shipped model, {record['prompts']:,} prompts, trees of 59 nodes 5 deep, {record['dtype']}. "
        "Methods have their own defaults, not the model's, unless the row says otherwise. The column `paper` has the "
        "paper's tokens per pass on LlamaGen-XL, and its FID where it gives one.",
    ]
    parts.append(f"![claims right against tokens per pass, {', '.join(record['studies'])}](images/{STUDIES_PLOT})")
    return "\n\n".join([*parts, *_study_tables(record), source_line(record, TRANSFORMER_RUN, DRAFTER_RUN)])


def more_studies_section(title: str, record: Record) -> str:
    """Other studies or another model: that of 1,024 tokens stands for the paper's stage II."""
    parts = [
        f"## {title}",
        f"As above, on `{record['model']}`, {record['prompts']:,} prompts. The paper's figures are those above.",
    ]
    return "\n\n".join([*parts, *_study_tables(record), source_line(record)])


def _study_tables(record: Record) -> list[str]:
    """A heading and a table for each study."""
    columns: Columns = {
        "setting": "{label}",
        "tokens a pass": "{tokens_per_pass:.2f}",
        "paper": lambda row: row["paper"] or "",
        "accepted": "{accepted_length:.2f}",
        "never verified": "{unverified:.0%}",
        "relaxed": "{relaxed:.0%}",
        "claims right, %": lambda row: share(row["claims_right"]),
    }
    return [part for name, rows in record["studies"].items() for part in (f"### {name}", table_of(rows, columns))]


def studies_plot(record: Record) -> bytes:
    """The studies that turn one setting of VVS or of the relaxation, side by side, as PNG."""
    points = {
        name: [(row["label"], row["tokens_per_pass"], row["claims_right"]) for row in rows]
        for name, rows in record["studies"].items()
    }
    return plot_studies(points, speed_label="tokens a pass", quality_label="share of claims right")


def groups_section(records: dict[str, list[Record]]) -> str:
    """Runs of prompts in the form of a public benchmark, by group."""
    parts = [
        "## Prompts in the form of public benchmarks",
        "Prompts of the project's own world, drawn by the shipped model, four pictures each. In the form of GenEval "
        "the project's own judge finds the objects. These figures say nothing about a published score.",
    ]
    for name, rows in records.items():
        parts += [f"### {name}", markdown_groups(rows), source_line(rows[0], TRANSFORMER_RUN)]
    return "\n\n".join(parts)


def quality_section(records: dict[str, list[Record]], title: str = "Quality") -> str:
    """Evaluations by `vargen evaluate`; those with the same protocol, settings and weights share a table."""
    alike: dict[tuple[str, bool], dict[str, Record]] = {}
    for row in (row for rows in records.values() for row in rows):
        settings = {name: value for name, value in row["settings"].items() if name not in ("method", "weights")}
        how = json.dumps([row["count"], row["protocol"], settings], sort_keys=True)
        older = any(is_of_earlier_model(row, run) for run in runs_of(row["settings"]["method"]))
        alike.setdefault((how, older), {}).setdefault(row["method"], row)
    parts = [
        f"## {title}",
        "The CLIP score is of the shipped CLIP, and so is the Frechet distance of the protocol scenes. That of "
        "scenes-efficientnet is of EfficientNet-Lite0, a public network that was trained on photographs. Neither is "
        "FID, and neither compares with figures from outside this project. Intervals are 95 %, by the bootstrap over "
        "pictures.",
    ]
    pairs: dict[str, Cell] = {
        "method": "{method}",
        "claims right, points": lambda row: format_figure(row["against_plain"]["judge_accuracy"], 100.0, 1),
        "CLIP score": lambda row: format_figure(row["against_plain"]["clip_score"], 1.0, 2),
    }
    for by_method in alike.values():
        rows = [*by_method.values()]
        first, settings = rows[0], rows[0]["settings"]
        sources = dict.fromkeys(source_line(row, *runs_of(row["settings"]["method"])) for row in rows)
        parts += [
            f"### {first['count']:,} captions, protocol {first['protocol']['name']}",
            markdown_quality(rows, first["protocol"]["extractor"]),
            f"Reference: {first['protocol']['reference_count']:,} renders; pictures in {settings['dtype']}, batches of "
            f"{settings['batch_size']}. " + " ".join(sources),
            *dict.fromkeys(f"Note: {note}." for row in rows for note in row["warnings"]),
        ]
        if against := [row for row in rows if row.get("against_plain")]:
            parts += ["Against plain decoding of the same captions, in pairs:", table_of(against, pairs)]
    return "\n\n".join(parts)
