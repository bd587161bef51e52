"""Methods side by side on the same videos, and what each cost and said.

Belongs here: what is kept of each answer, rows out of what was kept. Does not belong here: who works when
(`vargen.jobs.comparison`), an answer (`vargen.pipelines.video.answering`), definitions that pictures share
(`metrics.speculation`), options and printing.

*Agreement* is the share of tokens, of the longer of two answers, at whose place plain decoding's says the same.
Speed-ups divide plain decoding's seconds per token by the method's, medians over answers: of decoding alone, both
prefills left out, and from end to end, with processor and vision towers. *Retention* is the method's caption accuracy
over plain decoding's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from metrics.bootstrap import mean_interval
from metrics.provenance import provenance
from metrics.speculation import CallRecord, percentile, summarise
from vargen.jobs.cases import VideoCase, VideoJudge
from vargen.jobs.clips import Clip
from vargen.jobs.comparison import compare, describe_run
from vargen.methods.video.base import VideoMethodConfig
from vargen.models.model_folder import weights_fingerprint
from vargen.models.video_llms.generation_settings import generation_settings
from vargen.pipelines.loading import place_and_precision
from vargen.pipelines.video.answering import Answer, VideoAnswerer
from vargen.pipelines.video.loading import load_processor, open_video_model
from vargen.pipelines.video.options import VideoOptions
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records


def benchmark_video_model(
    options: VideoOptions,
    methods: Mapping[str, VideoMethodConfig],
    cases: Callable[[Any], Sequence[VideoCase | Clip]],
    question: str,
    *,
    described: Callable[[Sequence[Any]], Mapping[str, Any]],
    judge: VideoJudge | None = None,
    warm_up: int = 1,
    calls: Path | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """`run_video_benchmark` with models from disk, going on where a run of the same answers was stopped.

    Args:
        options: the models, and how they answer.
        methods, question, judge, warm_up: as for `run_video_benchmark`.
        cases: gives the videos, of the processor that reads them.
        described: what says which cases these are.
        calls: file that keeps answers until somebody removes it; None: in memory.
        quiet: show no progress.

    Returns:
        One row a method, as `build_video_rows`, with what it was run with.
    """
    device, dtype = place_and_precision(options.device, options.dtype)
    found, generation = open_video_model(options.model, options.revision), options.generation
    processor = load_processor(found)
    videos = cases(processor)
    with VideoAnswerer.from_options(options, found, processor, methods.values()) as answerer:
        settings = describe_run(
            methods,
            weights_fingerprint(found.folder),
            drafters={kind: weights_fingerprint(path) for kind, path in sorted(answerer.drafters.items())},
            named=_named_weights(methods),
            draft_model=None
            if answerer.draft_model is None
            else weights_fingerprint(answerer.draft_model.found.folder),
            videos=len(videos),
            question=question,
            device=options.device_map or device,
            dtype=dtype,
            max_pixels=options.max_pixels,
            seed=options.seed,
            **options.identity,
            **described(videos),
            **generation,
        )
        records = Records(calls, settings)
        with progress(len(videos) * len(methods), "answers", quiet) as shown:
            rows = run_video_benchmark(
                answerer,
                methods,
                videos,
                question,
                seed=options.seed,
                warm_up=warm_up,
                judge=judge,
                records=records,
                shown=shown,
                **generation,
            )
        drawn = generation_settings(answerer.model.generation_config, **_of_sampling(generation)).sampling
    more = {"dtype": dtype, "model": found.name, "temperature": drawn.temperature}
    return [{**row, **more} for row in rows]


def _named_weights(methods: Mapping[str, VideoMethodConfig]) -> dict[str, str]:
    """What lies in the folders that methods name, by folder."""
    folders = {getattr(method, option) for method in methods.values() for option in method.weights}
    return {folder: weights_fingerprint(Path(folder)) for folder in sorted(folders - {None})}


def _of_sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in generation.items() if name != "max_new_tokens"}


def run_video_benchmark(
    answerer: VideoAnswerer,
    methods: Mapping[str, VideoMethodConfig],
    cases: Sequence[VideoCase | Clip],
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
        methods: methods by label; plain decoding among them, or ratios are None.
        cases: the videos; the answer about case i is drawn with the seed `seed + i`.
        question: asked about each that has none of its own.
        warm_up: answers of each method before the first that counts.
        judge: rates the answers; None: nobody does.
        records: where answers are kept, and those that are there already; None: in memory.
        shown: counts answers.
        **generation: further arguments of `VideoAnswerer.answer`.

    Returns:
        One row a method, as `build_video_rows`.

    Raises:
        UserError: a method that needs what is not there.
    """
    records = Records(None, {}) if records is None else records
    latest = [0]

    def call(method: VideoMethodConfig, number: int) -> Answer:
        if latest[-1] != number:  # methods take turns on one video; of long ones not many fit into memory
            cases[latest[-1]].forget()
            latest[:] = [number]
        case = cases[number]
        asked = case.question or question
        return answerer.answer(case.frames, asked, method, seed=seed + number, **generation)

    def keep(_label: str, number: int, answer: Answer) -> dict[str, Any]:
        return _kept(answer, cases[number], judge)

    compare(methods, len(cases), call, keep, warm_up=warm_up, records=records, shown=shown)
    return build_video_rows(methods, records, len(cases))


def _kept(answer: Answer, case: VideoCase | Clip, judge: VideoJudge | None) -> dict[str, Any]:
    return {
        "call": answer.record.to_dict(),
        "token_ids": answer.token_ids,
        "relaxed": [place for place, origin in enumerate(answer.origins) if origin.name == "RELAXED"],
        "run_lengths": list(answer.run_lengths),
        "draft_passes": answer.draft_passes,
        "draft_flops": answer.draft_flops,
        "accuracies": None if judge is None or case.truth is None else judge(case.truth, answer.text),
    }


def build_video_rows(
    methods: Mapping[str, VideoMethodConfig], records: Records, num_cases: int
) -> list[dict[str, Any]]:
    """One JSON-ready row a method."""
    plain = next((label for label, method in methods.items() if method.name == "ar"), None)
    kept = {label: [records.calls[label, number] for number in range(num_cases)] for label in methods}
    origin = provenance()
    return [
        {
            "method": label,
            "exact": method.exact,
            **_figures(kept[label], None if plain is None else kept[plain]),
            "settings": _without_places(method.to_dict()),
            "provenance": origin,
        }
        for label, method in methods.items()
    ]


def _figures(answers: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]] | None) -> dict[str, Any]:
    calls = [CallRecord(**answer["call"]) for answer in answers]
    plain_calls = None if plain is None else [CallRecord(**answer["call"]) for answer in plain]
    summary = summarise(calls, plain_calls)
    summary["answers"] = summary.pop("images")
    summary["seconds_per_answer"] = summary.pop("seconds_per_image")
    del summary["speedup"]
    runs = [length for answer in answers for length in answer["run_lengths"]]
    relaxed = sum(len(answer["relaxed"]) for answer in answers)
    summary.update(
        decode_speedup=None,
        end_to_end_speedup=None,
        relaxed_tokens=relaxed,
        relaxed_share=relaxed / max(summary["tokens"], 1),
        mean_run_length=sum(runs) / len(runs) if runs else None,
        **_drafting(answers, calls),
        caption_accuracy=None,
        caption_accuracy_interval=None,
        caption_accuracy_by_kind=None,
        retention=None,
        equal_to_plain=None,
        agreement=None,
    )
    if plain is not None and plain_calls is not None:
        summary["decode_speedup"] = _median(plain_calls, _decode_seconds) / _median(calls, _decode_seconds)
        summary["end_to_end_speedup"] = _median(plain_calls, _all_seconds) / _median(calls, _all_seconds)
        pairs = [(each["token_ids"], other["token_ids"]) for each, other in zip(answers, plain, strict=True)]
        summary["equal_to_plain"] = sum(own == other for own, other in pairs)
        alike = sum(own == other for pair in pairs for own, other in zip(*pair, strict=False))
        summary["agreement"] = alike / max(1, sum(max(map(len, pair)) for pair in pairs))
    judged = [answer["accuracies"] for answer in answers]
    if judged and judged[0] is not None:
        accuracies = torch.tensor([each["all"] for each in judged], dtype=torch.float64)
        summary["caption_accuracy"] = float(accuracies.mean())
        summary["caption_accuracy_interval"] = mean_interval(accuracies)
        summary["caption_accuracy_by_kind"] = {
            kind: statistics.fmean(each[kind] for each in judged) for kind in judged[0] if kind != "all"
        }
        of_plain = statistics.fmean(answer["accuracies"]["all"] for answer in plain) if plain is not None else 0.0
        if of_plain:
            summary["retention"] = summary["caption_accuracy"] / of_plain
    return summary


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for a record that is read elsewhere: of a folder on this machine its last two names."""
    return {
        name: "/".join(Path(value).parts[-2:]) if isinstance(value, str) and Path(value).is_absolute() else value
        for name, value in settings.items()
    }


def _drafting(answers: Sequence[dict[str, Any]], calls: Sequence[CallRecord]) -> dict[str, Any]:
    """What drafting took, where that is known: forwards of the drafter and their operations, prompts left out of the
    former and not of the latter; FLASH's accepted length, which is per such forward; seconds of a step's draft."""
    figures: dict[str, Any] = dict.fromkeys(
        ("drafting_passes", "accepted_per_drafting_pass", "draft_flops_per_answer", "draft_seconds_per_step")
    )
    steps = sum(sum(call.accepted_histogram) for call in calls)
    accepted = sum(length * count for call in calls for length, count in enumerate(call.accepted_histogram))
    if all(answer["draft_passes"] is not None for answer in answers):
        passes = sum(answer["draft_passes"] - 1 for answer in answers)
        figures.update(drafting_passes=passes, accepted_per_drafting_pass=accepted / max(passes, 1))
    if all(answer["draft_flops"] is not None for answer in answers):
        figures["draft_flops_per_answer"] = sum(answer["draft_flops"] for answer in answers) / len(answers)
    if accepted and all("draft" in call.phase_seconds for call in calls):
        figures["draft_seconds_per_step"] = sum(call.phase_seconds["draft"] for call in calls) / max(steps, 1)
    return figures


def _median(calls: Sequence[CallRecord], seconds_of: Any) -> float:
    """Seconds per token."""
    return percentile([seconds_of(call) / call.tokens for call in calls], 50)


def _decode_seconds(call: CallRecord) -> float:
    return call.phase_seconds["decode"]


def _all_seconds(call: CallRecord) -> float:
    return call.seconds
