"""Videos: a clip, a question, a method; the answer comes word by word.

Belongs here: the tab's components, a visitor's question, and limits of uploads, which are checked before anything in a
file is decoded. Does not belong here: answering (`vargen.video.pipelines.answering`), reading frames
(`vargen.video.models.frames`), markup. Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.world import require_world
from vargen.demo import controls, markup
from vargen.demo.models import Models
from vargen.demo.requests import AT_ONCE, QUIET, connect, read_seed
from vargen.demo.work import failure, follow
from vargen.methods.advice import FEW

if TYPE_CHECKING:
    from specdecode.trace import TokenOrigin
    from vargen.video.models.frames import VideoFrames
    from vargen.video.pipelines.answering import Answer

DESCRIBE = "describe the video in detail."
QUESTIONS = (DESCRIBE, "how many objects are there in the video?", "how is it lit?")

MAX_QUESTION = 1000
"""Characters."""
MOST_TOKENS = 512

MAX_BYTES = 32 * 2**20
MAX_SECONDS = 120.0
MAX_PACKETS = 120 * 60
MAX_PIXELS = 4096 * 2304
"""Pixels of a frame."""


@dataclass(frozen=True)
class Clip:
    """The video of a question: the seed of a rendered example, or -1 and the path of an upload."""

    seed: int = 0
    path: str | None = None


@lru_cache(maxsize=16)
def world_case(seed: int) -> Any:
    """A clip of the world that training never showed, with its truth."""
    world = require_world("clip", "upload a video")
    return world.video_cases(1, "heldout", world.video_frames, world.video_side, seed)[0]


def read_clip(clip: Clip, num_frames: int, processor: Any) -> VideoFrames:
    """Its frames. Raises UserError for an upload that is no video or too much of one."""
    if clip.path is None:
        return world_case(clip.seed).frames
    return read_upload(clip.path, num_frames, processor)


def read_upload(path: str, num_frames: int, processor: Any) -> VideoFrames:
    """Frames of an uploaded video, evenly spread; all frames where the video has fewer than `num_frames`.

    Args:
        path, num_frames: the file, and the number of its frames to read.
        processor: of the model.

    Raises:
        UserError: no video, a damaged one, or one beyond the limits. The message has the visitor's name of the file.
    """
    from vargen.video.models.frames import frame_sampler, read_video

    file = Path(path)
    try:
        _check(file)
        return read_video(file, frame_sampler(processor, num_frames, at_most=True))
    except UserError as error:
        raise UserError(str(error).replace(str(file), file.name)) from error


def _check(file: Path) -> None:
    """Raises UserError for a file beyond the limits."""
    from vargen.video.models.frames import measure_video

    size = file.stat().st_size
    if size > MAX_BYTES:
        raise UserError(f"video: {file.name} has {size / 2**20:.0f} MB; at most {MAX_BYTES // 2**20} MB are allowed")
    with file.open("rb") as opened:
        if not _is_video(opened.read(16)):
            # FFmpeg also reads play lists, which name other files; they never reach it.
            raise UserError(f"video: {file.name} is no video; give an mp4, mov, webm, mkv, avi or gif file")
    measures = measure_video(file)
    if measures.seconds > MAX_SECONDS or measures.num_packets > MAX_PACKETS:
        raise UserError(
            f"video: {file.name} lasts {measures.seconds:.0f} s and has {measures.num_packets:,} frames; at most "
            f"{MAX_SECONDS:.0f} s and {MAX_PACKETS:,} frames are allowed"
        )
    if measures.width * measures.height > MAX_PIXELS:
        shape = f"{measures.width} x {measures.height}"
        raise UserError(f"video: {file.name} has {shape} pixels; at most 4096 x 2304 are allowed")


def _is_video(head: bytes) -> bool:
    """Whether the first bytes are those of a video, whatever the file's name ends in."""
    is_avi = head.startswith(b"RIFF") and head[8:12] == b"AVI "
    is_gif_or_matroska = head.startswith((b"\x1aE\xdf\xa3", b"GIF87a", b"GIF89a"))  # webm and mkv are Matroska
    return is_avi or is_gif_or_matroska or head[4:8] == b"ftyp"  # mp4, mov


def show_clip(models: Models, clip: Clip, num_frames: int) -> str:
    """The frames that the model will look at, moving, as HTML; or why there are none."""
    from vargen.drawing.sheet import to_pil

    try:
        processor = None if clip.path is None else models.answerer().processor
        frames = read_clip(clip, num_frames, processor)
    except Exception as error:
        return markup.notice(failure(error), "error")
    name = f"example {1 + clip.seed}, a rendered video" if clip.path is None else Path(clip.path).name
    pictures = to_pil(frames.frames.float() / 255)
    for picture in pictures:
        picture.thumbnail((480, 480))
    seconds = max(frames.total_num_frames / frames.fps / len(pictures), 0.12)
    said = f"{name}; the model looks at {len(pictures)} of {frames.total_num_frames:,} frames"
    return markup.moving(pictures, min(seconds, 1.0), name) + markup.notice(said)


def ask(models: Models, clip: Clip, method: str, settings: str, *asked: Any) -> Iterator[tuple[str, str]]:
    """Answer. Yields the HTML of the answer and of its account.

    Args:
        models: that the page offers.
        clip: of the question.
        method, settings: its name, and its settings as text.
        asked: question, frames of an upload, most tokens, temperature, seed.

    Raises:
        UserError: a question that cannot be answered.
    """
    from vargen.base.prompts import unknown_words
    from vargen.drawing.answer import answer_html

    question, num_frames, most, temperature, seed = asked
    config = controls.read_method(models.video_methods(), method, settings)
    if len(question) > MAX_QUESTION:
        raise UserError(f"question: {len(question):,} characters are too many; write {MAX_QUESTION:,} at most")
    if not 1 <= most <= MOST_TOKENS:
        raise UserError(f"tokens: choose 1 to {MOST_TOKENS}")
    sampling: dict[str, Any] = {"max_new_tokens": int(most), "temperature": float(temperature), "seed": read_seed(seed)}
    answerer = models.answerer()
    frames = read_clip(clip, int(num_frames), answerer.processor)
    words = ", ".join(unknown_words(answerer.processor.tokenizer, question))
    notes = markup.notice(f"Note: the model does not know these words: {words}") if words else ""
    said: list[tuple[list[str], list[TokenOrigin]]] = []
    """Tokens and their origins after each forward pass."""

    def answer(check: Callable[[], None]) -> Answer:
        def hear(tokens: list[str], origins: list[TokenOrigin]) -> None:
            said.append((tokens, origins))
            check()

        return answerer.answer(frames, question, method=config, on_tokens=hear, **sampling)

    def page() -> tuple[str, str]:
        if not said:
            return markup.notice("Looking at the video …") + notes, ""
        figures = {"tokens": f"{len(said[-1][0]):,}", "target passes": f"{len(said):,}"}
        return answer_html(*said[-1]) + notes, markup.account(figures)

    answered = yield from follow(answer, page)
    yield page()[0], account_of(answered, _correctness(clip, question, answered))


def _correctness(clip: Clip, question: str, answer: Answer) -> float | None:
    """The share of true claims in the description of a rendered example; None for any other answer."""
    if clip.path is not None or question.strip() != DESCRIBE:
        return None
    return require_world("clip", "upload a video").judge_answer(world_case(clip.seed).truth, answer.text)["all"]


def account_of(answer: Answer, correctness: float | None) -> str:
    """HTML that tells what was saved, and the cost of an answer."""
    trace = answer.trace
    figures = {
        "tokens": f"{len(answer.token_ids):,}",
        "target passes": f"{trace.target_passes:,}",
        "plain decoding takes": f"{len(answer.token_ids):,}",
        "tokens per pass": f"{trace.tokens_per_pass:.2f}",
        "draft tokens accepted per step": f"{trace.mean_accepted_length:.2f}",
        "seconds": f"{answer.seconds:.2f}",
        "seconds of decoding alone": f"{trace.phase_seconds.get('decode', 0.0):.2f}",
        "tokens of the video": f"{answer.visual_tokens:,}",
        "method": f"{answer.method.name}, {'exact' if answer.method.exact else 'relaxed'}",
    }
    if correctness is not None:
        figures["true claims, by the clip's truth"] = f"{100 * correctness:.0f} %"
    fewer = len(answer.token_ids) / max(trace.target_passes, 1)
    exact = answer.method.exact
    words = "Exact: plain decoding's words." if exact else "Relaxed: words may differ from plain decoding's."
    told = f"{fewer:.1f} times fewer passes" if fewer >= FEW else "About as many passes"
    return f'<p class="verdict" role="status"><b>{told} than plain decoding.</b> {words}</p>{markup.account(figures)}'


def build(gr: Any, models: Models, tab: Any) -> None:
    """Build the tab, with the module `gradio` as `gr`. Its clip is rendered when a visitor opens the `tab`."""
    methods = models.video_methods()
    first = models.video_default
    clip = gr.State(Clip())
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320, elem_classes="controls"):
            shown = gr.HTML(elem_id="clip")
            with gr.Row(elem_classes="tight"):
                another = gr.Button("Another clip", size="sm", min_width=120, elem_id="another")
                kinds = ["video", ".gif", ".mkv"]
                upload = gr.UploadButton("Upload a video", size="sm", min_width=120, file_types=kinds, elem_id="upload")
            options = {"elem_id": "question", "placeholder": "about the video"}
            question = gr.Textbox(DESCRIBE, label="Question", lines=2, max_lines=5, **options)
            buttons = controls.start_and_stop(gr, "Ask")
            questions = controls.examples(gr, "Questions", QUESTIONS)
            method, hint = controls.method_list(gr, methods, first, "video-method")
            with gr.Accordion("More", open=False):
                with gr.Row(elem_classes="tight"):
                    most = gr.Slider(16, MOST_TOKENS, 256, step=16, label="Most tokens")
                    frames = gr.Slider(4, 32, 8, step=2, label="Frames of an upload")
                with gr.Row(elem_classes="tight"):
                    temperature = gr.Slider(0, 1.5, 0, step=0.1, label="Temperature")
                    seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                settings = controls.settings_box(gr, methods[first])
        with gr.Column(scale=8, min_width=340):
            nothing = markup.empty("The answer appears here", "The colour under a word says how it was decided.")
            answer = gr.HTML(nothing, elem_id="answer")
            account = gr.HTML(elem_id="account")

    def turn_to(clip: Clip, num_frames: float) -> tuple[Clip, str]:
        return clip, show_clip(models, clip, int(num_frames))

    turned = [clip, shown]
    another.click(lambda clip, number: turn_to(Clip(clip.seed + 1), number), [clip, frames], turned, **QUIET)
    upload.upload(lambda path, number: turn_to(Clip(-1, path), number), [upload, frames], turned, **QUIET)
    method.change(lambda name: controls.describe(methods[name]), method, [hint, settings], **AT_ONCE)
    questions.click(lambda index: QUESTIONS[index], questions, question, **AT_ONCE)
    question.submit(None, js=markup.press("ask"))
    asked = [clip, method, settings, question, frames, most, temperature, seed]
    opened = lambda figures: [gr.update(value=figures, visible=True)]  # noqa: E731
    connect(gr, buttons, partial(ask, models), asked, answer, [account], opened)
    tab.select(turn_to, [clip, frames], turned, **QUIET)
