"""`vargen caption VIDEO "question"`: an answer about a video, by any method."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vargen.bounds import MAX_FRAMES, MAX_NEW_TOKENS, MAX_SEED, check_numbers, check_sampling, check_text
from vargen.commands.options import build_parser, check_place, fill, parse
from vargen.methods.catalogue import read_options
from vargen.models.options import check_dtype
from vargen.runs.files import save_image_atomic
from vargen.video.methods.catalogue import VIDEO_METHODS, resolve_video_method

DEFAULT_QUESTION = "describe the video in detail."


@dataclass(frozen=True)
class CaptionConfig:
    """How to answer.

    Args:
        method: a name that `vargen methods --task video` lists.
        method_options: settings that differ from the defaults, such as `--method_options.draft_length 8`.
        model: folder of a Qwen2.5-VL or LLaVA-OneVision with its processor, or the name of a shipped one; null for the
            shipped default, which knows only this project's own little world.
        draft_model: likewise, the smaller one of a pair; null for the one shipped with the default model.
        num_frames: frames to look at, evenly spread; null for all, at most as many as the model's processor takes.
        max_new_tokens: at most so many.
        temperature: 0 always takes the likeliest token.
        top_p: of sampling.
        seed: of the answer.
        device: "cpu", "cuda", "cuda:1"; "auto" takes a GPU if there is one.
        dtype: float32, bfloat16, float16; "auto" is bfloat16 on a GPU and float32 on a CPU.
        picture: PNG file for a picture of the answer: words coloured by how much they have to do with what is seen,
            underlined by how they were accepted.
    """

    method: str = "sd"
    method_options: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    draft_model: str | None = None
    num_frames: int | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    picture: str | None = None

    def __post_init__(self) -> None:
        check_numbers(
            self, {"max_new_tokens": (1, MAX_NEW_TOKENS), "num_frames": (1, MAX_FRAMES), "seed": (0, MAX_SEED)}
        )
        check_sampling(self.temperature, None, self.top_p)
        check_dtype(self.dtype)
        check_place("picture", self.picture)


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
    method = resolve_video_method(config.method, read_options(config.method_options))

    from vargen.pipelines.loading import place_and_precision
    from vargen.video.answering import VideoAnswerer, load_processor
    from vargen.video.frames import frame_limits, read_video

    device, dtype = place_and_precision(config.device, config.dtype)
    processor = load_processor(config.model)
    limits = frame_limits(processor)
    frames = read_video(values.video, num_frames=config.num_frames, **limits)  # before gigabytes of weights
    with VideoAnswerer.from_pretrained(config.model, config.draft_model, device, dtype, processor) as answerer:
        answer = answerer.answer(
            frames,
            values.question,
            method,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed,
            on_text=None if values.json else _show,
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
