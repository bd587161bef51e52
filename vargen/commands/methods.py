"""`vargen methods`: the decoding methods, one line each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vargen.commands.arguments import build_parser, parse
from vargen.methods.catalogue import WIDE, find_presets, methods_for, resolve_method

_TITLES = {
    "image": "For pictures (`vargen generate`)",
    "video": "For videos (`vargen caption`)",
    "text": "For text (`specdecode.generate`, in Python)",
}
_START = {"image": "jacobi", "video": "flash", "text": "prompt-lookup"}
"""What is taken by default where nothing is missing for it."""
_TEXT = {
    "ar": "plain decoding, one token per forward pass",
    "jacobi": "a window of guesses, redrawn until the model agrees; no drafter",
    "prompt-lookup": "what followed the newest tokens before is drafted again; no drafter",
}
"""Those of `specdecode.text.generate`, which imports torch; a draft model or a head is given instead of a name."""


def run(arguments: Sequence[str]) -> int:
    """List name, whether it is exact, and what it does."""
    parser = build_parser(
        "methods",
        "List the decoding methods: those of `vargen generate` for pictures, of `vargen caption` for videos, and of "
        "`specdecode.generate` for text. What an exact method makes is distributed exactly as with plain decoding; a "
        "relaxed one trades some of that for speed.",
    )
    parser.add_argument("--task", default=None, choices=[*_TITLES], help="only the methods of this task")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")
    values = parse(parser, arguments)
    asked = _TITLES if values.task is None else [values.task]
    rows = {task: _text_rows() if task == "text" else _rows(task) for task in asked}
    if values.json:
        print(json.dumps([row for of_task in rows.values() for row in of_task]))
        return 0
    for task, of_task in rows.items():
        _print(task, of_task)
    return 0


def _rows(task: Any) -> list[dict[str, Any]]:
    presets = {name: resolve_method(name, task=task) for name in find_presets(task)}
    described = {name: (method(), method.summary) for name, method in methods_for(task).items()}
    described |= {name: (preset, f"preset of {preset.name}") for name, preset in presets.items()}
    return [
        {"task": task, "name": name, "exact": method.exact, "summary": summary, "settings": method.to_dict()}
        for name, (method, summary) in described.items()
    ]


def _text_rows() -> list[dict[str, Any]]:
    return [
        {"task": "text", "name": name, "exact": True, "summary": summary, "settings": {"name": name}}
        for name, summary in _TEXT.items()
    ]


def _print(task: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table with a mark where to start, and the names of presets below."""
    presets = [row["name"] for row in rows if row["name"] != row["settings"]["name"]]
    methods = [row for row in rows if row["name"] not in presets]
    width = max(len(row["name"]) for row in methods)
    print(f"{_TITLES[task]}; start with *\n")
    for row in methods:
        mark = "*" if row["name"] == _START[task] else " "
        print(f"{row['name']:<{width}} {mark} {'exact' if row['exact'] else 'relaxed':<7}  {row['summary']}")
    wide = [name for name in presets if name.endswith(WIDE)]
    if presets:
        print("\nPresets, settings that have been measured: " + ", ".join(each for each in presets if each not in wide))
    if wide:
        print(f"Presets where rows cost little, as on a GPU or with AMX (`vargen bench` says it): {', '.join(wide)}")
    print()
