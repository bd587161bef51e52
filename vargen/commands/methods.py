"""`vargen methods`: the decoding methods, one line each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vargen.commands.arguments import build_parser, parse
from vargen.methods.base import TASKS
from vargen.methods.catalogue import find_presets, methods_for, resolve_method

_TITLES = {"image": "For pictures (`vargen generate`)", "video": "For videos (`vargen caption`)"}


def run(arguments: Sequence[str]) -> int:
    """List name, whether it is exact, and what it does."""
    parser = build_parser(
        "methods",
        "List the decoding methods: those of `vargen generate` for pictures, and those of `vargen caption` for videos. "
        "What an exact method makes is distributed exactly as with plain decoding; a relaxed one trades some of that "
        "for speed.",
    )
    parser.add_argument("--task", default=None, choices=list(TASKS), help="only the methods of this task")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")
    values = parse(parser, arguments)
    rows = []
    for task in TASKS if values.task is None else [values.task]:
        methods = methods_for(task)
        presets = {name: resolve_method(name, task=task) for name in find_presets(task)}
        described = {
            **{name: (method(), method.summary) for name, method in methods.items()},
            **{name: (method, f"preset of {method.name}") for name, method in presets.items()},
        }
        rows += [
            {"task": task, "name": name, "exact": method.exact, "summary": summary, "settings": method.to_dict()}
            for name, (method, summary) in described.items()
        ]
        if values.json:
            continue
        print(f"{_TITLES[task]}\n")
        width = max(map(len, methods))
        for name, method in methods.items():
            print(f"{name:<{width}}  {'exact' if method.exact else 'relaxed':<7}  {method.summary}")
        if presets:
            print("\nPresets, settings that have been measured: " + ", ".join(presets))
        print()
    if values.json:
        print(json.dumps(rows))
    return 0
