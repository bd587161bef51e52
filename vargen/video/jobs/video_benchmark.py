"""Decoding methods side by side on videos: the same questions and seeds.

Belongs here: the settings of such a comparison, the record of each answer, and the rows of results. Does not belong
here: the order in which methods work (`vargen.jobs.comparison`), an answer (`vargen.video.pipelines.answering`), the
definitions that pictures share (`metrics.speculation`), printing. Importing this imports no torch.

*Agreement* is the share of tokens that equal plain decoding's at the same place, of the longer of the two answers.
Speed-ups divide plain decoding's seconds per token by the method's, as medians over answers: of decoding alone, without
both prefills, and from end to end, with processor and vision towers. *Retention* is the method's caption accuracy over
plain decoding's.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrics.speculation import CallRecord, percentile, summarise
from vargen.base.bounds import (
    MAX_PICTURES,
    MAX_PIXELS,
    MAX_WARM_UP,
    check_number,
    check_text,
)
from vargen.base.errors import UserError
from vargen.base.options import DECODING, OUTPUT, option
from vargen.base.path_roles import READ, READ_FOLDER, READ_NAMES, writes_in
from vargen.base.world import missing_world
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.jobs.cases import SPLITS
from vargen.jobs.comparison import Kept, calls_of, compare, describe_run, rows_of
from vargen.methods.catalogue import read_method_list, resolve_method
from vargen.runs.files import write_atomic
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records, own_calls
from vargen.video.jobs.captioning import DEFAULT_QUESTION
from vargen.video.jobs.cases import VideoCase, VideoJudge, VideoWorld
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.pipelines.options import VideoOptions

if TYPE_CHECKING:
    from vargen.video.pipelines.answering import Answer, VideoAnswerer
    from vargen.video.training.video_questions import AskedVideo


@dataclass(frozen=True)
class BenchVideoConfig(VideoOptions):
    """What to compare."""

    methods: str | None = option(None, path=READ_NAMES, group=DECODING)
    """Names of methods, or LABEL=NAME for one of several settings of it, separated by commas. Plain decoding, "ar", is
    added where it is missing, since every ratio divides by it. null for sd, specvlm, fly, lvspec and parallelvlm with a
    draft model, and for sparrow and flash with the shipped model."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that differ from the defaults, by label, such as `--method_options.lvspec.loose_ratio 0.5`."""
    num_videos: int = option(100, least=1, most=MAX_PICTURES)
    """Number of rendered videos. They show things that training never showed."""
    videos: str | None = option(None, path=READ_FOLDER)
    """Folder of videos to ask about instead. Their answers are compared with plain decoding's and not judged."""
    questions: str | None = option(None, path=READ)
    """Questions about a folder's videos. Every line of a .txt file is asked about every video. Each row of a .csv or
    .jsonl file has a "video" and a "question". null asks `question` about all."""
    split: str = option("heldout", choices=SPLITS)
    """Which videos are rendered, "heldout" for combinations that training never showed, "all" for any."""
    question: str = DEFAULT_QUESTION
    """Question about each video."""
    image_size: int | None = option(None, least=8, most=MAX_PIXELS)
    """Side of the rendered frames in pixels; null for that of the shipped model's videos."""
    warm_up: int = option(1, least=0, most=MAX_WARM_UP)
    """Number of answers of each method that do not count, before the first that does."""
    output: str | None = option(None, path=writes_in("results.json", "calls.jsonl"), group=OUTPUT)
    """Folder for results.json. Measured answers are kept in it until the end, and the same command continues a stopped
    run. null writes nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.videos is None:
            if self.num_frames is not None:
                check_number("num_frames", self.num_frames, 4)
            for name in ("questions", "fps"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name} belongs to a folder of videos; name one with videos, or leave it out")
        check_text("question", self.question)

    def contenders(self) -> dict[str, VideoMethodConfig]:
        """The methods by label, plain decoding first.

        Raises:
            UserError: an unknown method, or options for one that is not compared.
        """
        there = ["sd", "specvlm", "fly", "lvspec", "parallelvlm"] if self.paired else []
        there += ["sparrow", "flash"] if self.model is None else []
        named = ",".join(there) if self.methods is None else self.methods

        def resolve(name: str, options: Mapping[str, Any] | None = None) -> VideoMethodConfig:
            return resolve_method(name, options, task="video")

        return {"ar": resolve("ar"), **read_method_list(named, self.method_options, "methods", resolve)}


def benchmark_videos(config: BenchVideoConfig, world: VideoWorld | None, quiet: bool = False) -> list[dict[str, Any]]:
    """Compare methods with models from disk, continue a stopped run of the same answers, and write the results.

    Args:
        config: the comparison.
        world: renders videos, and judges answers about them; None where none is installed.
        quiet: show no progress.

    Returns:
        One row for each method, as `build_video_rows`, with the settings that it was run with.

    Raises:
        UserError: methods or videos that do not fit the model, or a folder of another run.
    """
    methods, rendered = config.contenders(), config.videos is None
    if rendered and world is None:
        raise missing_world("videos", "name a folder of videos")

    from vargen.pipelines.loading import place_and_precision
    from vargen.video.models.generation_settings import generation_settings
    from vargen.video.pipelines.answering import VideoAnswerer
    from vargen.video.pipelines.loading import load_processor, open_video_model

    with own_calls(config.output) as calls:
        device, dtype = place_and_precision(config.device, config.dtype)
        found, generation = open_video_model(config.model, config.revision), config.generation
        processor = load_processor(found)
        videos, described = _rendered(config, world) if world and rendered else _given(config, processor)
        with VideoAnswerer.from_options(config, found, processor, methods.values()) as answerer:
            draft = answerer.draft_model
            named = {getattr(method, option) for method in methods.values() for option in method.weights}
            settings = describe_run(
                methods,
                weights_fingerprint(found.folder),
                drafters={kind: weights_fingerprint(path) for kind, path in sorted(answerer.drafters.items())},
                named={folder: weights_fingerprint(Path(folder)) for folder in sorted(named - {None})},
                draft_model=None if draft is None else weights_fingerprint(draft.found.folder),
                videos=len(videos),
                question=config.question,
                device=config.device_map or device,
                dtype=dtype,
                max_pixels=config.max_pixels,
                seed=config.seed,
                **config.identity,
                **described,
                **generation,
            )
            with progress(len(videos) * len(methods), "answers", quiet) as shown:
                rows = run_video_benchmark(
                    answerer,
                    methods,
                    videos,
                    config.question,
                    seed=config.seed,
                    warm_up=config.warm_up,
                    judge=None if world is None else world.judge_answer,
                    records=Records(calls, settings),
                    shown=shown,
                    **generation,
                )
            sampling = {name: value for name, value in generation.items() if name != "max_new_tokens"}
            drawn = generation_settings(answerer.model.generation_config, **sampling).sampling
        more = {"dtype": dtype, "model": found.name, "temperature": drawn.temperature}
        more["split"] = config.split if rendered else None
        rows = [{**row, **more} for row in rows]
        if calls is not None:
            write_atomic(calls.parent / "results.json", json.dumps(rows, indent=1) + "\n")
    return rows


def _rendered(config: BenchVideoConfig, world: VideoWorld) -> tuple[Sequence[VideoCase], dict[str, Any]]:
    """Videos of the world, and their identity."""
    num_frames, side = config.num_frames or world.video_frames, config.image_size or world.video_side
    cases = world.video_cases(config.num_videos, config.split, num_frames, side, config.seed)
    return cases, {"split": config.split, "frames": [num_frames, side]}


def _given(config: BenchVideoConfig, processor: Any) -> tuple[Sequence[AskedVideo], dict[str, Any]]:
    """Clips of the user's folder, and their identity."""
    from vargen.video.jobs.clips import ask_about, describe_clips
    from vargen.video.models.frames import frame_sampler

    assert config.videos is not None
    choose = frame_sampler(processor, config.num_frames, config.fps)
    clips = ask_about(config.videos, config.questions, config.question, choose, config.fps)
    return clips, {"clips": describe_clips(clips), "frames": [config.num_frames, config.fps]}


def run_video_benchmark(
    answerer: VideoAnswerer,
    methods: Mapping[str, VideoMethodConfig],
    cases: Sequence[VideoCase | AskedVideo],
    question: str,
    *,
    warm_up: int = 1,
    judge: VideoJudge | None = None,
    records: Records | None = None,
    shown: Progress | None = None,
    seed: int = 0,
    **generation: Any,
) -> list[dict[str, Any]]:
    """Ask every method about every video.

    Args:
        answerer: the models.
        methods: by label; without plain decoding among them ratios are None.
        cases: the videos; the answer about case i has the seed `seed + i`.
        question: asked about each video without a question of its own.
        warm_up: answers of each method before the first that counts.
        judge: rates the answers; None for no judging.
        records: keeps the answers, and holds those of a stopped run; None keeps them in memory.
        shown: counts answers.
        **generation: further arguments of `VideoAnswerer.answer`.

    Returns:
        One row for each method, as `build_video_rows`.

    Raises:
        UserError: a method whose drafter is missing.
    """
    records = Records(None, {}) if records is None else records
    latest = [0]

    def call(method: VideoMethodConfig, number: int) -> Answer:
        if latest[-1] != number:  # methods take turns on one video; of long ones not many fit into memory
            cases[latest[-1]].forget()
            latest[:] = [number]
        case = cases[number]
        return answerer.answer(case.frames, case.question or question, method, seed=seed + number, **generation)

    def keep(_label: str, number: int, answer: Answer) -> dict[str, Any]:
        truth = cases[number].truth
        return {
            "call": answer.record.to_dict(),
            "token_ids": answer.token_ids,
            "relaxed": [place for place, origin in enumerate(answer.origins) if origin.name == "RELAXED"],
            "run_lengths": list(answer.run_lengths),
            "draft_passes": answer.draft_passes,
            "draft_prompt_passes": answer.draft_prompt_passes,
            "draft_flops": answer.draft_flops,
            "accuracies": None if judge is None or truth is None else judge(truth, answer.text),
        }

    compare(methods, len(cases), call, keep, warm_up=warm_up, records=records, shown=shown)
    return build_video_rows(methods, records, len(cases))


def build_video_rows(
    methods: Mapping[str, VideoMethodConfig], records: Records, num_cases: int
) -> list[dict[str, Any]]:
    """One JSON-ready row for each method. A folder of this machine is shortened to its last two names in settings."""
    rows = rows_of(methods, records, num_cases, _figures)
    for row in rows:
        row["settings"] = {
            name: "/".join(Path(value).parts[-2:]) if isinstance(value, str) and Path(value).is_absolute() else value
            for name, value in row["settings"].items()
        }
    return rows


def _figures(answers: Kept, plain: Kept | None) -> dict[str, Any]:
    calls = calls_of(answers)
    plain_calls = None if plain is None else calls_of(plain)
    summary = summarise(calls, plain_calls)
    summary["answers"] = summary.pop("images")
    summary["seconds_per_answer"] = summary.pop("seconds_per_image")
    del summary["speedup"]
    runs = [length for answer in answers for length in answer["run_lengths"]]
    relaxed = sum(len(answer["relaxed"]) for answer in answers)
    summary |= dict.fromkeys(("decode_speedup", "end_to_end_speedup"))
    summary |= {
        "relaxed_tokens": relaxed,
        "relaxed_share": relaxed / max(summary["tokens"], 1),
        "mean_run_length": sum(runs) / len(runs) if runs else None,
        **_drafting(answers, calls),
    }
    accuracy = ("caption_accuracy", "caption_accuracy_interval", "caption_accuracy_by_kind")
    summary |= dict.fromkeys((*accuracy, "retention", "equal_to_plain", "agreement"))
    if plain is not None and plain_calls is not None:
        for name, seconds_of in (
            ("decode_speedup", lambda call: call.phase_seconds["decode"]),
            ("end_to_end_speedup", lambda call: call.seconds),
        ):
            before, now = (percentile([seconds_of(c) / c.tokens for c in each], 50) for each in (plain_calls, calls))
            summary[name] = before / now
        pairs = [(each["token_ids"], other["token_ids"]) for each, other in zip(answers, plain, strict=True)]
        summary["equal_to_plain"] = sum(own == other for own, other in pairs)
        alike = sum(own == other for pair in pairs for own, other in zip(*pair, strict=False))
        summary["agreement"] = alike / max(1, sum(max(map(len, pair)) for pair in pairs))
    judged = [answer["accuracies"] for answer in answers]
    if judged and judged[0] is not None:
        import torch

        from metrics.bootstrap import mean_interval

        accuracies = torch.tensor([each["all"] for each in judged], dtype=torch.float64)
        by_kind = {kind: statistics.fmean(each[kind] for each in judged) for kind in judged[0] if kind != "all"}
        summary |= zip(accuracy, (float(accuracies.mean()), mean_interval(accuracies), by_kind), strict=True)
        of_plain = statistics.fmean(answer["accuracies"]["all"] for answer in plain) if plain is not None else 0.0
        if of_plain:
            summary["retention"] = summary["caption_accuracy"] / of_plain
    return summary


def _drafting(answers: Kept, calls: Sequence[CallRecord]) -> dict[str, Any]:
    """The cost of drafting, where it is known: forward passes of the drafter without the prompt's, FLASH's accepted
    length per such pass, operations with the prompt's, and seconds of a step's draft."""
    figures: dict[str, Any] = dict.fromkeys(
        ("drafting_passes", "accepted_per_drafting_pass", "draft_flops_per_answer", "draft_seconds_per_step")
    )
    steps = sum(sum(call.accepted_histogram) for call in calls)
    accepted = sum(length * count for call in calls for length, count in enumerate(call.accepted_histogram))
    if all(answer["draft_passes"] is not None for answer in answers):
        passes = sum(answer["draft_passes"] - answer["draft_prompt_passes"] for answer in answers)
        figures.update(drafting_passes=passes, accepted_per_drafting_pass=accepted / max(passes, 1))
    if all(answer["draft_flops"] is not None for answer in answers):
        figures["draft_flops_per_answer"] = sum(answer["draft_flops"] for answer in answers) / len(answers)
    if accepted and all("draft" in call.phase_seconds for call in calls):
        figures["draft_seconds_per_step"] = sum(call.phase_seconds["draft"] for call in calls) / max(steps, 1)
    return figures
