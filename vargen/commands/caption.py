"""`vargen caption VIDEO "question"`: an answer about a video, by any method."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vargen.base.bounds import check_text
from vargen.base.errors import UserError
from vargen.base.resources import find_trained_drafters
from vargen.commands.arguments import build_parser, check_place, fill, parse
from vargen.methods.catalogue import read_options
from vargen.methods.video.catalogue import VIDEO_METHODS, default_method, resolve_video_method
from vargen.pipelines.video.options import VideoOptions
from vargen.runs.files import save_image_atomic

DEFAULT_QUESTION = "describe the video in detail."


@dataclass(frozen=True)
class CaptionConfig(VideoOptions):
    """How to answer.

    Args:
        method: a name that `vargen methods --task video` lists; null for the fastest exact one whose drafter is there.
        method_options: settings that differ from the defaults, such as `--method_options.draft_length 8`.
        picture: PNG file for a picture of the answer: words coloured by how much they have to do with what is seen,
            underlined by how they were accepted.
    """

    method: str | None = None
    method_options: dict[str, Any] = field(default_factory=dict)
    picture: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_place("picture", self.picture)
        if self.method is None and self.method_options:
            raise UserError("method_options needs method: it says whose settings they are")


def run(arguments: Sequence[str]) -> int:
    """Answer, streaming the text; with `--json` print the account instead."""
    parser = build_parser(
        "caption",
        "Answer a question about a video with a Video-LLM. Methods: "
        + "; ".join(f"{method.name}: {method.summary}" for method in VIDEO_METHODS)
        + ".",
        CaptionConfig,
    )
    parser.add_argument("video", help="video file, .gif, or folder of pictures")
    parser.add_argument(
        "question", nargs="?", default=DEFAULT_QUESTION, help="what to ask; by default for a description"
    )
    parser.add_argument("--json", action="store_true", help="print the account as JSON, and nothing else")
    values = parse(parser, arguments)
    config = fill(CaptionConfig, values)
    check_text("question", values.question)
    named = None
    if config.method is not None:
        named = resolve_video_method(config.method, read_options(config.method_options))

    import torch

    from vargen.models.video_llms.context import ContextUse
    from vargen.models.video_llms.frames import frame_sampler, take_frames
    from vargen.pipelines.loading import loading_arguments
    from vargen.pipelines.video.answering import VideoAnswerer, sized_inputs
    from vargen.pipelines.video.loading import load_processor, open_video_model

    _, _, dtype = loading_arguments(config.of_target)
    found = open_video_model(config.model, config.revision)
    processor = load_processor(found)
    # Before gigabytes of weights: what is wrong with the video, and what it takes.
    frames = take_frames(values.video, frame_sampler(processor, config.num_frames, config.fps), config.fps)
    inputs = sized_inputs(processor, found.architecture, frames, values.question, config.max_pixels)
    use = ContextUse.of(found.config, inputs, len(frames.frames), getattr(torch, dtype).itemsize)
    use.check(config.max_new_tokens)
    print(f"video: {use} ({dtype})", file=sys.stderr)
    method = named or resolve_video_method(default_method(find_trained_drafters(found.folder), config.paired))
    if named is None and method.name == "ar":
        print(f"no drafter of {found.name}: decoding plainly; a smaller draft_model may be faster", file=sys.stderr)
    with VideoAnswerer.from_options(config, found, processor, [method]) as answerer:
        answer = answerer.answer(
            frames,
            values.question,
            method,
            seed=config.seed,
            inputs=inputs,
            on_text=None if values.json else _show,
            **config.generation,
        )
        if config.picture is not None:
            relevance = answerer.relevance(frames, values.question, answer)
            _draw(Path(config.picture), frames, answer, relevance)
    if values.json:
        print(json.dumps({"video": values.video, "question": values.question, **answer.to_dict()}))
        return 0
    trace = answer.trace
    print(
        f"\n\n{answer.method.name}{'' if answer.method.exact else ' (relaxed)'}: {len(answer.token_ids)} tokens, "
        f"{trace.target_passes} target passes, {trace.mean_accepted_length:.2f} drafted tokens accepted a step, "
        f"{answer.seconds:.2f} s",
        file=sys.stderr,
    )
    return 0


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _draw(path: Path, frames: Any, answer: Any, relevance: list[float]) -> None:
    from vargen.drawing.answer_picture import draw_answer

    title = (
        f"{answer.method.name}: {len(answer.token_ids)} tokens in {answer.trace.target_passes} target passes, "
        f"{answer.seconds:.2f} s"
    )
    picture = draw_answer(frames.frames.float() / 255, answer.tokens, answer.origins, relevance, title)
    save_image_atomic(picture, path)
