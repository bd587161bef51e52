"""Every figure of README and docs, found on its page and computed anew from its record.

    python benchmarks/figures.py        # exit 1, and every figure that has no record or is another one now

A figure is any number that stands outside code, or a number word before a unit. `figures.yaml` has for each page the
words around its figures. What stands in braces there is Python over the records, or over published sizes, with a
format, so that the words, once computed, must stand on the page. A name that ends in "_" stands for an expression under
`names`. Under `without_record` stand figures that nothing measures, by the reason. Numbers that are sizes or settings
wherever they stand are patterns under `no_figure`. Tables between markers are `build_results.py`'s; a test compares.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from results_page.records import percent_points

from vargen.base.reading import read_yaml

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REASONS = ("published", "reckoned", "setting", "asserted", "definition")
"""Of another's paper or machine; from sizes by arithmetic; chosen; a bound that a test asserts; what a word says."""
_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}
_WORDS |= {11: "eleven", 12: "twelve", 15: "fifteen", 20: "twenty", 50: "fifty", 60: "sixty", 100: "hundred"}
_UNITS = "processes|prompts|times|points|passes|seconds|minutes|hours|of 100|of a hundred|as (?:fast|long|many)"
_NUMBER = r"(?<![\w.`/:+-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w`/-]|[.,:]\d)"
_FIGURE = re.compile(rf"{_NUMBER}|\b(?:twice|{'|'.join(_WORDS.values())}) (?:{_UNITS})\b", re.IGNORECASE)
_NOT_TEXT = re.compile(r"```.*?```|<!-- (\w+):begin -->.*?<!-- \1:end -->|\]\([^)]*\)|arXiv \d+\.\d+", re.DOTALL)


@cache
def record(name: str) -> Any:
    """A record, or one study of it as NAME/STUDY; fields of objects are attributes."""
    name, _, study = name.partition("/")
    content = json.loads((RESULTS / f"{name}.json").read_text(), object_hook=lambda fields: SimpleNamespace(**fields))
    return getattr(content.studies, study) if study else content


def row(name: str, /, **where: Any) -> Any:
    """The only row of a record whose fields are so."""
    content = record(name)
    rows = content if isinstance(content, list) else content.rows
    found = [each for each in rows if all(getattr(each, key, None) == value for key, value in where.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {name} have {where}")
    return found[0]


def less(figure: Any, decimals: int = 1) -> str:
    """A difference of shares in percentage points, without its sign; words say whether it is less or more."""
    return f"{abs(100 * figure.value):.{decimals}f}"


def span(figure: Any, gained: bool = False) -> str:
    """Its interval: "0.2 to 5.7", or where it holds 0 "4.7 less to 0.4 more", or of a loss "0.4 gained to 4.7"."""
    low, high = (100 * bound for bound in figure.interval)
    if low < 0 < high:
        return f"{high:.1f} gained to {-low:.1f}" if gained else f"{-low:.1f} less to {high:.1f} more"
    return " to ".join(f"{bound:.1f}" for bound in sorted((abs(low), abs(high))))


def signed(figure: Any) -> str:
    """A difference and its interval: "-0.3 (-1.4 to +0.7)"."""
    return percent_points(vars(figure))


def ratios(name: str, *methods: str, decimals: int = 1) -> str:
    """Speed-ups of the slowest and the fastest process: "1.4 to 2.2"."""
    each = [speedup for method in methods for speedup in row(name, method=method).speedups]
    return f"{min(each):.{decimals}f} to {max(each):.{decimals}f}"


def quality(row: Any) -> str:
    """Cells of an evaluation: passes, never verified, claims, prompts, number of objects, precision and recall."""
    numbers, paired = row.judge.object_count, getattr(row, "against_plain", None)
    claims = f"{100 * row.judge_accuracy.value:.1f} %" + (f", {signed(paired.judge_accuracy)}" if paired else "")
    low, high = (100 * bound for bound in numbers.interval)
    cells = (
        f"{row.decoding.pass_reduction:.1f}",
        f"{100 * row.decoding.skipped_tokens / row.decoding.tokens:.0f} %",
        claims,
    )
    others = [f"{100 * each.value:.1f} %" for each in (row.judge_prompts, numbers, row.precision, row.recall)]
    others[1] += f" ({low:.1f} to {high:.1f})"
    return " | ".join((*cells, *others))


def worded(number: int) -> str:
    """The word of a number, else its figures."""
    return _WORDS.get(number, f"{number:,}")


def within(value: float, low: float, high: float, words: str) -> str:
    """The words where a value lies between bounds, else the value."""
    return words if low <= value <= high else f"{value:.3g}"


def cached(size: Mapping[str, Any], tokens: int, rows: int = 2) -> float:
    """GB of keys and values in bfloat16 of rows of so many tokens, by a model's published size."""
    heads = size.get("kv_heads", size["heads"])
    return 4 * size["layers"] * heads * size.get("head_width", size["width"] // size["heads"]) * tokens * rows / 1e9


def weights(size: Mapping[str, Any], embeddings: int = 2) -> float:
    """GB of a Llama's weights in bfloat16 by its published size, with so many matrices of its vocabulary."""
    head_width, kv_heads = size.get("head_width", size["width"] // size["heads"]), size.get("kv_heads", size["heads"])
    layer = 2 * size["width"] * head_width * (size["heads"] + kv_heads) + 3 * size["width"] * size["inner"]
    return 2 * (size["layers"] * layer + embeddings * size["words"] * size["width"]) / 1e9


HELPERS = {
    each.__name__: each
    for each in (record, row, less, span, signed, ratios, quality, worded, within, cached, weights, median)
}


def text_of(page: str) -> str:
    """The words of a page on one line, without code blocks, addresses and tables that are built."""
    return " ".join(_NOT_TEXT.sub(" ", (ROOT / page).read_text()).split())


def computed(words: str, names: Mapping[str, str]) -> str:
    """Words with what stands in braces computed; `names` stand for expressions."""

    def value(found: re.Match[str]) -> str:
        expression = re.sub(r"\b[a-z]\w*_\b", lambda name: f"({names[name[0]]})", found[1])
        return format(eval(expression, dict(HELPERS)), found[2] or "")

    return re.sub(r"\{([^{}]+?)(?::([,.\w]+))?\}", value, " ".join(words.split()))


def words_of(page: str, told: Mapping[str, Any]) -> list[str]:
    """What a page must say: words with figures of records, and with those that nothing measures."""
    measured = [computed(each, told["names"]) for each in told["measured"].get(page, ())]
    without = (each for reason in REASONS for each in told["without_record"].get(reason, {}).get(page, ()))
    return measured + [" ".join(each.split()) for each in without]


def figures_outside(text: str, *patterns: str) -> list[re.Match[str]]:
    """The figures of a text, without those within code or within what matches a pattern."""
    spans = [found.span() for each in (*patterns, "`[^`]*`") for found in re.finditer(each, text)]
    return [
        figure
        for figure in _FIGURE.finditer(text)
        if not any(first <= figure.start() and figure.end() <= last for first, last in spans)
    ]


def faults_in(text: str, words: list[str], no_figure: str) -> Iterator[str]:
    """Words that a page does not say, then figures that stand in none of its words."""
    yield from (f"does not say: {each}" for each in words if each not in text)
    for figure in figures_outside(text, *map(re.escape, words), no_figure):
        yield f"no record: ...{text[max(0, figure.start() - 60) : figure.end() + 30]}..."


def pages() -> list[str]:
    """README and every page of docs."""
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def main() -> int:
    told = read_yaml(ROOT / "benchmarks" / "figures.yaml")
    no_figure = "|".join(told["no_figure"])
    found = [
        f"{page}: {fault}" for page in pages() for fault in faults_in(text_of(page), words_of(page, told), no_figure)
    ]
    print("\n".join(found) or "every figure has its record")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
