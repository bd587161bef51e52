"""`vargen bench --task video`: methods side by side on the same videos and seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from metrics.tables import format_video_table
from vargen.base.bounds import (
    MAX_FRAMES,
    MAX_PICTURES,
    MAX_PIXELS,
    MAX_WARM_UP,
    check_number,
    check_numbers,
    check_text,
)
from vargen.base.errors import UserError
from vargen.base.world import find_world, missing_world
from vargen.commands.caption import DEFAULT_QUESTION
from vargen.commands.arguments import COMPARED_SPLITS, build_parser, check_place, fill, parse
from vargen.methods.catalogue import read_method_list
from vargen.methods.video.base import VideoMethodConfig
from vargen.methods.video.catalogue import resolve_video_method
from vargen.pipelines.video.options import VideoOptions
from vargen.runs.files import write_atomic
from vargen.runs.records import own_calls


@dataclass(frozen=True)
class BenchVideoConfig(VideoOptions):
    """What to compare, and on what.

    Args:
        methods: names of methods, or LABEL=NAME for one of several settings of it, separated by commas. Plain
            decoding, "ar", is added where it is missing: every ratio divides by it. null: std, with a smaller model
            sd, specvlm, fly, lvspec, parallelvlm and assisted too, with the shipped model sparrow and flash.
        method_options: settings that differ from the defaults, by label, such as
            `--method_options.lvspec.loose_ratio 0.5`.
        videos: how many videos of this project's own world, of things that training never showed; or a folder of the
            user's own, whose answers nobody judges: they are compared with plain decoding's.
        questions: about a folder's videos: a .txt file, each line of which is asked about every video, or a .csv or
            .jsonl file with a "video" and a "question" in each row; null for `question`.
        split: "heldout" for combinations that training never showed, "all" for any.
        question: asked about each.
        image_size: side of the rendered frames in pixels; null for that of the shipped model's videos.
        captions: which rendered videos: "written" for stories told as people write, or "plain" for shorter ones; null
            for those of the shipped model.
        warm_up: answers of each method that do not count, before the first that does.
        json: file for the rows; "-" prints them to standard output, and nothing else. What has been measured is kept
            beside it in FILE.calls.jsonl until the end, and the same command goes on from there.
    """

    methods: str | None = None
    method_options: dict[str, Any] = field(default_factory=dict)
    videos: int | str = 100
    questions: str | None = None
    split: str = "heldout"
    question: str = DEFAULT_QUESTION
    image_size: int | None = None
    captions: str | None = None
    warm_up: int = 1
    json: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, {"image_size": (8, MAX_PIXELS), "warm_up": (0, MAX_WARM_UP)})
        if isinstance(self.videos, int):
            check_number("videos", self.videos, 1, MAX_PICTURES)
            if self.num_frames is not None:
                check_number("num_frames", self.num_frames, 4, MAX_FRAMES)
            for name in ("questions", "fps"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name} belongs to a folder of videos; name one with videos, or leave it out")
        check_text("question", self.question)
        if self.split not in COMPARED_SPLITS:
            raise UserError(f"split must be one of {', '.join(COMPARED_SPLITS)}, got {self.split!r}")
        check_place("json", self.json)

    def contenders(self) -> dict[str, VideoMethodConfig]:
        """The methods by label, plain decoding first.

        Raises:
            UserError: an unknown method, or options for one that is not compared.
        """
        there = ["std"]
        if self.paired:
            there = ["sd", "specvlm", "std", "fly", "lvspec", "parallelvlm"]
        if self.model is None:  # transformers refuses many published pairs, whose matrices are padded differently
            there += ["assisted", "sparrow", "flash"]
        named = ",".join(there) if self.methods is None else self.methods
        chosen = read_method_list(named, self.method_options, "methods", resolve_video_method)
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

    from vargen.jobs.clips import ask_about, describe_clips
    from vargen.jobs.video_benchmark import benchmark_video_model
    from vargen.models.video_llms.frames import frame_sampler

    world = find_world()
    if isinstance(config.videos, int):
        if world is None:
            raise missing_world("videos", "name a folder of videos")
        num_frames, image_size = config.num_frames or world.video_frames, config.image_size or world.video_side
        captions = config.captions or world.video_captions

    def cases(processor: Any) -> Any:
        if isinstance(config.videos, int):
            return world.video_cases(config.videos, config.split, num_frames, image_size, config.seed, captions)
        choose = frame_sampler(processor, config.num_frames, config.fps)
        return ask_about(config.videos, config.questions, config.question, choose, config.fps)

    def described(clips: Any) -> dict[str, Any]:
        if isinstance(config.videos, int):
            told = {} if captions == world.video_captions else {"captions": captions}
            return {"split": config.split, "frames": [num_frames, image_size], **told}
        return {"clips": describe_clips(clips), "frames": [config.num_frames, config.fps]}

    with own_calls(config.json) as calls:
        rows = benchmark_video_model(
            config,
            contenders,
            cases,
            config.question,
            described=described,
            judge=None if world is None else world.judge_answer,
            warm_up=config.warm_up,
            calls=calls,
            quiet=values.quiet,
        )
        for row in rows:
            row.update(split=config.split if isinstance(config.videos, int) else None)
        text = json.dumps(rows, indent=1) + "\n"
        if config.json == "-":
            print(text, end="")
        else:
            print(format_video_table(rows))
            if config.json is not None:
                write_atomic(config.json, text)
    return 0
