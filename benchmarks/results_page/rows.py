"""Rows of the grid side by side: what is published of such methods, beside what was measured here.

Belongs here: others' figures, each with its source, and in what they differ from ours. Does not belong here: the whole
record (`plain.py`).
"""

from __future__ import annotations

from results_page.records import Record, percent_points, table

_ZIPAR, _PJD, _SSD, _FLASHAR = (
    "ZipAR, arXiv 2412.04062",
    "PJD, arXiv 2606.05703",
    "SSD, arXiv 2606.20543",
    "FlashAR, arXiv 2605.09430",
)
_PUBLISHED: tuple[tuple[str, str, int, int, str], ...] = (
    (_ZIPAR, "LlamaGen-XL, 512 px", 1024, 185, "CLIP hardly tells windows apart"),
    (_ZIPAR, "Lumina-mGPT 7B, 768 px", 2352, 588, "CLIP hardly tells windows apart"),
    (_ZIPAR, "Emu3, 720 px", 8190, 713, "CLIP hardly tells windows apart"),
    (_PJD, "LlamaGen-XL, 512 px", 1024, 213, "FID 45.02 to 45.12, CLIP 28.59 to 28.67"),
    (_PJD, "Lumina-mGPT 7B, 768 px", 2357, 476, "FID 30.79 to 31.94"),
    (_SSD, "Janus-Pro-7B, 384 px", 576, 57, "DPG 84.23 to 81.27"),
    (_SSD, "Janus-Pro-7B, 384 px", 576, 80, "DPG 84.23 to 83.40"),
    (_FLASHAR, "Emu3.5-34B, 512 px", 1024, 63, "GenEval 80.48 to 80.29, a fine-tuned model"),
)
"""Source, model, forward passes of plain decoding and of the method, and what it costs. All are others' figures."""
_OURS: tuple[tuple[str, str, str], ...] = (
    (
        "zipar 4",
        _ZIPAR,
        "Places without a token are masked, where the released code sees zeros. A stand-in has a slot of its own.",
    ),
    (
        "pjd 5, 2 guesses",
        _PJD,
        "Guesses stand where they equal the target's draw; there a ratio decides, and lower rows postpone what it "
        "rejects. New guesses come from the row's last distribution; there they are random.",
    ),
    (
        "vvs-rows 4, 12 in rows 4 to 9, 1 guesses, 1 looks, 12 columns",
        _SSD,
        "No training: a row opens with copies of the row above. There trained heads guess it, and a whole row stands "
        "after some rounds.",
    ),
)
"""The label of a row of the record, what it is nearest to, and what differs."""


def published_section(record: Record | None) -> str:
    """The record `rows_side_by_side` beside what others print. Empty where there is no record."""
    if record is None:
        return ""
    measured = {row["label"]: row for row in record["rows"]}
    ours = [
        [
            f"`{label}`",
            f"{row['passes']:.0f}",
            f"{row['fewer_passes']:.1f}",
            percent_points(row["claims_against_plain"]),
            percent_points(row["numbers_against_plain"]),
            source,
            what,
        ]
        for label, source, what in _OURS
        if (row := measured.get(label)) is not None
    ]
    theirs = [
        [source, model, f"{plain:,}", f"{passes:,}", f"{plain / passes:.1f}", cost]
        for source, model, plain, passes, cost in _PUBLISHED
    ]
    parts = [
        "## Rows of the grid beside published figures",
        "What others print, of their models on their prompts:",
        table(["source", "model", "passes of plain decoding", "passes", "fewer", "what it costs"], theirs),
        "What was measured here, on the shipped model's grid of 16 by 16 tokens, in percentage points:",
        table(
            ["settings", "passes", "fewer", "claims", "number of objects", "nearest to", "what differs"],
            ours,
        ),
        "The two tables do not compare. Models, grids and prompts differ, and published steps leave the prefill out. "
        "A larger grid gains more: `zipar` with a window of 4 takes 156 passes for 1,024 tokens, by its formula. CLIP "
        "and FID hardly see what is lost first here, the number of objects.",
    ]
    return "\n\n".join(parts)
