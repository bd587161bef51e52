"""Tables of records as they were recorded: a column for each field. Most records need no more.

Belongs here: which records are shown so, their titles, and which of their fields. Does not belong here: tables whose
cells are computed (`pictures.py`, `speed.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results_page.records import DRAFTER_RUN, TRANSFORMER_RUN, VIDEO_RUN, Record, source_line, table

_LLM = "Videos of the project's own world and its own pair of Video-LLMs. "
_BENCH = ("method", "exact", "mean_accepted_length", "decode_speedup", "end_to_end_speedup", "relaxed_share")
_BENCH += ("equal_to_plain", "caption_accuracy", "retention", "accepted_per_drafting_pass", "draft_seconds_per_step")
_SIDE_BY_SIDE = (
    *("label", "pictures", "passes", "rows_fed", "unverified"),
    *("claims", "claims_against_plain", "numbers", "numbers_against_plain"),
)
TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "host_work": (
        "What the host does in a step",
        "One picture at a time, one thread. Calls: of torch and of the kernels; the outside share of processor "
        "time is neither in the target's nor in the drafter's forward passes. Compiled: the most that a step costs the "
        "host where graphs are captured (on tapes here), a replay included.",
        ("method", "calls", "outside_share", "milliseconds_outside", "launches_compiled"),
    ),
    "family_loops": (
        "Loops of families that draw token by token",
        "Random models, and *planted* acceptance: what a step does around its passes, beside LlamaGen's. Calls: of "
        "torch and of the kernels; a forward pass counts as one. Processor time of one thread, on a busy machine.",
        ("method", "family", "calls", "milliseconds_outside", "accepted_length_planted", "passes_planted"),
    ),
    "diffusers_suite": (
        "diffusers' own tests of a pipeline",
        "The `PipelineTesterMixin` of a checkout of diffusers on tiny pipelines with random weights "
        "(`benchmarks/diffusers_suite.py`). The record names every test with what came of it, and why it does not "
        "apply or was skipped.",
        (),
    ),
    "greedy_equality": (
        "Greedy decoding, token for token",
        "Pictures whose 256 tokens all equal plain decoding's, float32. A near tie differs first where the two best "
        "logits are all but equal.",
        (),
    ),
    "projection": (
        "Projection: published models on GPUs that nobody here has",
        "A projection, not a measurement: passes, rows fed and launches that were counted here, with a card's "
        "bandwidth, arithmetic and launch time, and the shipped model's acceptance. A "
        "cell is eager / captured seconds, and captured over plain captured.",
        (
            *("model", "card", "method", "passes", "batch 1", "batch 8", "what", "captured", "published_ms_a_token"),
            *("projected_ms_a_token", "error_percent", "batch", "tokens", "measured_ms", "projected_ms"),
        ),
    ),
    "passes": (
        "Passes",
        "One pass of guided pictures, median milliseconds, the ways of a line in turns. The roof is the greater of two "
        "times: reading the weights, and all products at the speed of products on registers alone.",
        ("model", "dtype", "batch", "tokens", "length", "median_ms auto", "median_ms int8", "roof_share auto"),
    ),
    "passes_reference": (
        "Passes beside the public LlamaGen code",
        "One guided token by a checkout of the public code and by this project, in turns, random weights.",
        ("model", "dtype", "median_ms", "bandwidth_share auto"),
    ),
    "guided_tokens": (
        "Guidance of the first tokens alone",
        "In bfloat16. Rows: what a picture of 256 tokens feeds, two for a guided token. Differences are to plain "
        "decoding with guidance of all tokens, over the same captions and seeds.",
        (
            *("method", "guided_tokens", "pictures", "passes", "rows"),
            *("claims", "claims_against_plain", "numbers", "numbers_against_plain"),
        ),
    ),
    "rows_side_by_side": (
        "Rows of the grid side by side",
        "Shares that the judge finds right, and their differences to plain decoding over the same captions and seeds. "
        "Captions are the first held-out ones; windows by row were chosen on the first 400 of them. What breaks first "
        "is the number of objects. The captions of this sheet are the first whose number plain decoding gets right and "
        "`zipar` with a window of 4 gets wrong.\n\n![Objects too many, missing and "
        "merged](images/rows_side_by_side.png)",
        _SIDE_BY_SIDE,
    ),
    "rows_side_by_side_bfloat16": (
        "Rows of the grid side by side, in bfloat16",
        "As above, with plain decoding in bfloat16.",
        _SIDE_BY_SIDE,
    ),
    "rows_side_by_side_256": (
        "Rows of the grid side by side, 32 by 32 tokens",
        "The model of 256 pixels, `scenes-256`, in bfloat16: plain decoding takes 1,024 passes. Prompts: pictures with "
        "all claims right. The judge reads pictures of 128 pixels, to which these are resized.",
        (*_SIDE_BY_SIDE, "prompts"),
    ),
    "rows_side_by_side_fresh": (
        "Rows of the grid side by side, on captions by which nothing was chosen",
        "As in the first table, in float32, with the captions from 1,000 to 1,999.",
        _SIDE_BY_SIDE,
    ),
    "picture_decoder": (
        "Faster ways to decode pictures",
        "The codes of 100 held-out captions, drawn by plain decoding, as pictures. `float32, as stored` has the "
        "kernels' memory as in the weights' file; the others have channels last. Differences to it are in steps of "
        "255. Verdicts are all that the judge says of the pictures. Rounding depends on the processor.",
        (
            *("label", "largest_difference", "mean_difference", "pixels_that_differ"),
            *("claims", "numbers", "verdicts", "verdicts_that_differ"),
        ),
    ),
    "generate_memory": ("Memory of eight pictures of 1,024 tokens", "LlamaGen-B and VQ-16, random weights.", ()),
    "vvs_likeness": (
        "How alike drafted paths and near features are",
        "LANTERN's trees of 59 nodes on 16 prompts: cosines of paths, and of features so many tokens apart.",
        (),
    ),
    "bench_video": ("Answers about videos, greedy", _LLM, _BENCH),
    "bench_video_sampled": ("Answers about videos, sampled", _LLM, _BENCH),
    "video_baselines": ("Baselines of the papers' tables", _LLM, _BENCH),
    "loose_verification": (
        "Loose verification and its controls",
        _LLM
        + "Captions by LVSpec's rule, as it comes (`relevance`) and as the paper prints it, and by rules that cannot "
        "know what matters: chance, another video's hidden states, and the target's entropy. `two floors` has those of "
        "`lvspec`, `one floor` that of `lvspec-min-p`, and other rules none. Windows of ten; the draft model sees an "
        "even 2 % or 10 % of the video. `dial` is lambda, or FLy's threshold; 0 is the exact walk. "
        "`against plain` and `against chance` are differences of F1 with intervals over the same videos. The study "
        "`equal length` compares rules where they accept as much, so many times the exact walk's. `length by theorem` "
        "is what theorem 2.2 promises; where mismatches are, `length if all others were loosened` is the most.",
        (),
    ),
    "video_pair": (
        "What a pair of Video-LLMs is like",
        _LLM
        + "Study `pruning`: ways to choose what the draft model sees. `objects` and `no object` know the truth, and "
        "`visual_gain, half` spreads half of the tokens evenly. `over random` is the difference of tokens between two "
        "rejections, over the same videos. Study `self drafting`: the same of the target in the draft model's place. "
        "Study `language`: a draft model that sees a share of the video, 0 being FLASH's language-only baseline, and "
        "draft heads, which read the target's hidden states.",
        (
            *("pruning", "share", "agreement", "mean_run_length", "over_random", "accuracy", "drafts", "sees"),
            *("accepted_of_four", "model", "retention", "method", "layers", "frames", "visual_tokens"),
        ),
    ),
    "paper_tables": (
        "Tables of three papers on the pair",
        _LLM + "ParallelVLM's, Sparrow's and FLASH's, with what the papers print beside, of their models and machines "
        "(`paper ...`). Intervals are over videos. `accepted` has no bonus token; `a pass` is per forward pass of the "
        "drafter. A longer video is the same one with each frame shown several times, and `kept` is what is accepted "
        "of it over what is of the shortest. `decoding` and `end to end` are speed-ups over plain decoding; `over` "
        "divides SpecVLM's seconds of decoding, or the prompt's in turn, by the row's. `share` is of the multimodal "
        "row's operations.",
        (
            *("method", "visual_tokens", "accepted", "a_pass", "accuracy", "kept", "prefill_share", "decoding"),
            *("over", "window", "share", "paper_accepted", "paper_a_pass", "paper_over", "paper_window", "paper_share"),
            *("paper_decoding", "paper_prefill_share"),
        ),
    ),
    "parallel_overlap_cpu": ("Target and drafter at the same time", "Two stacks with random weights.", ()),
    "video_memory": ("Memory of an answer", "Random weights, beside `generate` of transformers.", ()),
    "long_videos": ("Long videos", "Random weights; seconds of one pass, and from which acceptance STD pays.", ()),
}
"""Title, explanation and fields (none: all) by record, in the order of the page."""


ONLY_IN_RECORDS = ("curves", "Launches that were counted", "settings", "scores", "views")
"""Studies of many rows, which plots and other studies read."""


def plain_section(name: str, record: Any) -> str:
    """A record of `TABLES`, with one table for each of its studies if it has several."""
    title, text, fields = TABLES[name]
    runs = () if "andom" in text else (VIDEO_RUN,) if text.startswith(_LLM) else (TRANSFORMER_RUN, DRAFTER_RUN)
    first = record[0] if isinstance(record, list) else record
    parts = [f"## {title}", text.strip()]
    if isinstance(first.get("studies"), dict):
        for study, own in record["studies"].items():
            if study in ONLY_IN_RECORDS:
                continue
            count = [f"{own['videos']} videos."] if "videos" in own else []
            parts += [f"### {study}", *count, plain_tables(own["rows"], fields), source_line(own, *runs)]
        return "\n\n".join(parts)
    if isinstance(record, list):
        rows = record
    elif "heads" in record:
        rows = [{"name": head, **figures} for head, figures in record["heads"].items()]
    else:
        rows = record.get("rows", [record])
    return "\n\n".join([*parts, plain_tables(rows, fields), source_line(first, *runs)])


def training_section(records: Sequence[Record]) -> str:
    """The training runs behind shipped weights, with their last figures on held-out data."""
    rows = [
        {
            **{name: record[name] for name in ("name", "steps", "samples")},
            "minutes": round(record["seconds"] / 60),
            "held_out": ", ".join(f"{key} {_text(value)}" for key, value in last[1:4]),
            "commit": record["provenance"]["commit"],
        }
        for record in records
        if record["evaluations"] and (last := [*record["evaluations"][-1].items()])
    ]
    return "\n\n".join(["## Training", plain_tables(rows), source_line(records[-1])])


def plain_tables(rows: Sequence[Record], fields: Sequence[str] = ()) -> str:
    """Rows with a column for each field; rows with other fields get a table of their own.

    Fields of a nested record become columns, lists and source records are left out, and fields with the same value in
    every row stand in a line below the table.

    Args:
        rows: what was recorded.
        fields: the fields that are shown, those of nested records as "outer inner"; none: all.
    """
    kinds: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        cells = {name: cell for name, cell in _flat(row).items() if not fields or _shown(name, fields)}
        kinds.setdefault(tuple(cells), []).append(cells)
    parts = []
    for names, alike in kinds.items():
        same = [name for name in names if len(alike) > 1 and len({cells[name] for cells in alike}) == 1]
        columns = [name for name in names if name not in same]
        header = [name.replace("_", " ") for name in columns]
        parts.append(table(header, [[cells[name] for name in columns] for cells in alike]))
        if same:
            words = ", ".join(f"{name.replace('_', ' ')} {alike[0][name]}" for name in same)
            parts.append(f"In every row: {words}.")
    return "\n\n".join(parts)


def _shown(name: str, fields: Sequence[str]) -> bool:
    return name in fields or name.split(" ")[0] in fields


def _flat(row: Record) -> dict[str, str]:
    cells: dict[str, str] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            figure = value.get("value", value.get("accuracy"))
            if "interval" in value and figure is not None:
                ends = value["interval"]
                cells[name] = _text(figure) + (f" ({_text(ends[0])} to {_text(ends[1])})" if ends else "")
            elif name not in ("provenance", "settings"):
                cells |= {f"{name} {inner}": text for inner, text in _flat(value).items()}
        elif "bytes" in name and isinstance(value, int):
            cells[name.replace("bytes", "MiB")] = f"{value / 2**20:,.0f}"
        elif not isinstance(value, list):
            cells[name] = _text(value)
    return cells


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
