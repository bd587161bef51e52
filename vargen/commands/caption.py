"""`vargen caption VIDEO "question"`: an answer about a video, by any method."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from vargen.base.path_roles import READ
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.methods.catalogue import methods_for
from vargen.video.jobs.captioning import DEFAULT_QUESTION, CaptionConfig, caption


def run(arguments: Sequence[str]) -> int:
    """Answer, and print the text while it comes; with `--json` print the account instead."""
    methods = "; ".join(f"{method.name}: {method.summary}" for method in methods_for("video").values())
    parser = build_parser(
        "caption",
        "Answer a question about a video with a Video-LLM.",
        CaptionConfig,
        epilog=f"Methods: {methods}.",
    )
    parser.add_argument("video", help="video file, .gif, or folder of pictures")
    parser.add_argument("question", nargs="?", default=DEFAULT_QUESTION, help="question; by default for a description")
    add_switches(parser, quiet=False, json="print the account as JSON instead of the text")
    values = parse(parser, arguments)
    config = fill(CaptionConfig, values, video=READ)
    answer = caption(config, values.video, values.question, None if values.json else _show)
    if values.json:
        print(json.dumps({"video": values.video, "question": values.question, **answer.to_dict()}))
        return 0
    trace, first = answer.trace, answer.first_use
    passes = f"{trace.target_passes} target passes"
    if answer.draft_passes is not None:
        passes += f", {answer.draft_passes} of the drafter"
    if once := first.target_passes + first.draft_passes:
        passes += f", {once} more once to try this machine and model"
    print()
    print(
        f"{answer.method.name}{'' if answer.method.exact else ' (relaxed)'}: {len(answer.token_ids)} tokens, "
        f"{passes}, {trace.mean_accepted_length:.2f} draft tokens accepted per step, "
        f"{answer.seconds:.2f} s",
        file=sys.stderr,
    )
    return 0


def _show(text: str) -> None:
    print(text, end="", flush=True)
