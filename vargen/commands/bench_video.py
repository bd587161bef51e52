"""`vargen bench --task video`: methods side by side on the same videos and seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from metrics.tables import format_video_table
from vargen.bounds import (
    MAX_FRAMES,
    MAX_NEW_TOKENS,
    MAX_PICTURES,
    MAX_PIXELS,
    MAX_SEED,
    MAX_WARM_UP,
    check_numbers,
    check_sampling,
    check_text,
)
from vargen.commands.caption import DEFAULT_QUESTION
from vargen.commands.options import COMPARED_SPLITS, build_parser, check_place, fill, parse
from vargen.errors import UserError
from vargen.methods.base import MethodConfig
from vargen.methods.catalogue import read_method_list
from vargen.models.options import check_dtype
from vargen.resources import find_video_model
from vargen.runs.files import write_atomic
from vargen.runs.records import own_calls
from vargen.video.methods.catalogue import resolve_video_method

_PASSED_ON = ("device", "dtype", "warm_up", "max_new_tokens", "temperature", "top_p", "seed")


@dataclass(frozen=True)
class BenchVideoConfig:
    """What to compare, and on what.

    Args:
        methods: names of methods, or LABEL=NAME for one of several settings of it, separated by commas. Plain
            decoding, "ar", is added where it is missing: every ratio divides by it.
        method_options: settings that differ from the defaults, by label, such as
            `--method_options.lvspec.loose_ratio 0.5`.
        videos: how many videos, of things that training never showed.
        split: "heldout" for combinations that training never showed, "all" for any.
        question: asked about each.
        model: folder of a Video-LLM with its processor, or the name of a shipped one; null for the shipped default.
        draft_model: likewise, the smaller one of a pair.
        num_frames: of each video.
        image_size: side of the rendered frames in pixels.
        seed: of the first video and answer.
        warm_up: answers of each method that do not count, before the first that does.
        max_new_tokens: at most so many per answer.
        temperature: of sampling; 0 always takes the likeliest token.
        top_p: of sampling.
        device: "cpu", "cuda", "cuda:1"; "auto" takes a GPU if there is one.
        dtype: float32, bfloat16, float16; "auto" is bfloat16 on a GPU and float32 on a CPU.
        json: file for the rows; "-" prints them to standard output, and nothing else. What has been measured is kept
            beside it in FILE.calls.jsonl until the end, and the same command goes on from there.
    """

    methods: str = "ar,sd,specvlm,std,fly,lvspec,parallelvlm,assisted"
    method_options: dict[str, Any] = field(default_factory=dict)
    videos: int = 100
    split: str = "heldout"
    question: str = DEFAULT_QUESTION
    model: str | None = None
    draft_model: str | None = None
    num_frames: int = 8
    image_size: int = 96
    seed: int = 0
    warm_up: int = 1
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    device: str = "auto"
    dtype: str = "auto"
    json: str | None = None

    def __post_init__(self) -> None:
        check_numbers(
            self,
            {
                "videos": (1, MAX_PICTURES),
                "num_frames": (4, MAX_FRAMES),
                "image_size": (8, MAX_PIXELS),
                "warm_up": (0, MAX_WARM_UP),
                "seed": (0, MAX_SEED),
                "max_new_tokens": (1, MAX_NEW_TOKENS),
            },
        )
        check_sampling(self.temperature, None, self.top_p)
        check_text("question", self.question)
        if self.split not in COMPARED_SPLITS:
            raise UserError(f"split must be one of {', '.join(COMPARED_SPLITS)}, got {self.split!r}")
        check_dtype(self.dtype)
        check_place("json", self.json)

    def contenders(self) -> dict[str, MethodConfig]:
        """The methods by label, plain decoding first.

        Raises:
            UserError: an unknown method, or options for one that is not compared.
        """
        chosen = read_method_list(self.methods, self.method_options, "methods", resolve_video_method)
        return {"ar": resolve_video_method("ar"), **chosen}


def run(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the rows."""
    parser = build_parser(
        "bench --task video",
        "Ask several methods about the same videos, interleaved, after warm-up. Figures are of this machine; keep "
        "others off it meanwhile.",
        BenchVideoConfig,
        epilog="Accepted lengths leave out the bonus token; speed-ups are per token; docs/methods.md says what each "
        "figure means.",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    values = parse(parser, arguments)
    config = fill(BenchVideoConfig, values)
    contenders = config.contenders()
    find_video_model(config.model)  # before anything slow

    from vargen.jobs.video_benchmark import benchmark_video_model
    from vargen.world.cases import scene_video_cases
    from vargen.world.judge.judging import judge_answer

    with own_calls(config.json) as calls:
        rows = benchmark_video_model(
            config.model,
            config.draft_model,
            contenders,
            scene_video_cases(config.videos, config.split, config.num_frames, config.image_size, config.seed),
            config.question,
            described={"split": config.split, "frames": [config.num_frames, config.image_size]},
            judge=judge_answer,
            calls=calls,
            quiet=values.quiet,
            **{name: getattr(config, name) for name in _PASSED_ON},
        )
        for row in rows:
            row.update(temperature=config.temperature, split=config.split)
        text = json.dumps(rows, indent=1) + "\n"
        if config.json == "-":
            print(text, end="")
        else:
            print(format_video_table(rows))
            if config.json is not None:
                write_atomic(config.json, text)
    return 0
