"""The table of a published language model on real text: seconds and tokens beside transformers' `generate`.

Belongs here: which lines of the record are shown, and what the row of all kinds is. Does not belong here: measuring
(`benchmarks/real_text.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results_page.records import Record, source_line, table

_WAYS = {
    "plain": "plain, over `generate`",
    "generate, prompt lookup": "its prompt lookup, over `generate`",
    "default": "default, over plain",
    "head": "with a head, over plain",
}
_AGAINST = {
    "plain": "generate",
    "generate, prompt lookup": "generate",
    "default": "plain",
    "head": "plain",
}


def text_section(record: Record, training: Record | None) -> str:
    """Speed by kind of text, greedy in float32, one prompt at a time; then which tokens were equal.

    Args:
        record: of `benchmarks/real_text.py`.
        training: of the head; None: there is none.
    """
    lines: list[Record] = record["rows"]
    found = {(line["kind"], line["way"]): line for line in _chosen(lines, "float32", 0, 1)}
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    ways = [way for way in _WAYS if all("ms_a_column" in found.get((kind, way), {}) for kind in kinds)]
    rows = [[kind, *(_ratio(found, [kind], way) for way in ways)] for kind in kinds]
    rows.append(["all six, each by its tokens", *(_ratio(found, kinds, way) for way in ways)])
    rows.append(["all six, mean of the ratios", *(_mean(found, kinds, way) for way in ways)])
    parts = [table(["kind", *(_WAYS[way] for way in ways)], rows)] if ways else []
    parts += [_equality(lines)]
    if training is not None:
        parts.append(_learned(training))
    return "\n\n".join([*parts, source_line(record)])


def _chosen(lines: Sequence[Record], dtype: str, temperature: float, batch_size: int) -> list[Record]:
    wanted = {"dtype": dtype, "temperature": temperature, "batch_size": batch_size}
    return [line for line in lines if wanted.items() <= line.items()]


def _times(found: Mapping[tuple[str, str], Record], kinds: Sequence[str], way: str) -> float:
    """How many times as fast a way is, by the medians of its milliseconds a token; of several kinds, of their sums,
    where a kind counts as often as it has tokens."""
    other, tokens = _AGAINST[way], {kind: found[kind, "plain"]["passes"] for kind in kinds}
    mine, theirs = (sum(tokens[kind] * found[kind, each]["ms_a_column"][1] for kind in kinds) for each in (way, other))
    return theirs / mine


def _ratio(found: Mapping[tuple[str, str], Record], kinds: Sequence[str], way: str) -> str:
    return f"{_times(found, kinds, way):.2f}"


def _mean(found: Mapping[tuple[str, str], Record], kinds: Sequence[str], way: str) -> str:
    return f"{sum(_times(found, [kind], way) for kind in kinds) / len(kinds):.2f}"


def _equality(lines: Sequence[Record]) -> str:
    """A row for each number format and batch size: the texts with `generate`'s tokens, by way."""
    rows = []
    for dtype in ("float32", "bfloat16"):
        for batch_size in sorted({line["batch_size"] for line in lines}):
            counted: dict[str, list[int]] = {}
            for line in _chosen(lines, dtype, 0, batch_size):
                if "texts_equal" in line and line["way"] != "generate":
                    of_way = counted.setdefault(line["way"], [0, 0, 0, 0])
                    columns = line["columns_per_pass"] * line["passes"]
                    for place, value in enumerate((line["texts_equal"], line["texts"], columns, line["passes"])):
                        of_way[place] += value
            for way, (equal, texts, columns, passes) in counted.items():
                per_pass = f"{columns / passes:.2f}"
                rows.append([dtype, str(batch_size), way, f"{equal} of {texts}", per_pass])
    return table(["precision", "prompts at once", "way", "texts equal", "tokens a pass"], rows)


def _learned(training: Record) -> str:
    """What the head learned from, and how long."""
    settings: dict[str, Any] = training["settings"]
    last = training["evaluations"][-1]
    return (
        f"The head learned from {settings['num_prompts']:,} answers in {training['steps']:,} steps, "
        f"{training['seconds'] / 60:.0f} minutes of one thread. On prompts kept apart, the model "
        f"accepted {last['accepted_length']:.2f} of four guesses. {training['remark']}".strip()
    )
