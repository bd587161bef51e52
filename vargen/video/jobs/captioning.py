"""One answer about a video, by any method.

Belongs here: the settings of an answer, and the order of work. Does not belong here: reading the video
(`vargen.video.models.frames`), answering (`vargen.video.pipelines.answering`), printing. Importing this imports no
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import check_text
from vargen.base.errors import UserError
from vargen.base.options import DECODING, OUTPUT, option
from vargen.base.path_roles import READ_NAMES, WRITTEN_FILE
from vargen.base.resources import find_trained_drafters
from vargen.methods.catalogue import read_options, resolve_method
from vargen.runs.files import check_file_place, save_image_atomic
from vargen.video.methods.catalogue import default_method
from vargen.video.pipelines.options import VideoOptions

if TYPE_CHECKING:
    from vargen.video.pipelines.answering import Answer

DEFAULT_QUESTION = "describe the video in detail."


@dataclass(frozen=True)
class CaptionConfig(VideoOptions):
    """What to answer."""

    method: str | None = option(None, path=READ_NAMES, group=DECODING)
    """A name that `vargen methods --task video` lists; null for the fastest exact one whose drafter is there."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that differ from the defaults, such as `--method_options.draft_length 8`."""
    picture: str | None = option(None, path=WRITTEN_FILE, group=OUTPUT)
    """PNG file for a picture of the answer. Its words are coloured by how much they depend on the video, and underlined
    by how they were accepted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.picture is not None:
            check_file_place(self.picture, "picture")
        if self.method is None and self.method_options:
            raise UserError("method_options needs method, the method whose settings they are; name one")


def caption(
    config: CaptionConfig, video: str, question: str = DEFAULT_QUESTION, on_text: Callable[[str], None] | None = None
) -> Answer:
    """Answer a question about a video.

    Args:
        config: model and method.
        video: a video file, a .gif, or a folder of pictures.
        question: asked about it.
        on_text: receives the text of the answer piece by piece.

    Raises:
        UserError: no such video, model or method, or a video that is too long for the model.
    """
    check_text("question", question)
    named = None
    if config.method is not None:
        named = resolve_method(config.method, read_options(config.method_options), task="video")

    import torch

    from vargen.pipelines.loading import loading_arguments
    from vargen.video.models.context import ContextUse
    from vargen.video.models.frames import frame_sampler, read_video
    from vargen.video.pipelines.answering import VideoAnswerer, sized_inputs
    from vargen.video.pipelines.loading import load_processor, open_video_model

    _, _, dtype = loading_arguments(config.of_target)
    found = open_video_model(config.model, config.revision)
    processor = load_processor(found)
    # The video is read before gigabytes of weights, so that what is wrong with it costs nothing.
    frames = read_video(video, frame_sampler(processor, config.num_frames, config.fps), config.fps)
    inputs = sized_inputs(processor, found.architecture, frames, question, config.max_pixels)
    use = ContextUse.of(found.config, inputs, len(frames.frames), getattr(torch, dtype).itemsize)
    use.check(config.max_new_tokens)
    print(f"video: {use} ({dtype})", file=sys.stderr)
    usual = default_method(find_trained_drafters(found.folder), config.paired)
    method = named or resolve_method(usual, task="video")
    if named is None and method.name == "ar":
        print(f"{found.name} has no drafter, so it decodes plainly; a draft_model may be faster", file=sys.stderr)
    with VideoAnswerer.from_options(config, found, processor, [method]) as answerer:
        answer = answerer.answer(
            frames, question, method, seed=config.seed, inputs=inputs, on_text=on_text, **config.generation
        )
        if config.picture is not None:
            from vargen.drawing.answer import draw_answer

            title = (
                f"{answer.method.name}: {len(answer.token_ids)} tokens in {answer.trace.target_passes} target passes, "
                f"{answer.seconds:.2f} s"
            )
            relevance = answerer.relevance(frames, question, answer)
            picture = draw_answer(frames.frames.float() / 255, answer.tokens, answer.origins, relevance, title)
            save_image_atomic(picture, Path(config.picture))
    return answer
