"""What the pair of Video-LLMs sees, and what the methods make of it.

Belongs here: everything about videos. Does not belong here: pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metrics.tables import format_figure
from results_page.records import VIDEO_RUN, Record, bench_title, load_all, source_line, table

CLAIM_KINDS = ("setting", "objects", "events", "sequence", "all")
"""Of captions of videos; those of plain ones have no sequence."""


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
        f"plain decoding on the same code path. {source_line(row, VIDEO_RUN)}"
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
        source_line(record, VIDEO_RUN),
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
        source_line(trained[0], VIDEO_RUN),
    ]


def _by_length(rows: Sequence[Record], captions: bool) -> str:
    """Accepted length of Sparrow's parts by the number of visual tokens, and how right the target's captions are."""
    lengths = sorted({row["visual_tokens"] for row in rows})
    names = ("bridged", "multi_token", "text_only")
    cells = []
    for key in sorted({tuple(row[name] for name in names) for row in rows}, reverse=True):
        found = {row["visual_tokens"]: row for row in rows if tuple(row[name] for name in names) == key}
        marks = ["yes" if each else "no" for each in key]
        cells.append([*marks, *(f"{found[length]['accepted_length']:.2f}" for length in lengths)])
    if captions:
        known = {row["visual_tokens"]: row["caption_accuracy"] for row in rows}
        cells.append(["*target's captions, F1 %*", "", "", *(f"*{100 * known[length]:.0f}*" for length in lengths)])
    return table(["bridged states", "multi-token", "text only", *(f"{length:,}" for length in lengths)], cells)


def trained_drafters_section(record: Record) -> list[str]:
    """Studies of trained drafters, those that are recorded."""
    studies = record["studies"]
    parts = ["### Trained drafters, part by part"]
    parts.append("How each was trained is in the record of each study; chains, greedy.")
    if "length" in studies:
        parts += [
            "Sparrow's parts: accepted length against the number of visual tokens. Trained on videos of 256 visual "
            f"tokens; {studies['length']['videos']} held-out videos each. The target itself has seen videos of 1,024 "
            "visual tokens; what it can say of longer ones is in the last row.",
            _by_length(studies["length"]["rows"], captions=True),
            source_line(studies["length"], VIDEO_RUN),
        ]
    if "opening" in studies:
        parts += [
            "The same over the first 60 tokens of every answer. Longer videos have longer answers, of which a drafter "
            "trained on short ones has not seen the like; here the video alone is longer.",
            _by_length(studies["opening"]["rows"], captions=False),
            source_line(studies["opening"], VIDEO_RUN),
        ]
    if "longer" in studies:
        study = studies["longer"]
        cells = [
            [
                "text alone (Sparrow's)" if row["text_only"] else "the video too",
                f"{32 * row['learned_frames']:,}",
                f"{row['visual_tokens']:,}",
                format_figure(row["accepted"], 1.0, 2),
                format_figure(row["kept"], 100.0, 1),
            ]
            for row in study["rows"]
        ]
        parts += [
            f"Over the first 60 tokens again, {study['videos']} videos each, beside a drafter that learned from longer "
            "videos; intervals are 95 %, by the bootstrap over videos.",
            table(["drafts from", "learned from", "visual tokens", "accepted", "of that at 256, %"], cells),
            source_line(study, VIDEO_RUN),
        ]
    if "cost" in studies:  # in the order of methods, each against the length
        studies["cost"]["rows"].sort(key=lambda row: (row["method"], row["frames"]))
    even = studies["saturation"]["rows"][0]["even"] if "saturation" in studies else 0.0
    for name, words, header, cells_of in (
        (
            "cost",
            "What a forward of the drafter costs as the video grows, and what is accepted of chains of five; trained "
            "on 1,024 visual tokens:",
            ["drafter", "visual tokens", "MFLOP a forward", "ms a forward", "MFLOP for the prompt", "accepted"],
            lambda row: [
                row["method"],
                f"{row['visual_tokens']:,}",
                f"{row['flops_per_drafting_pass'] / 1e6:.2f}",
                f"{row['draft_milliseconds_per_pass']:.2f}",
                f"{row['prompt_flops'] / 1e6:.0f}",
                f"{row['accepted_length']:.2f}",
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
            parts += [words, table(header, [cells_of(row) for row in study["rows"]]), source_line(study, VIDEO_RUN)]
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
            "target's token; M, the tokens between two rejections, and how many more these are than with as many "
            "tokens evenly spread, of the same videos. `visual_gain` is UV-Prune after a quarter of the layers.",
            ["pruning", "kept", "objects, %", "A, %", "M", "over uniform"],
            lambda row: [
                row["pruning"],
                of_hundred(row["share"]),
                percent(row["object_share"]),
                percent(row["agreement"]),
                format_figure(row["mean_run_length"], 1.0, 2),
                format_figure(row["over_uniform"], 1.0, 2),
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
            caption = f"{study['videos']} held-out videos{frames}. {source_line(study, VIDEO_RUN)}"
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
        parts += [bench_title(name), video_table(rows), video_caption(rows)]
        if any(row.get("drafting_passes") is not None for row in rows):
            parts += ["What drafting took:", drafting_table(rows)]
    if overlap := studies["parallel_overlap_cpu"]:
        parts += overlap_section(overlap)
    if learned := [*load_all("training_video-drafter-*").values()]:
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
            source_line(loose, VIDEO_RUN),
        ]
    return "\n\n".join(parts)
