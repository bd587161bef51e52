"""Prompts of the public benchmarks: each with its groups, and with what a picture of it must show.

Does not belong here: reading files, and looking at pictures (`metrics.picture_checks`).

| format | as published | groups | what is checked |
|---|---|---|---|
| `parti` | `PartiPrompts.tsv` (Yu et al., arXiv 2206.10789): Prompt, Category, Challenge | category, challenge | |
| `geneval` | `evaluation_metadata.jsonl` (Ghosh et al., arXiv 2310.11513): tag, include, exclude | task | objects |
| `dpg` | `dpg_bench.csv` (Hu et al., arXiv 2403.05135): a question a row; or its folder of texts | source | questions |
| `hpsv2` | the folder of `anime.json`, `photo.json`, ... (Wu et al., arXiv 2306.09341) | style | |

A format may come in any file that prompts come in, under the same names of columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from metrics.composition import COLOURS, POSITIONS, Composition, Wanted
from metrics.errors import DataError

MOST_WANTED = 100
"""Objects of a class, and entries of a list: benchmarks ask for single ones."""
_TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")


@dataclass(frozen=True)
class Question:
    """One question about a picture, of DPG-Bench.

    Args:
        text: to be answered by yes or no.
        category: what it is about, such as "entity".
        depends_on: places, in the prompt's questions, of those without whose "yes" a "yes" counts for nothing.
    """

    text: str
    category: str
    depends_on: tuple[int, ...] = ()


@dataclass(frozen=True)
class BenchmarkPrompt:
    """A prompt as a benchmark has it.

    Args:
        prompt: to draw.
        groups: names by kind, such as {"category": "Animals"}.
        composition: objects that the picture must show; None where none are named.
        questions: about the picture.
    """

    prompt: str
    groups: Mapping[str, str] = field(default_factory=dict)
    composition: Composition | None = None
    questions: tuple[Question, ...] = ()


Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Rows of a file, each behind its place for errors, by names of columns in lower case. Each has a `prompt`."""


def _parti(rows: Rows) -> list[BenchmarkPrompt]:
    return [
        BenchmarkPrompt(
            row["prompt"],
            {"category": _text(row, "category", where), "challenge": _text(row, "challenge", where)},
        )
        for where, row in rows
    ]


def _geneval(rows: Rows) -> list[BenchmarkPrompt]:
    found = []
    for where, row in rows:
        task = _text(row, "tag", where)
        if task not in _TASKS:
            raise DataError(f"{where} tag must be one of {', '.join(_TASKS)}, got {task[:50]!r}")
        include, exclude = (_wanted(row.get(name), f"{where} {name}") for name in ("include", "exclude"))
        if not include:
            raise DataError(f"{where} include names no object")
        found.append(BenchmarkPrompt(row["prompt"], {"task": task}, Composition(include, exclude, task)))
    return found


def _wanted(entries: Any, where: str) -> tuple[Wanted, ...]:
    """Objects of GenEval's "include" or "exclude"; tables hold the list as JSON."""
    if isinstance(entries, str):
        try:
            entries = json.loads(entries or "[]")
        except (ValueError, RecursionError):
            raise DataError(f"{where} is not JSON") from None
    entries = [] if entries is None else entries
    if not isinstance(entries, list) or len(entries) > MOST_WANTED:
        raise DataError(f"{where} must be a list of at most {MOST_WANTED} objects")
    wanted: list[Wanted] = []
    for entry in entries:
        entry = entry if isinstance(entry, dict) else {}
        name, count, colour, position = (entry.get(key) for key in ("class", "count", "color", "position"))
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"{where} must say the class of every object")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_WANTED:
            raise DataError(f"{where} must say a count of {name[:50]!r} from 1 to {MOST_WANTED}")
        if colour is not None and colour not in COLOURS:
            raise DataError(f"{where}: color must be one of {', '.join(COLOURS)}")
        if position is not None:
            position = tuple(position) if isinstance(position, list | tuple) else ()
            is_pair = len(position) == 2 and position[0] in POSITIONS
            if not is_pair or not _is_number(str(position[1])) or int(position[1]) >= len(wanted):
                raise DataError(
                    f"{where}: position must be one of {', '.join(POSITIONS)} and the place of an entry above"
                )
            position = (position[0], int(position[1]))
        wanted.append(Wanted(name, count, colour, position))
    return tuple(wanted)


def _dpg(rows: Rows) -> list[BenchmarkPrompt]:
    """A prompt's rows follow each other; its questions are numbered, and those that they depend on are named by number,
    0 for none."""
    items: list[tuple[str, str, dict[int, tuple[str, str, str]], str]] = []
    for where, row in rows:
        prompt, name = row["prompt"], str(row.get("item_id") or row.get("id") or "")
        if not name:
            raise DataError(f"{where} needs a column item_id")
        if not items or items[-1][0] != name:
            items.append((name, prompt, {}, where))
        if prompt != items[-1][1]:
            raise DataError(f"{where} text must be that of the rows above with item_id {name[:50]!r}")
        if row.get("proposition_id") is None:
            continue  # texts of its folder come without questions
        number = str(row["proposition_id"]).strip()
        if not _is_number(number) or int(number) in items[-1][2]:
            raise DataError(f"{where} proposition_id must be a number of its own, got {number[:50]!r}")
        text, kind = (_text(row, key, where) for key in ("question_natural_language", "category_broad"))
        items[-1][2][int(number)] = (text, kind, str(row.get("dependency") or "0"))
    return [
        BenchmarkPrompt(prompt, {"source": re.sub(r"\d+$", "", name) or "numbered"}, None, _questions(asked, where))
        for name, prompt, asked, where in items
    ]


def _questions(asked: Mapping[int, tuple[str, str, str]], where: str) -> tuple[Question, ...]:
    places = {number: place for place, number in enumerate(asked)}
    found = []
    for number, (text, kind, named) in asked.items():
        parents = [each.strip() for each in named.split(",")]
        others = places.keys() - {number}
        if not all(_is_number(each) and (each == "0" or int(each) in others) for each in parents):
            raise DataError(
                f"{where} dependency must name other questions of the same prompt, or 0; got {named[:50]!r}"
            )
        found.append(Question(text, kind, tuple(places[int(each)] for each in parents if each != "0")))
    return tuple(found)


def _hpsv2(rows: Rows) -> list[BenchmarkPrompt]:
    prompts = []
    for where, row in rows:
        if "list" not in row:
            raise DataError(
                f"{where} hpsv2 is a folder of lists, a style each: anime.json, photo.json; name the folder"
            )
        prompts.append(BenchmarkPrompt(row["prompt"], {"style": str(row["list"])}))
    return prompts


def _is_number(text: str) -> bool:
    """Whether a text is the number of a row; Python refuses to read thousands of digits."""
    return text.isdecimal() and len(text) <= 6


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where} needs a text in a column {name}")
    return value.strip()


FORMATS: dict[str, Callable[[Rows], list[BenchmarkPrompt]]] = {
    "parti": _parti,
    "geneval": _geneval,
    "dpg": _dpg,
    "hpsv2": _hpsv2,
}
"""Functions that make prompts of rows, by the name of the format. They raise DataError for a row of another form. A new
one is a function and a line here."""
