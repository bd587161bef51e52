"""What the shipped picture model draws, how it was trained, and what methods cost it in quality.

Belongs here: verdicts, training, evaluations, VVS's studies, the README's table. Does not belong here: seconds alone
(`speed.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from metrics.plots import plot_studies
from metrics.tables import format_figure, format_never_verified, markdown_quality
from results_page.records import (
    DRAFTER_RUN,
    TRANSFORMER_RUN,
    Columns,
    Record,
    is_of_earlier_model,
    of_method,
    source_line,
    table,
    table_of,
)
from results_page.speed import bench_caption

STUDIES_PLOT = "vvs_studies.png"
"""Its name among the documents' images."""
SOURCES = {"generated": "generated", "renders": "real renders", "reconstructions": "tokenizer's reconstructions"}


def of_shipped_model(evaluations: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """The evaluations of the picture model that is shipped now."""
    return {name: rows for name, rows in evaluations.items() if not is_of_earlier_model(rows[0], TRANSFORMER_RUN)}


def share(cell: Record | None) -> str:
    """An accuracy in percent with its 95 % interval and count."""
    if not cell or not cell["n"]:
        return "-"
    low, high = cell["interval"]
    return f"{100 * cell['accuracy']:.1f} ({100 * low:.0f}-{100 * high:.0f}, n {cell['n']})"


def verdict_table(verdicts: Record, group: str = "all") -> str:
    kinds = [kind for kind in verdicts["renders"].get(group, {})]
    columns = [source for source in SOURCES if source in verdicts]
    rows = [[kind, *(share(verdicts[source].get(group, {}).get(kind)) for source in columns)] for kind in kinds]
    return table(["right, %", *(SOURCES[source] for source in columns)], rows)


def judge_section(record: Record) -> str:
    parts = [
        "## What the pictures show",
        "The judge (a recogniser trained on renders) reads each picture and is asked whether every claim of the prompt "
        "holds: accuracy in percent, 95 % interval, claims judged. *Held out*: the prompt's scene has a combination of "
        "colour, shape, material or relation that training never showed. *prompt*: everything that the sentence says "
        "is there; *object_count*: and nothing else is, where the sentence leaves the number open and names every "
        "object. A picture may be right by the first and not by the second.",
    ]
    for name, verdicts in record["verdicts"].items():
        parts += [f"### {name.replace('_', ' ')}: {record['prompts'][name]} prompts", verdict_table(verdicts)]
        if name == "heldout":
            for group in ("1", "2", "3"):
                if group in verdicts["generated"]:
                    parts += [f"Held-out prompts that name {group} object(s):", verdict_table(verdicts, group)]
    parts += ["### The judge alone, on everything true of held-out scenes", verdict_table(record["judge_alone"])]
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return "\n\n".join([*parts, f"Settings: {settings}.", source_line(record, TRANSFORMER_RUN)])


def training_section(records: Sequence[Record]) -> str:
    rows = [
        [
            record["name"],
            f"{record['steps']:,}",
            f"{record['samples']:,}",
            f"{record['seconds'] / 60:.0f}",
            ", ".join(f"{key} {value:.4g}" for key, value in list(record["evaluations"][-1].items())[1:7]),
        ]
        for record in records
        if record["evaluations"]
    ]
    parts = ["## Training", table(["run", "steps", "pictures", "minutes", "held out, at the end"], rows)]
    parts += [f"{record['name']}: {record['remark']}" for record in records if record["remark"]]
    return "\n\n".join([*parts, source_line(records[-1])])


def left_out_section(record: Record) -> str:
    """What each help in training is worth, by `left_out.py`."""

    def right(kind: str) -> Callable[[Record], str]:
        return lambda row: f"{100 * row['judge'][kind]['accuracy']:.1f}"

    columns: Columns = {
        "left out": lambda row: row["left_out"].replace("_", " "),
        "loss a token": "{evaluation[loss]:.2f}",
        "on objects": "{evaluation[loss_object]:.2f}",
        "on the sky": "{evaluation[loss_sky]:.2f}",
        "the caption saves": "{evaluation[caption_gain]:.1f}",
        **{name: right(kind) for name, kind in (("shape", "shape"), ("colour", "colour"), ("sky, %", "sky"))},
        "number": right("object_count"),
        "whole prompt": right("prompt"),
    }
    return "\n\n".join(
        [
            "## What helps it learn",
            f"Runs of {record['rows'][0]['pictures']:,} pictures from random weights, each without one of the recipe's "
            "helps: held-out loss in nats, what the caption saves over a whole picture in nats, and what the judge "
            f"finds right of {record['prompts']} prompts for one object, in percent. The shipped model has seen twenty "
            "times as many: this ranks what helps early. Measured by `benchmarks/left_out.py`.",
            table_of(record["rows"], columns),
            source_line(record),
        ]
    )


def entropy_section(record: Record) -> str:
    """How flat the shipped model's next-token distributions are, by place in the picture."""
    last = record["evaluations"][-1]
    places = [key.removeprefix("entropy_") for key in last if key.startswith("entropy_")]
    rows = [[place, f"{last[f'entropy_{place}']:.2f}", f"{last[f'loss_{place}']:.2f}"] for place in places]
    rows.append(["all tokens", f"{last['entropy']:.2f}", f"{last['loss']:.2f}"])
    return "\n\n".join(
        [
            "## How flat the distributions are",
            "Mean entropy of the next-token distribution on held-out scenes (teacher-forced, no guidance, no filter), "
            "and the loss, in nats. Without its caption the loss is "
            f"{last['loss_without_caption']:.2f}.",
            table(["place", "entropy", "loss"], rows),
            source_line(record),
        ]
    )


PICTURES_OF = {"jacobi": "ar"}
"""Methods that draw another one's very pictures, whose quality is theirs."""


def picks_table(speed: Sequence[Record], weighted: Sequence[Record], evaluations: dict[str, list[Record]]) -> str:
    """The README's one table: what a user would pick, its seconds, and its quality where somebody has measured that.

    Args:
        speed: rows of a bench at batch 1, in the order of the table.
        weighted: rows of another one, whose passes also go through a large network.
        evaluations: rows of every evaluation, the largest first. They draw the same captions from the same seeds, so
            that each stands beside plain decoding's row; one that has other captions has no place here.
    """
    header = ["method", "exact", "heavy passes: fewer, faster", "the shipped model's: fewer, faster", "never verified"]
    header += ["judge, % of claims", "Frechet distance"]
    heavy = {row["method"]: row for row in weighted}
    judged: dict[str, Record] = {}
    plain: Record | None = None
    for rows in evaluations.values():
        here = next((row for row in rows if row["method"] == "ar"), None)
        plain = plain or here
        if here and plain and here["judge_accuracy"] == plain["judge_accuracy"]:
            judged |= {row["method"]: row for row in rows if row["method"] not in judged}
    cells = []
    for row in speed:
        quality = judged.get(PICTURES_OF.get(row["method"], row["method"]))
        cells.append(
            [
                f"`{row['method']}`",
                "yes" if row["exact"] else "no",
                _fewer_faster(heavy.get(row["method"])),
                _fewer_faster(row),
                format_never_verified(row),
                f"{100 * quality['judge_accuracy']['value']:.1f}" if quality else "-",
                format_figure(quality["frechet_distance"], 1, 3) if quality else "-",
            ]
        )
    lines = [table(header, cells)]
    if weighted:
        lines.append(f"Heavy passes: {bench_caption(weighted)}")
    lines.append(f"The shipped model's: {bench_caption(speed)}")
    if judged:
        lines.append(f"Judge and Frechet distance: {plain['count']:,} held-out captions, evaluated in bfloat16.")
    return "\n\n".join(lines)


def _fewer_faster(row: Record | None) -> str:
    return "-" if row is None else f"{row['pass_reduction']:.1f}x, {row['speedup']:.2f}x"


def studies_section(record: Record) -> str:
    """VVS's own studies, by `vvs_studies.py`."""
    parts = [
        "## The studies of VVS's paper",
        f"On the shipped model, {record['prompts']:,} prompts, trees of 59 nodes 5 deep, {record['dtype']}. "
        "Methods have their own defaults, not the model's, where nothing else is said. The paper's figures are tokens "
        "a pass on LlamaGen-XL, and FID where it has one. The judge's shares have their 95 % interval.",
    ]
    if turned := _turned(record):
        parts.append(
            f"![the judge's share of claims against tokens a pass, {', '.join(turned)}](images/{STUDIES_PLOT})"
        )
    for name, rows in record["studies"].items():
        parts.append(f"### {name}")
        if isinstance(rows, dict):  # figures by what they are of
            cells = [[figure, *(f"{key}: {_plain(value)}" for key, value in of.items())] for figure, of in rows.items()]
            parts.append("\n".join(f"- {first.replace('_', ' ')}: {'; '.join(rest)}" for first, *rest in cells))
            continue
        columns: Columns = {
            "setting": "{label}",
            "tokens a pass": "{tokens_per_pass:.2f}",
            "paper": lambda row: row["paper"] or "",
            "accepted": "{accepted_length:.2f}",
            "never verified": lambda row: f"{100 * row['unverified']:.0f} %",
            "relaxed": lambda row: f"{100 * row['relaxed']:.0f} %",
            "judge, % of claims": lambda row: share(row["claims_right"]),
        }
        parts.append(table_of(rows, columns))
    return "\n\n".join([*parts, source_line(record, TRANSFORMER_RUN, DRAFTER_RUN)])


def studies_plot(record: Record) -> bytes:
    """The studies that turn a dial of VVS or of the relaxation, side by side, as PNG."""
    points = {
        name: [(row["label"], row["tokens_per_pass"], row["claims_right"]) for row in rows]
        for name, rows in _turned(record).items()
    }
    return plot_studies(points, speed_label="tokens a pass", quality_label="judge, share of claims right")


def _turned(record: Record) -> dict[str, list[Record]]:
    """The studies with one method and a setting that is turned."""
    return {name: rows for name, rows in record["studies"].items() if name not in ("sampling", "likeness")}


def heads_section(records: dict[str, Record]) -> str:
    """Drafters compared in training, by `drafter_heads.py`."""
    parts = [
        "## What a head reads and learns",
        "Trained side by side on the same pictures by the same few steps, to rank them; held-out pictures of the "
        "target. Overlap: 1 - total variation of the guided distributions, which is the chance that a drawn token is "
        "accepted, at the first level and below accepted ones; accepted: of a chain of four drawn tokens.",
    ]
    for start, record in records.items():
        levels = ("overlap", "overlap_2", "overlap_3", "overlap_4")
        cells = [
            [name, *(f"{head[level]:.3f}" for level in levels), f"{head['accepted_length']:.2f}"]
            for name, head in record["heads"].items()
        ]
        settings = record["settings"]
        parts += [
            f"### From {start} weights",
            f"{settings['steps']} steps of {settings['batch_size']} pictures.",
            table(["head", "overlap", "level 2", "level 3", "level 4", "accepted"], cells),
            source_line(record, TRANSFORMER_RUN),
        ]
    return "\n\n".join(parts)


def _plain(value: Any) -> str:
    """A figure, several of them, or words."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else f"{value:.3g}"


def quality_section(records: dict[str, list[Record]]) -> str:
    """Evaluations by `vargen evaluate`; those of the same protocol, settings and trainings share a table."""
    alike: dict[tuple[str, bool], dict[str, Record]] = {}
    for row in (row for rows in records.values() for row in rows):
        settings = {name: value for name, value in row["settings"].items() if name not in ("method", "weights")}
        how = json.dumps([row["count"], row["protocol"], settings], sort_keys=True)
        older = any(is_of_earlier_model(row, run) for run in of_method(row["settings"]["method"]))
        alike.setdefault((how, older), {}).setdefault(row["method"], row)
    parts = [
        "## Quality",
        "What the figures mean is in [evaluation.md](evaluation.md). Frechet distance and CLIP score are of the "
        "shipped CLIP, so they compare with nothing outside this project. Intervals are 95 %, by the bootstrap over "
        "pictures.",
    ]
    for (how, _), by_method in alike.items():
        rows = [*by_method.values()]
        first = rows[0]
        plain = by_method.get("ar") or alike.get((how, False), {}).get("ar")
        parts += [f"### {first['count']:,} captions, protocol {first['protocol']['name']}", quality_table(rows)]
        against = [row for row in rows if row.get("against_plain")]
        if against and plain is not None:
            cells = [
                [
                    row["method"],
                    format_figure(row["against_plain"]["judge_accuracy"], 100.0, 1),
                    format_figure(row["against_plain"]["clip_score"], 1.0, 2),
                    f"{100 * (row['frechet_distance']['value'] / plain['frechet_distance']['value'] - 1):+.0f} %",
                ]
                for row in against
            ]
            parts += [
                "Against plain decoding of the same captions (in pairs, so how hard a caption is cancels out):",
                table(["method", "judge, points", "CLIP score", "Frechet distance"], cells),
            ]
    return "\n\n".join(parts)


def quality_table(rows: Sequence[Record]) -> str:
    """Methods side by side, and what they were measured on."""
    first = rows[0]
    settings = first["settings"]
    caption = (
        f"{first['count']:,} held-out captions, reference {first['protocol']['reference_count']:,} renders, pictures "
        f"in {settings['dtype']}, batches of {settings['batch_size']}; intervals are 95 %. "
        + " ".join(dict.fromkeys(source_line(row, *of_method(row["settings"]["method"])) for row in rows))
    )
    return markdown_quality(rows, first["protocol"]["extractor"]) + "\n\n" + caption


def tradeoff_rows(speed: Sequence[Record], quality: Iterable[Record]) -> list[Record]:
    """Speed at batch 1; quality from an evaluation where there is one, else from the bench's few prompts."""
    better = {row["method"]: row["judge_accuracy"] for row in quality}
    rows = []
    for row in speed:
        judged = better.get(PICTURES_OF.get(row["method"], row["method"]))
        if judged is None:
            rows.append(row)
        else:
            rows.append({**row, "judge_accuracy": judged["value"], "judge_accuracy_interval": judged["interval"]})
    return rows
