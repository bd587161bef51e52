"""`vargen methods`: the decoding methods, one line each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vargen.commands.arguments import build_parser, parse
from vargen.methods.catalogue import METHODS, find_presets, resolve_method
from vargen.methods.video.catalogue import VIDEO_METHODS


def run(arguments: Sequence[str]) -> int:
    """List name, whether it is exact, and what it does."""
    parser = build_parser(
        "methods",
        "List the decoding methods that `vargen generate --method` takes, or with `--task video` those of `vargen "
        "caption`. What an exact method makes is distributed exactly as with plain decoding; a relaxed one trades some "
        "of that for speed.",
    )
    parser.add_argument("--task", default="image", choices=["image", "video"], help="of which task")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")
    values = parse(parser, arguments)
    methods = VIDEO_METHODS if values.task == "video" else METHODS
    rows = [
        {"name": method.name, "exact": method.exact, "summary": method.summary, "settings": method().to_dict()}
        for method in methods
    ]
    presets = {} if values.task == "video" else {name: resolve_method(name) for name in find_presets()}
    if values.json:
        rows += [
            {"name": name, "exact": method.exact, "summary": f"preset of {method.name}", "settings": method.to_dict()}
            for name, method in presets.items()
        ]
        print(json.dumps(rows))
        return 0
    width = max(len(method.name) for method in methods)
    for method in methods:
        print(f"{method.name:<{width}}  {'exact' if method.exact else 'relaxed':<7}  {method.summary}")
    if presets:
        print("\nPresets, settings that have been measured: " + ", ".join(presets))
    return 0
