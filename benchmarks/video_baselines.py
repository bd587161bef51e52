"""Baselines of the papers' tables beside vargen's methods, on held-out videos of the scene world.

    python benchmarks/video_baselines.py --videos 40 --methods std,fastv,sparsevlm,assisted

The methods are those of `baselines/` and any that `vargen methods --task video` lists, each with its defaults. What a
figure means, `vargen bench --task video` says. Writes benchmarks/results/video_baselines.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines import METHODS, resolve_with_baselines
from pair_options import add_pair_options

from metrics.provenance import provenance, write_result
from metrics.tables import format_video_table
from scenes.captions.story_captions import MAX_CAPTION_TOKENS
from scenes.cases import scene_video_cases
from scenes.judge.claim_judge import judge_answer
from vargen.runs.progress import progress
from vargen.video.jobs.video_benchmark import run_video_benchmark
from vargen.video.models.frames import CAPTION_PROMPTS
from vargen.video.pipelines.answering import VideoAnswerer

RESULT = Path(__file__).resolve().parent / "results" / "video_baselines.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="beside plain decoding")
    parser.add_argument("--videos", type=int, default=40)
    parser.add_argument("--max_new_tokens", type=int, default=MAX_CAPTION_TOKENS)
    add_pair_options(parser)
    options = parser.parse_args()
    methods = {name: resolve_with_baselines(name) for name in ("ar", *options.methods.split(","))}
    cases = scene_video_cases(options.videos, "heldout", options.num_frames, options.image_size)
    with (
        VideoAnswerer.from_pretrained(options.model, options.draft_model) as answerer,
        progress(len(cases) * len(methods), "answers", options.quiet) as shown,
    ):
        rows = run_video_benchmark(
            answerer,
            methods,
            cases,
            CAPTION_PROMPTS[0],
            judge=judge_answer,
            shown=shown,
            max_new_tokens=options.max_new_tokens,
            temperature=0.0,
        )
    print(format_video_table(rows))
    if not options.dry_run:
        write_result(RESULT, {"provenance": provenance(), "videos": options.videos, "rows": rows})


if __name__ == "__main__":
    main()
