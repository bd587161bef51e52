"""Rebuild docs/results.md, the README's table and the model card's figures from recorded JSON.

    python benchmarks/build_results.py            # rewrite them
    python benchmarks/build_results.py --check    # exit 1 if they are not what the records say

No figure there is typed by hand. Text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` is replaced, NAME being
"methods" in the README and "results" in the model card. The trade-off plot, docs/images/tradeoff.png, is drawn from the
same records (with matplotlib); `--check` does not look at it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metrics.plots import plot_tradeoff
from metrics.tables import format_figure, markdown_quality

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL = "scenes-128"
PICKS_RUN = "bench_picks"
TRANSFORMER_RUN = f"training_{MODEL}-transformer"
VIDEO_RUN = "training_video-llm"
CLAIM_KINDS = ("setting", "objects", "events", "sequence", "all")
"""Of captions of videos; those of plain ones have no sequence."""
PLOT = ROOT / "docs" / "images" / "tradeoff.png"
SOURCES = {"generated": "generated", "renders": "real renders", "reconstructions": "tokenizer's reconstructions"}

Record = dict[str, Any]
Columns = Mapping[str, str | Callable[[Record], str]]
"""By header: a format over a record's fields, or what makes a cell of it."""


def load(name: str) -> Any:
    """A record by file name without `.json`; None if nobody recorded it."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def load_evaluations() -> dict[str, list[Record]]:
    """The scores of every recorded evaluation, by file name, the largest first."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("evaluation_*.json")}
    return dict(sorted(found.items(), key=lambda item: -item[1][0]["count"]))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def table_of(records: Iterable[Record], columns: Columns) -> str:
    """A line for each record."""
    cells = [[of.format_map(row) if isinstance(of, str) else of(row) for of in columns.values()] for row in records]
    return table([*columns], cells)


def source_line(record: Record) -> str:
    """Hardware, commit and date of a record, for the reader to judge it by."""
    origin = record["provenance"]
    hardware, libraries = origin["hardware"], origin["libraries"]
    where = hardware["device"] if hardware["device"] != "cpu" else hardware["processor"]
    return (
        f"<sub>{where}, {hardware['cores']} cores, torch {libraries['torch']}; commit {origin['commit']}, "
        f"{origin['date'][:10]}.</sub>"
    )


def is_of_earlier_model(record: Record, run: str = TRANSFORMER_RUN) -> bool:
    """Whether a record was taken before the model that is shipped was trained, so of the one before it.

    Args:
        record: any.
        run: the record of that training.
    """
    shipped = load(run)
    return shipped is not None and record["provenance"]["date"] < shipped["provenance"]["date"]


def of_shipped_model(evaluations: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """The evaluations of the picture model that is shipped now."""
    return {name: rows for name, rows in evaluations.items() if not is_of_earlier_model(rows[0])}


def picture_source_line(record: Record) -> str:
    """`source_line` of a record of the picture model, which says where that is not the one that is shipped now."""
    earlier = "**Of the picture model that was shipped before this one.** " * is_of_earlier_model(record)
    return earlier + source_line(record)


def video_source_line(record: Record) -> str:
    """`source_line` of a record of the pair of Video-LLMs, which says where that is not the one that is shipped now."""
    earlier = "**Of the pair that was shipped before this one.** " * is_of_earlier_model(record, VIDEO_RUN)
    return earlier + source_line(record)


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
        "colour, shape, material or relation that training never showed.",
    ]
    for name, verdicts in record["verdicts"].items():
        parts += [f"### {name.replace('_', ' ')}: {record['prompts'][name]} prompts", verdict_table(verdicts)]
        if name == "heldout":
            for group in ("1", "2", "3"):
                if group in verdicts["generated"]:
                    parts += [f"Held-out prompts that name {group} object(s):", verdict_table(verdicts, group)]
    parts += ["### The judge alone, on everything true of held-out scenes", verdict_table(record["judge_alone"])]
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return "\n\n".join([*parts, f"Settings: {settings}.", picture_source_line(record)])


def decoding_section(records: Sequence[Record]) -> str:
    columns: Columns = {
        "model": "{model}",
        "device": "{device} {dtype}",
        "batch": "{batch_size}",
        "ms per step": "{milliseconds_per_step:.2f}",
        "GB/s of weights": "{achieved_gb_per_second:.1f}",
        "ms to stream them once": "{streaming_milliseconds:.2f}",
        "ratio": "{ratio_to_streaming:.1f}",
    }
    return "\n\n".join(
        [
            "## Plain decoding",
            "One step makes one token per picture, with guidance (two rows per picture).",
            table_of(records, columns),
            picture_source_line(records[-1]),
        ]
    )


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
    header = ["method", "exact", "fewer passes", "speed-up", "speed-up, heavy passes", "never verified"]
    header += ["judge, % of claims", "Frechet distance"]
    heavy = {row["method"]: f"{row['speedup']:.2f}x" for row in weighted}
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
                f"{row['pass_reduction']:.2f}x",
                f"{row['speedup']:.2f}x",
                heavy.get(row["method"], "-"),
                f"{100 * row['skipped_tokens'] / row['tokens']:.0f} %",
                f"{100 * quality['judge_accuracy']['value']:.1f}" if quality else "-",
                format_figure(quality["frechet_distance"], 1, 3) if quality else "-",
            ]
        )
    lines = [table(header, cells), bench_caption(speed)]
    if weighted:
        lines.append(f"Heavy passes: {bench_caption(weighted)}")
    if judged:
        lines.append(f"Judge and Frechet distance: {plain['count']:,} held-out captions, evaluated in bfloat16.")
    return "\n\n".join(lines)


def bench_table(rows: Sequence[Record]) -> str:
    """Methods side by side, as `vargen bench` measured them."""
    columns: Columns = {
        "method": "{method}",
        "exact": lambda row: "yes" if row["exact"] else "no",
        "target passes a call": lambda row: f"{row['target_passes'] * row['batch_size'] / row['images']:.0f}",
        "fewer passes": "{pass_reduction:.2f}x",
        "tokens a pass": "{tokens_per_pass:.2f}",
        "accepted": "{mean_accepted_length:.2f}",
        "skipped steps": lambda row: f"{row['skipped_steps'] / row['images']:.1f}",
        "s a picture, p50 (p90)": "{seconds_per_image[p50]:.2f} ({seconds_per_image[p90]:.2f})",
        "speed-up": "{speedup:.2f}x",
        "judge, % of claims": _judged,
    }
    return table_of(rows, columns)


def _judged(row: Record) -> str:
    """What the judge said of a bench's pictures, where it was asked: percent of claims, and their interval."""
    if row["judge_accuracy"] is None:
        return "-"
    low, high = row["judge_accuracy_interval"]
    return f"{100 * row['judge_accuracy']:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def bench_caption(rows: Sequence[Record]) -> str:
    """What a bench was measured on."""
    row = rows[0]
    heavy = ""
    if "weighted_by" in row:
        heavy = (
            f"Every pass, those of heads too, also goes through a network as large as {row['weighted_by']}; the tokens "
            "are the shipped model's own. "
        )
    return (
        f"{heavy}{row['images']} held-out prompts, {row['dtype']}, batch {row['batch_size']}, the model's default "
        f"sampling; all methods draw the same prompts with the same seeds, in turns. {picture_source_line(row)}"
    )


def speculation_section(records: dict[str, list[Record]], overhead: Record | None, equality: Record | None) -> str:
    parts = [
        "## Decoding methods",
        "What the figures mean is in [methods.md](methods.md). Speed-up is wall clock of whole calls against plain "
        "decoding on the same code path.",
    ]
    for name, rows in records.items():
        parts += [f"### {name.removeprefix('bench_').replace('_', ' ')}", bench_table(rows), bench_caption(rows)]
    if overhead:
        header = ["method", "steps", "outside forwards", *overhead["rows"][0]["milliseconds_per_step"]]
        cells = [
            [
                row["method"],
                f"{row['steps']:,}",
                f"{100 * row['outside_share']:.1f} %",
                *(f"{value:.2f}" for value in row["milliseconds_per_step"].values()),
            ]
            for row in overhead["rows"]
        ]
        parts += [
            "### Where a step's time goes",
            "Milliseconds per step, one picture at a time, and the share that is neither the target's nor the "
            "drafter's forward.",
            table([name.replace("_", " ") for name in header], cells),
            picture_source_line(overhead),
        ]
    if equality:
        columns: Columns = {
            "method": "{method}",
            "batch": "{batch_size}",
            "pictures": "{prompts}",
            "equal": "{equal}",
            "near ties": "{near_ties}",
            "other": "{faults}",
        }
        parts += [
            "### Greedy decoding, token for token",
            "Pictures whose 256 tokens all equal plain decoding's, fp32; *near ties* differ first where the two best "
            f"logits lie within {equality['near_tie']:g} of each other, where another batch shape may round either "
            "way.",
            table_of(equality["rows"], columns),
            picture_source_line(equality),
        ]
    return "\n\n".join(parts)


def studies_section(record: Record) -> str:
    """VVS's own studies, by `vvs_studies.py`."""
    parts = [
        "## The studies of VVS's paper",
        f"On the shipped model, {record['prompts']:,} prompts, trees of 59 nodes 5 deep, float32; the paper's figures "
        "are tokens a pass on LlamaGen-XL, and FID where it has one.",
    ]
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
            "judge, % of claims": lambda row: f"{100 * row['claims_right']:.1f}",
        }
        parts.append(table_of(rows, columns))
    return "\n\n".join([*parts, picture_source_line(record)])


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
            picture_source_line(record),
        ]
    return "\n\n".join(parts)


def _plain(value: Any) -> str:
    """A figure, several of them, or words."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else f"{value:.3g}"


def compiled_section(record: Record) -> str:
    """Compiled passes beside eager ones."""
    columns: Columns = {
        "model": "{model}",
        "precision": "{dtype}",
        "batch": "{batch_size}",
        "eager in": lambda row: "own kernels" if row["kernels"] == "own" else "torch",
        "method": "{method}",
        "eager, ms a pass": "{eager_milliseconds_per_pass:.2f}",
        "compiled": "{compiled_milliseconds_per_pass:.2f}",
        "gain": "{gain:.2f}x",
        "pictures that differ": "{different_pictures} of {pictures}",
    }
    window = record["rows"][0]["window"]
    return "\n\n".join(
        [
            "## Compiled passes",
            "Compiled passes beside eager ones, in turns, the same seeds, compiling left out; `jacobi` feeds a window "
            f"of {window} guesses. With random weights milliseconds are those of a model of that size, its pictures "
            "are noise. A picture differs where two tokens were about as likely and rounding chose.",
            table_of(record["rows"], columns),
            picture_source_line(record),
        ]
    )


def quality_section(records: dict[str, list[Record]]) -> str:
    """Evaluations by `vargen evaluate`."""
    parts = [
        "## Quality",
        "What the figures mean is in [evaluation.md](evaluation.md). Frechet distance and CLIP score are of the "
        "shipped CLIP, so they compare with nothing outside this project. Intervals are 95 %, by the bootstrap over "
        "pictures.",
    ]
    for rows in records.values():
        first = rows[0]
        parts += [f"### {first['count']:,} captions, protocol {first['protocol']['name']}", quality_table(rows)]
        against = [row for row in rows if row.get("against_plain")]
        if against:
            cells = [
                [
                    row["method"],
                    format_figure(row["against_plain"]["judge_accuracy"], 100.0, 1),
                    format_figure(row["against_plain"]["clip_score"], 1.0, 2),
                    f"{100 * (row['frechet_distance']['value'] / first['frechet_distance']['value'] - 1):+.0f} %",
                ]
                for row in against
            ]
            parts += [
                "Against plain decoding of the same captions (in pairs, so how hard a caption is cancels out):",
                table(["method", "judge, points", "CLIP score", "Frechet distance"], cells),
            ]
    return "\n\n".join(parts)


def quality_table(rows: Sequence[Record]) -> str:
    """One evaluation's methods side by side, and what they were measured on."""
    first = rows[0]
    settings = first["settings"]
    caption = (
        f"{first['count']:,} held-out captions, reference {first['protocol']['reference_count']:,} renders, pictures "
        f"in {settings['dtype']}, batches of {settings['batch_size']}; ± is half a 95 % interval. "
        + picture_source_line(first)
    )
    return markdown_quality(rows, first["protocol"]["extractor"]) + "\n\n" + caption


def video_table(rows: Sequence[Record]) -> str:
    """Methods side by side on videos, as `vargen bench --task video` measured them."""
    header = ["method", "exact", "target passes an answer", "accepted", "with bonus", "decoding", "end to end"]
    header += ["relaxed", "same as plain", "caption accuracy, %", "retention"]
    cells = [
        [
            row["method"],
            "yes" if row["exact"] else "no",
            f"{row['target_passes'] / row['answers']:.1f}",
            f"{row['mean_accepted_length']:.2f}",
            f"{row['mean_accepted_length_with_bonus']:.2f}",
            f"{row['decode_speedup']:.2f}x",
            f"{row['end_to_end_speedup']:.2f}x",
            f"{100 * row['relaxed_share']:.1f} %",
            f"{row['equal_to_plain']} of {row['answers']}",
            format_figure({"value": row["caption_accuracy"], "interval": row["caption_accuracy_interval"]}, 100.0, 1),
            "-" if row["retention"] is None else f"{100 * row['retention']:.1f} %",
        ]
        for row in rows
    ]
    return table(header, cells)


def video_caption(rows: Sequence[Record]) -> str:
    row = rows[0]
    tokens = row["tokens"] / row["answers"]
    return (
        f"{row['answers']} held-out videos, about {tokens:.0f} tokens an answer, {row['dtype']}, temperature "
        f"{row['temperature']:g}; all methods answer about the same videos, in turns. Speed-ups are per token, against "
        f"plain decoding on the same code path. {video_source_line(row)}"
    )


def drafting_table(rows: Sequence[Record]) -> str:
    """What drafting took, of the methods of which it is known."""
    header = ["method", "ms a step's draft", "forwards a step", "accepted a forward", "MFLOP an answer", "settings"]
    cells = []
    for row in rows:
        if row.get("drafting_passes") is None:
            continue
        steps = sum(row["accepted_histogram"])
        wanted = ("tree", "total_tokens", "tree_top_k", "depth", "draft_length", "keep_ratio")
        settings = {name: row["settings"][name] for name in wanted if row["settings"].get(name) is not None}
        sizes = ("total_tokens", "tree_top_k")
        of_trees = {"chain": sizes, "sparrow_30_4_8": (*sizes, "depth", "draft_length")}
        unused = of_trees.get(settings.get("tree", ""), ("draft_length",))
        if "tree" in settings:
            settings = {name: value for name, value in settings.items() if name not in unused}
        flops = row["draft_flops_per_answer"]
        cells.append(
            [
                row["method"],
                f"{1e3 * row['draft_seconds_per_step']:.2f}",
                f"{row['drafting_passes'] / steps:.2f}",
                f"{row['accepted_per_drafting_pass']:.2f}",
                "-" if flops is None else f"{flops / 1e6:.0f}",
                ", ".join(f"{name} {value}" for name, value in settings.items()),
            ]
        )
    return table(header, cells)


def seeing_section(record: Record) -> list[str]:
    """Whether captions are read off the videos."""
    rows = record["rows"]
    kinds = [kind for kind in CLAIM_KINDS if kind in rows[0]]
    cells = [
        [
            row["model"] or "nobody",
            row["shown"],
            *(format_figure(row[kind], 100.0, 1) for kind in kinds),
            f"{100 * row['order']:.0f}" + ("" if row["order_answers"] is None else f" (of {row['order_answers']})"),
            format_figure(row["choice"], 100.0, 0) + (f" (of {row['choice']['choices']})" if row["model"] else ""),
        ]
        for row in rows
    ]
    return [
        "### Whether captions are read off the videos",
        f"{record['videos']} held-out videos. F1 of what a caption claims about the video it should be about, %. "
        "*Order* is what the order of frames alone decides: whether something appears or leaves, goes one way or the "
        "other, which of two things comes first; of those that a caption mentions, the share that it has right, where "
        "a coin has half. *Choice* is about whole captions: of the true one and the true one of the same frames from "
        "the last to the first, how often the model finds the true one likelier; without order, and without the video, "
        "half is chance, or a little more with frames shuffled: things appear, leave and turn at the end of their "
        "stretch of time, so the number of frames that show them is a hint. The first rows are chance for F1. Without "
        "order, somebody who knows every frame and what can happen in this world is left with two stories, forwards "
        "and backwards, and tells either; without a video, any.",
        table(["model", "shown", *kinds, "order, %", "choice, %"], cells),
        video_source_line(record),
    ]


def overlap_section(record: Record) -> list[str]:
    """What working ahead is worth, reckoned and measured."""
    rows, first = record["rows"], record["rows"][0]
    cells = [
        [
            row["way"],
            f"{row['target_passes']}",
            f"{row['reckoned_decode_seconds']:.2f}",
            f"{row['decode_seconds']:.2f}",
            f"{row['decode_speedup']:.2f}x",
            "yes" if row["same_tokens_as_plain"] else "NO",
        ]
        for row in rows
    ]
    settings = record["settings"]
    return [
        "### Overlap, reckoned and measured",
        f"Two stacks of the Qwen2.5-VL architecture with random weights ({settings['target_layers']} and "
        f"{settings['draft_layers']} layers of {settings['hidden_size']}), a drafter that is right as often as it is "
        f"told to be ({100 * settings['right']:.0f} %), one thread each. Alone, a pass of the target takes "
        f"{1e3 * first['target_pass_seconds_alone']:.0f} ms over one token and "
        f"{1e3 * first['target_window_seconds_alone']:.0f} ms over a window of {first['draft_length']}, a drafted "
        f"token {1e3 * first['draft_token_seconds_alone']:.1f} ms. Reckoned: the event simulation with these, a round "
        "taking the longer of its two sides.",
        table(["way", "target passes", "reckoned, s", "measured, s", "against plain", "same tokens"], cells),
        source_line(record),
    ]


def drafter_training_section(trained: Sequence[Record]) -> list[str]:
    """What each drafter was trained for, and how well it guesses."""
    cells = []
    for record in trained:
        last = record["evaluations"][-1]
        places = [f"{100 * last[name]:.1f}" for name in (f"agreement_{place}" for place in range(1, 5)) if name in last]
        row = [record["settings"]["kind"], f"{record['steps']:,}", f"{record['settings']['videos']:,}"]
        cells.append([*row, f"{record['seconds'] / 60:.0f}", *places, f"{last['accepted_length']:.2f}"])
    header = ["drafter", "steps", "answers", "minutes", "1st, %", "2nd", "3rd", "4th", "accepted of 4"]
    return [
        "### Trained drafters",
        "How often the likeliest guess is the target's own token on answers about held-out videos, by how far ahead it "
        "is, each by the guess before it or of the same forward; and what stays of greedy chains of four, over a few "
        f"videos. {trained[0]['remark']} The minutes hold some for what the target made of the answers.",
        table(header, cells),
        video_source_line(trained[0]),
    ]


def trained_drafters_section(record: Record) -> list[str]:
    """Studies of trained drafters, those that are recorded."""
    studies = record["studies"]
    of_stories = any(study.get("captions") == "written" for study in studies.values())
    parts = ["### Trained drafters, part by part" + (": stories" if of_stories else "")]
    parts.append("How each was trained is in the record of each study; chains, greedy.")
    if "length" in studies:
        rows = studies["length"]["rows"]
        lengths = sorted({row["visual_tokens"] for row in rows})
        names = ("bridged", "multi_token", "text_only")
        cells = []
        for key in sorted({tuple(row[name] for name in names) for row in rows}, reverse=True):
            found = {row["visual_tokens"]: row for row in rows if tuple(row[name] for name in names) == key}
            marks = ["yes" if each else "no" for each in key]
            cells.append([*marks, *(f"{found[length]['accepted_length']:.2f}" for length in lengths)])
        known = {row["visual_tokens"]: row["caption_accuracy"] for row in rows}
        cells.append(["*target's captions, F1 %*", "", "", *(f"*{100 * known[length]:.0f}*" for length in lengths)])
        seen = "videos of 256" if of_stories else "stills of 36"
        longest = "1,024" if of_stories else "144"
        parts += [
            f"Sparrow's parts: accepted length against the number of visual tokens. Trained on {seen} visual "
            f"tokens; {studies['length']['videos']} held-out videos each. The target itself has seen videos of "
            f"{longest} visual tokens; what it can say of longer ones is in the last row.",
            table(["bridged states", "multi-token", "text only", *(f"{length:,}" for length in lengths)], cells),
            video_source_line(studies["length"]),
        ]
    if "cost" in studies:  # in the order of methods, each against the length
        studies["cost"]["rows"].sort(key=lambda row: (row["method"], row["frames"]))
    even = studies["saturation"]["rows"][0]["even"] if "saturation" in studies else 0.0
    for name, words, header, cells_of in (
        (
            "cost",
            "What a forward of the drafter costs as the video grows, chains of five:",
            ["drafter", "visual tokens", "MFLOP a forward", "ms a forward", "MFLOP for the prompt"],
            lambda row: [
                row["method"],
                f"{row['visual_tokens']:,}",
                f"{row['flops_per_drafting_pass'] / 1e6:.2f}",
                f"{row['draft_milliseconds_per_pass']:.2f}",
                f"{row['prompt_flops'] / 1e6:.0f}",
            ],
        ),
        (
            "parts",
            "FLASH's two parts, each without the other, and neither; and a drafter that is shown no video at all. "
            "Chains of four, trained for a short time.",
            ["compressed video", "four places at once", "text only", "accepted", "accepted a forward", "ms a forward"],
            lambda row: [
                *("yes" if row[name] else "no" for name in ("compression", "places", "text_only")),
                f"{row['accepted_length']:.2f}",
                f"{row['accepted_per_drafting_pass']:.2f}",
                f"{row['draft_milliseconds_per_pass']:.2f}",
            ],
        ),
        (
            "places",
            "FLASH: places guessed at once, each drafter trained for its own number, for a short time.",
            ["K", "accepted", "drafter's forwards a step", "accepted a forward"],
            lambda row: [
                str(row["places"]),
                f"{row['accepted_length']:.2f}",
                f"{row['drafting_passes_per_step']:.2f}",
                f"{row['accepted_per_drafting_pass']:.2f}",
            ],
        ),
        (
            "compression",
            "FLASH: compression of the video's visual tokens, trained for a short time.",
            ["compression", "queries", "accepted", "MFLOP for the prompt"],
            lambda row: [
                row["compression"],
                str(row["queries"]),
                f"{row['accepted_length']:.2f}",
                f"{row['prompt_flops'] / 1e6:.0f}",
            ],
        ),
        (
            "saturation",
            "FLASH: the largest weight of the compressor's softmax, a mean over queries (a query that looks at all "
            f"alike has {even:.3f}, one that looks at a single token 1).",
            ["scaled", "untrained", "trained", "accepted"],
            lambda row: [
                "yes" if row["scaled"] else "no (the paper's)",
                f"{row['untrained']:.3f}",
                f"{row['trained']:.3f}",
                f"{row['accepted_length']:.2f}",
            ],
        ),
    ):
        if name in studies:
            study = studies[name]
            parts += [words, table(header, [cells_of(row) for row in study["rows"]]), video_source_line(study)]
    return parts


VIDEO_STUDIES = (
    "what_videos_show",
    "parallel_overlap_cpu",
    "video_drafters",
    "video_pair",
    "video_memory",
    "long_videos",
    "loose_verification",
)
"""Records beside those of `vargen bench` and of training."""


def pair_section(record: Record) -> list[str]:
    """What a pair of Video-LLMs is like, of `benchmarks/video_pair.py`, those studies that are recorded."""

    def of_hundred(value: float) -> str:
        return f"{100 * value:g} %"

    def percent(measured: Record) -> str:
        return format_figure(measured, 100.0, 1)

    shown: dict[str, tuple[str, list[str], Callable[[Record], list[str]]]] = {
        "layers": (
            "F1 of the target's captions, %, when all visual tokens are taken away after a layer; the last row is the "
            "whole model. Papers' targets lose nothing late.",
            ["after layer", "caption accuracy, %"],
            lambda row: [f"{row['layer']} of {row['layers']}", percent(row["accuracy"])],
        ),
        "views": (
            "F1 of each model's own captions, by the share of the visual tokens that it is shown, evenly spread; "
            "retention is over the target with all of them.",
            ["model", "shown", "caption accuracy, %", "retention"],
            lambda row: [
                row["model"],
                of_hundred(row["share"]),
                percent(row["accuracy"]),
                of_hundred(round(row["retention"], 3)),
            ],
        ),
        "pruning": (
            "Ways to prune: how many of the tokens kept show an object; A, how often the drafter, so shown, says the "
            "target's token; M, the tokens between two rejections. `visual_gain` is UV-Prune after a quarter of the "
            "layers.",
            ["pruning", "kept", "objects, %", "A, %", "M"],
            lambda row: [
                row["pruning"],
                of_hundred(row["share"]),
                percent(row["object_share"]),
                percent(row["agreement"]),
                f"{row['mean_run_length']:.2f}",
            ],
        ),
        "overlap": (
            "ParallelVLM with UV-Prune: measured seconds of one pass of each, the window that suits them, and what "
            "follows for the answers measured, reckoned as if two processors did nothing else.",
            ["kept", "cost ratio", "window", "M", "target idle", "drafter idle", "side by side", "in turn"],
            lambda row: [
                of_hundred(row["share"]),
                f"{row['cost_ratio']:.2f}",
                str(row["window"]),
                f"{row['mean_run_length']:.2f}",
                of_hundred(round(row["target_idle"], 3)),
                of_hundred(round(row["drafter_idle"], 3)),
                f"{row['reckoned_speedup']:.2f}x",
                f"{row['reckoned_speedup_in_turn']:.2f}x",
            ],
        ),
        "lossy": (
            "Pruning the target itself: how often what is left of it says the whole one's token, and F1 of its "
            "captions.",
            ["method", "kept", "agreement, %", "caption accuracy, %"],
            lambda row: [row["method"], of_hundred(row["share"]), percent(row["agreement"]), percent(row["accuracy"])],
        ),
        "length": (
            "Longer videos: the target's captions, and the drafter's agreement with them at a tenth of the tokens.",
            ["frames", "visual tokens", "caption accuracy, %", "A, %", "M"],
            lambda row: [
                str(row["frames"]),
                f"{row['visual_tokens']:,}",
                percent(row["accuracy"]),
                percent(row["agreement"]),
                f"{row['mean_run_length']:.2f}",
            ],
        ),
    }
    parts = [f"### What a pair is like: {record['captions']} captions"]
    for name, (words, header, cells_of) in shown.items():
        if study := record["studies"].get(name):
            frames = "" if study["frames"] is None else f" of {study['frames']} frames"
            caption = f"{study['videos']} held-out videos{frames}. {video_source_line(study)}"
            parts += [words, table(header, [cells_of(row) for row in study["rows"]]), caption]
    return parts


def video_memory_section(record: Record) -> list[str]:
    """Peak memory of an answer against transformers' own `generate`, random weights."""
    rows, model = record["rows"], record["model"]
    ways = list(dict.fromkeys(row["way"] for row in rows))
    found = {(row["way"], row["visual_tokens"]): row for row in rows}
    cells = [
        [f"{count:,}", *(f"{found[way, count]['mebibytes']:,.0f}" for way in ways if (way, count) in found)]
        for count in dict.fromkeys(row["visual_tokens"] for row in rows)
    ]
    same = all(row["equal_to_generate"] for row in rows)
    return [
        "### Memory of an answer, random weights",
        f"Random weights of the Qwen2.5-VL architecture, not a trained model: {model['layers']} layers, "
        f"{model['heads']} query heads of {model['head_dim']} to {model['key_value_heads']} of keys and values, "
        f"{record['dtype']}. MiB at the peak over what the process held before, prompt and answer, without the vision "
        f"tower, each in a process of its own. `generate` is transformers', `ar` plain decoding here, `sd` with the "
        f"target drafting for itself from a tenth of the video. {'All answers are' if same else 'Not all answers are'} "
        "those of `generate`.",
        table(["visual tokens", *(f"`{way}`" for way in ways)], cells),
        source_line(record),
    ]


def long_videos_section(record: Record) -> list[str]:
    """What passes, sparse drafts and relevance cost as videos grow, random weights."""
    cells = [
        [
            row["model"],
            f"{row['visual_tokens']:,}",
            *(f"{1e3 * row[name]:.1f}" for name in ("plain_seconds", "judging_seconds", "sparse_draft_seconds")),
            f"{row['speedup_at_most']:.2f}x",
            "never" if row["break_even"] is None else f"{100 * row['break_even']:.0f} %",
            f"{100 * row['loose_share']:.2f} %",
        ]
        for row in record["rows"]
    ]
    header = ["layers of", "visual tokens", "plain, ms", f"{record['window'] + 1} tokens, ms", "sparse draft, ms"]
    header += ["STD at most", "STD pays from", "LVSpec's rule"]
    return [
        "### Long videos, random weights",
        "Random weights, so nothing is said of what would be accepted. STD keeps "
        f"{100 * record['kept']:.0f} % of the visual tokens and drafts {record['window']}: its speed-up if all of them "
        "were accepted, and the share of drafted tokens that has to be for it to pay, reckoned from the seconds beside "
        "them. LVSpec's rule: what it adds to a step in which the model drafts for itself so.",
        table(header, cells),
        source_line(record),
    ]


def video_section(
    records: dict[str, list[Record]], trained: Sequence[Record], studies: dict[str, Record | None]
) -> str:
    """Video-LLMs: what they see, methods side by side, looseness against its controls, drafters part by part.

    Args:
        records: of `vargen bench --task video`. trained: logs of training. studies: other records by name.
    """
    loose = studies["loose_verification"]
    parts = [
        "## Video-LLMs",
        "The shipped pair and videos of the project's own world; what the figures mean is in [video.md](video.md). "
        "Published models and figures are others'.",
    ]
    shown = {"": "its own", "_shuffled": "its own, frames shuffled", "_other": "another one", "_none": "a grey one"}
    shown["_pruned"] = "its own, part of its tokens"
    for record in trained:
        last = record["evaluations"][-1]
        kinds = [kind for kind in CLAIM_KINDS if kind in last]
        cells = [
            [words, *(f"{100 * last[kind + end]:.1f}" for kind in kinds)]
            for end, words in shown.items()
            if f"all{end}" in last
        ]
        parts += [
            f"### What {record['name']} sees",
            f"F1 of what captions of held-out videos claim, %, by what the model is shown, at the end of its training. "
            f"{record['steps']:,} steps, {record['samples']:,} videos, {record['seconds'] / 60:.0f} minutes. "
            f"{record['remark']}".strip(),
            table(["video", *kinds], cells),
        ]
    if seen := studies["what_videos_show"]:
        parts += seeing_section(seen)
    for name, rows in records.items():
        parts += [f"### {name.removeprefix('bench_').replace('_', ' ')}", video_table(rows), video_caption(rows)]
        if any(row.get("drafting_passes") is not None for row in rows):
            parts += ["What drafting took:", drafting_table(rows)]
    if overlap := studies["parallel_overlap_cpu"]:
        parts += overlap_section(overlap)
    if learned := [json.loads(path.read_text()) for path in sorted(RESULTS.glob("training_video-drafter-*.json"))]:
        parts += drafter_training_section(learned)
    if drafters := studies["video_drafters"]:
        parts += trained_drafters_section(drafters)
    if pair := studies["video_pair"]:
        parts += pair_section(pair)
    if memory := studies["video_memory"]:
        parts += video_memory_section(memory)
    if long := studies["long_videos"]:
        parts += long_videos_section(long)
    if loose:
        cells = [
            [
                row["label"],
                f"{row['accepted_length']:.2f}",
                f"{row['accept_rate']:.3f}",
                f"{100 * row['relaxed_share']:.1f} %",
                format_figure({"value": row["accuracy"], "interval": row["accuracy_interval"]}, 100.0, 1),
            ]
            for row in sorted(loose["rows"], key=lambda row: (row["position_shift"], row["kind"], row["dial"]))
        ]
        areas = f"{loose['relevance_area_under_curve']:.2f}"
        if other := loose.get("relevance_area_under_curve_from_prediction"):
            areas += f" at the drafted token, and {other:.2f} at the one that predicted it"
        parts += [
            "### Looseness and its controls",
            f"{loose['videos']} held-out videos, windows of 10, a tenth of the video for the drafter. Visual relevance "
            f"tells words about what is seen from fillers with an area under the curve of {areas} (0.5 is chance).",
            table(["rule", "accepted", "share accepted", "relaxed", "caption accuracy, %"], cells),
            video_source_line(loose),
        ]
    return "\n\n".join(parts)


def families_section(record: Record) -> str:
    """Families of transformers and diffusers, random models of them, against their own library."""
    rows: list[Record] = record["rows"]
    kinds = {kind: [row for row in rows if row["row"] == kind] for kind in ("speed", "planted", "memory")}

    def where(row: Record) -> list[str]:
        return [row["family"], row["dtype"], str(row["batch_size"])]

    def seconds(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f}"

    first = rows[0]
    parts = ["## Families of transformers and diffusers, against their own library"]
    if kinds["speed"]:
        shown = kinds["speed"]
        sizes = sorted({round(row["parameters"] / 1e6) for row in shown})
        parts += [
            f"Random models of {' to '.join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))} million "
            f"parameters, the classes of the library unmodified, {shown[0]['tokens']} tokens a picture (cut short: "
            "whole ones have 576 and more), sampled; the library's `generate` and `ar` here in turns, in one process, "
            "here with linear layers in the project's kernels, the library without, "
            f"median seconds of {first['settings']['repeats']}, prompts included, pixels not.",
            table(
                ["family", "precision", "batch", "library, s", "here, s", "times as fast"],
                [
                    [
                        *where(row),
                        seconds(row["seconds_library"]),
                        seconds(row["seconds_ours"]),
                        f"{row['speedup']:.2f}",
                    ]
                    for row in shown
                ],
            ),
        ]
    if kinds["planted"]:
        share = kinds["planted"][0]["planted_share"]
        parts += [
            f"*Planted*: {100 * share:.0f} % of the probability is given to a known picture at every place, so that "
            "guesses are right about so often. This says what windows cost on these models, not what others accept.",
            table(
                ["family", "precision", "batch", "passes, `ar`", "`scd`", "seconds, `ar`", "`scd`", "times as fast"],
                [
                    [
                        *where(row), str(row["passes_ar"]), str(row["passes_scd"]), seconds(row["seconds_ar"]),
                        seconds(row["seconds_scd"]), f"{row['speedup']:.2f}",
                    ]
                    for row in kinds["planted"]
                ],
            ),
        ]  # fmt: skip
    if kinds["memory"]:
        parts += [
            f"Memory beyond what the process held before drawing one picture of {kinds['memory'][0]['tokens']} tokens, "
            "at its peak; a process each. The window's target is planted, so that it takes few passes.",
            table(
                ["family", "precision", "way", "MiB beyond the model"],
                [
                    [
                        row["family"], row["dtype"], f"`{row['way']}`",
                        f"{(row['bytes_peak'] - row['bytes_before']) / 2**20:.0f}",
                    ]
                    for row in kinds["memory"]
                ],
            ),
        ]  # fmt: skip
    return "\n\n".join([*parts, source_line(record)])


def continuous_section(rows: Sequence[Record]) -> str:
    """Pictures an hour where rows take each other's places, over batches that wait for their slowest."""
    lines = [
        [
            row["method"],
            str(row["batch_size"]),
            str(row["pictures"]),
            *(
                f"{row[way][figure]:,}"
                for figure in ("pictures_an_hour", "passes_per_batch_of_pictures", "latency_seconds_p50")
                for way in ("fixed", "continuous")
            ),
            f"{row['speedup']:.2f}",
            str(row["pictures_that_differ"]),
        ]
        for row in rows
    ]
    header = ["method", "batch", "pictures", "an hour, fixed", "continuous", "passes a batch, fixed", "continuous"]
    header += ["latency s, fixed", "continuous", "speed-up", "other tokens"]
    return "\n\n".join(
        [
            "## Continuous batches",
            "A finished picture's place goes to the next prompt at once. Both ways draw the same prompts and seeds in "
            "turns. Latency is a picture's own time (fixed: that of its batch). At the end of so few pictures rows "
            "idle, which in thousands is of no account; prefills of rows that join count as passes.",
            table(header, lines),
            picture_source_line(rows[0]),
        ]
    )


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


def between_markers(text: str, content: str, name: str, region: str = "results") -> str:
    begin, end = f"<!-- {region}:begin -->", f"<!-- {region}:end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"build_results: error: {name} has no {begin} ... {end}")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def passes_section(record: Record) -> str:
    """What a pass costs, by model, precision, tokens and length, with kernels of our own and without."""

    def time_of(row: Record, way: str) -> str:
        return f"{row['median_ms'][way]:.1f}" if way in row["median_ms"] else "-"

    def share_of(row: Record, way: str) -> str:
        return f"{100 * row['bandwidth_share'][way]:.0f}" if way in row["bandwidth_share"] else "-"

    rows = sorted(
        record["rows"], key=lambda row: (row["model"], row["dtype"], row["batch"], row["length"], row["tokens"])
    )
    cells = [
        [
            row["model"], row["dtype"], str(row["tokens"]), str(row["length"]), time_of(row, "reference"),
            time_of(row, "plain"), time_of(row, "auto"), time_of(row, "int8"), time_of(row, "int8-dynamic"),
            f"{row['streaming_ms']:.1f}", share_of(row, "plain"), share_of(row, "auto"),
            f"{row['cache_bytes'] / 2**20:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    header = [
        "model",
        "precision",
        "tokens a pass",
        "tokens before",
        "public code, ms",
        "torch, ms",
        "own kernels, ms",
        "int8, ms",
        "int8-dynamic, ms",
    ]
    header += ["streaming the weights, ms", "share of bandwidth, torch, %", "own kernels, %", "cache, MiB"]
    return "\n\n".join(
        [
            "## Passes",
            "One pass of one guided picture (two rows), median milliseconds, the ways of a line in turns. Models with "
            "random weights have the named geometry and draw nothing. Streaming is the weights' bytes at the bandwidth "
            "that a plain sum reached in the same minute; it differs between lines because the machine's does. In int8 "
            "are the weights of the decoder's layers, for the own kernels (`--quantization`), with int8-dynamic also "
            "what is fed to them. "
            "[docs/passes.md](passes.md) says what the kernels are. Measured by `benchmarks/passes.py`.",
            table(header, cells),
            source_line(record),
        ]
    )


def generate_memory_section(record: Record) -> str:
    """Peak memory of a batch of large pictures against what there must be."""
    parts = ("weights", "cache", "step", "needed", "peak")
    cells = [
        [
            f"`{row['way'].split()[0]}`", row["way"].split()[1], row["dtype"],
            *(f"{row[f'bytes_{part}'] / 2**20:,.0f}" for part in parts), f"{row['ratio']:.2f}",
        ]
        for row in record["rows"]
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"### Memory of {record['batch_size']} pictures of {record['tokens']:,} tokens",
            f"{record['model']}, random weights, guided, at once; MiB over what the process held after its imports, a "
            "process each. Needed are weights, keys and values of every slot, and the largest step: logits, or what "
            "the tokenizer takes to make pixels of one picture. Measured by `benchmarks/generate_memory.py`.",
            table(["method", "until", "precision", *parts, "peak over needed"], cells),
            source_line(record),
        ]
    )


def build() -> dict[Path, str]:
    """Every file that is made of records, and what it should hold."""
    judged = load(f"judge_{MODEL}")
    decoding = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("plain_decoding_*.json"))]
    trained = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"training_{MODEL}-*.json"))]
    transformer = load(TRANSFORMER_RUN)
    sections = [
        "# Results",
        "Rebuilt by `python benchmarks/build_results.py` from the JSON in `benchmarks/results/`. All figures are of "
        "the shipped model on the project's own scenes, unless a row says otherwise.",
    ]
    card = []
    if judged:
        sections.append(judge_section(judged))
        card.append(judge_section(judged))
    if transformer:
        sections.append(entropy_section(transformer))
        card.append(entropy_section(transformer))
    if decoding:
        sections.append(decoding_section(decoding))
    benches = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("bench_*.json"))}
    videos = {name: benches.pop(name) for name in list(benches) if name.startswith("bench_video")}
    seen = (path for name in ("llm", "story") for path in sorted(RESULTS.glob(f"training_video-{name}*.json")))
    seeing = [json.loads(path.read_text()) for path in seen]
    if benches:
        sections.append(speculation_section(benches, load("speculation_overhead"), load("greedy_equality")))
    if compiled := load("compiled"):
        sections.append(compiled_section(compiled))
    if continuous := load("continuous"):
        sections.append(continuous_section(continuous))
    evaluations = load_evaluations()
    if evaluations:
        sections.append(quality_section(evaluations))
    if studies := load("vvs_studies"):
        sections.append(studies_section(studies))
    if heads := {start: record for start in ("new", "shipped") if (record := load(f"drafter_heads_{start}"))}:
        sections.append(heads_section(heads))
    if videos or seeing:
        sections.append(video_section(videos, seeing, {name: load(name) for name in VIDEO_STUDIES}))
    if families := load("families"):
        sections.append(families_section(families))
    if passes := load("passes"):
        sections.append(passes_section(passes))
    if memory := load("generate_memory"):
        sections.append(generate_memory_section(memory))
    if trained:
        sections.append(training_section(trained))
        card.append(training_section(trained))
    readme, model_card = ROOT / "README.md", ROOT / "vargen" / "weights" / MODEL / "README.md"
    files = {
        ROOT / "docs" / "results.md": "\n\n".join(sections) + "\n",
    }
    if PICKS_RUN in benches:
        picks = benches[PICKS_RUN]
        content = picks_table(picks, load("bench_weighted") or [], of_shipped_model(evaluations))
        files[readme] = between_markers(readme.read_text(), content, "README.md", "methods")
    if model_card.is_file():
        files[model_card] = between_markers(model_card.read_text(), "\n\n".join(card), "the model card")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in build().items() if not path.is_file() or path.read_text() != text]
    if check and stale:
        sys.exit("build_results: out of date: " + ", ".join(str(path.relative_to(ROOT)) for path in stale))
    if not check:
        speed = load(PICKS_RUN)
        evaluated = [row for rows in of_shipped_model(load_evaluations()).values() for row in rows]
        if speed:
            title = f"{MODEL}: wall clock of one picture at a time, {speed[0]['images']} prompts"
            if evaluated:
                title += f"; judged on {min(row['count'] for row in evaluated):,} or more where evaluated"
            PLOT.write_bytes(plot_tradeoff(tradeoff_rows(speed, evaluated), title=title))
        for path, text in build().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
