"""Videos as frames, and frames as what the processor of a Video-LLM makes of them.

Belongs here: decoding video files and folders of pictures, which frames are taken, and the call of a processor. Does
not belong here: resizing and cutting into patches, which are the processors' own; models; writing videos.

A processor of transformers takes frames out of a whole decoded video. Here they are taken before decoding, by the same
rule, so that an hour of video costs no more memory than the frames that are looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.video_utils import VideoMetadata

from metrics.errors import DataError
from metrics.images import IMAGE_SUFFIXES, list_pictures, read_rgb
from vargen.base.errors import UserError, warn
from vargen.base.prompts import unknown_words
from vargen.base.reading import expanded, reason_of

MAX_FRAMES = 768
"""Most frames of a video that are taken where neither the processor nor anybody else says how many: Qwen2.5-VL's."""

FRAMES_PER_SECOND = 2.0
"""The rate of frames that come without times; Qwen2.5-VL looks at as many of a second."""

CAPTION_PROMPTS = (
    "describe the video in detail.",
    "please provide a detailed description of the video, focusing on the main subjects, their actions, and the "
    "background scenes.",
)
"""What asks for a caption; the second is the one published evaluations use."""


# Where a file says which packets decoding can begin at, and every packet is one frame, frames can be sought. VP8 is
# missing on purpose: some of its packets show nothing.
_INDEXED_FORMATS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
_ONE_FRAME_PER_PACKET = ("h264", "hevc", "mpeg4", "mjpeg", "vp9", "av1")

_ONLY_VIDEOS = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(
        (
            *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "gif", "apng", "webp_pipe", "flv"),
            *("mpeg", "mpegts", "mpegvideo", "m4v", "asf", "ogg", "nut", "mxf", "ivf", "yuv4mpegpipe", "dv", "rm"),
            *("h264", "hevc", "av1", "obu", "mjpeg", "wtv", "mp3", "wav", "flac", "aac"),
        )
    ),
}
"""What FFmpeg may open: files that hold their pictures themselves. Lists of other files (concat, HLS, DASH) do not.
Those of sound are there so that their error says what they are."""


class QuestionWarning(UserWarning):
    """The model will not read every word of a question."""


@dataclass(frozen=True, eq=False)
class VideoFrames:
    """Frames of a video, and which they are.

    Attributes:
        frames: [F, 3, H, W] uint8, RGB.
        frames_indices: their numbers in the whole video, ascending.
        fps: of the whole video, on average.
        total_num_frames: of the whole video.
    """

    frames: Tensor
    frames_indices: tuple[int, ...]
    fps: float
    total_num_frames: int

    @classmethod
    def from_frames(cls, frames: Tensor, fps: float = FRAMES_PER_SECOND) -> VideoFrames:
        """A whole video that is there already: [F, 3, H, W], float in [0, 1] or uint8."""
        return cls(_to_bytes(frames), tuple(range(len(frames))), fps, len(frames))

    @property
    def metadata(self) -> VideoMetadata:
        """The metadata as transformers' video processors take it."""
        height, width = self.frames.shape[-2:]
        return VideoMetadata(
            total_num_frames=self.total_num_frames,
            fps=self.fps,
            width=width,
            height=height,
            duration=self.total_num_frames / self.fps,
            frames_indices=list(self.frames_indices),
        )


def frame_sampler(
    processor: Any, num_frames: int | None = None, fps: float | None = None, at_most: bool = False
) -> Callable[[int, float], list[int]]:
    """A processor's own choice of frames, for `read_video`.

    Args:
        processor: of a Video-LLM.
        num_frames: how many to take; rounded to whole steps of time.
        fps: how many to take of a second, instead. Without either, what the processor's settings say; many say
            nothing, and then every frame is taken.
        at_most: take all frames of a video that has fewer than `num_frames`.

    Returns:
        A function of a video's number of frames and of its frames a second. It gives the numbers of the frames to take,
        and raises UserError for a video that is too short or too long, or a number out of range.
    """
    own = processor.video_processor
    step, most = getattr(own, "temporal_patch_size", None) or 1, getattr(own, "max_frames", None) or MAX_FRAMES
    fewest = fewest_frames(processor)
    by_itself = own.do_sample_frames and (own.fps is not None or own.num_frames is not None)

    def choose(total: int, rate: float) -> list[int]:
        asked: dict[str, Any] = {}
        check_long_enough(total, processor)
        if num_frames is not None:
            if num_frames < fewest:
                raise UserError(f"num_frames: the model reads at least {fewest} frames, got {num_frames}")
            count, whole = round(num_frames / step) * step, total // step * step
            if count > total and not at_most:
                raise UserError(f"num_frames: {count} cannot be taken of a video of {total}; give at most {whole}")
            asked["num_frames"] = min(count, whole)
        elif fps is not None:
            asked["fps"] = fps
        elif not by_itself:
            if total > most:
                raise UserError(
                    f"num_frames: the video has {total} frames, more than {most}, and the model's processor takes all; "
                    f"give num_frames or fps"
                )
            return list(range(total))
        metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        try:
            # Where a step is no whole number of frames, rounding can add one behind the last.
            taken = [int(number) for number in own.sample_frames(metadata=metadata, **asked) if number < total]
            return taken[: asked.get("num_frames")]
        except ValueError as error:
            raise UserError(f"fps: frames cannot be taken so ({reason_of(error)}); give a lower one") from error

    return choose


def fewest_frames(processor: Any) -> int:
    """How many frames a model reads at least."""
    own = processor.video_processor
    return max(getattr(own, "min_frames", None) or 1, getattr(own, "temporal_patch_size", None) or 1)


def check_long_enough(total: int, processor: Any) -> None:
    """Raises UserError where a video of so many frames is too short for a model."""
    if total < (fewest := fewest_frames(processor)):
        raise UserError(f"video: it has {_frames(total)}, the model reads at least {fewest}; give a longer one")


def every_frame(total: int, rate: float) -> list[int]:
    """Chooses all frames, for `read_video`."""
    return list(range(total))


def read_video(
    path: str | PathLike[str],
    choose: Callable[[int, float], list[int]] = every_frame,
    fps: float | None = None,
) -> VideoFrames:
    """Take frames out of a video.

    Args:
        path: a video file or animated picture that FFmpeg reads, or a folder of pictures. Those are taken by name
            ("2.png" before "10.png").
        choose: gives the numbers of the frames to take, ascending, of how many there are and how many a second; see
            `frame_sampler`.
        fps: of pictures in a folder; None: 2.

    Returns:
        The frames, upright where the file says how it was held.

    Raises:
        UserError: nothing there, no video, damaged, frames of different sizes, what `choose` raises, or PyAV is not
            installed.
    """
    place = _existing(path)

    def chosen(total: int, rate: float) -> list[int]:
        try:
            return choose(total, rate)
        except UserError as error:
            raise UserError(f"{error} ({place})") from error

    if place.is_dir():
        return _read_folder(place, chosen, FRAMES_PER_SECOND if fps is None else fps)
    return _read_file(place, chosen)


@dataclass(frozen=True)
class VideoMeasures:
    """How much of a video there is, read from its packets without decoding one.

    Attributes:
        num_packets: at least as many as frames.
        seconds: between the first and the last.
        width, height: of a frame, in pixels.
    """

    num_packets: int
    seconds: float
    width: int
    height: int


def measure_video(path: str | PathLike[str]) -> VideoMeasures:
    """What there is in a file, before anybody decodes it. Raises UserError as `read_video` does."""
    with _opened(_existing(path)) as (container, stream):
        width, height = stream.codec_context.width, stream.codec_context.height
        times = [packet.pts for packet in container.demux(stream) if packet.size]
        known = [time for time in times if time is not None] or [0]
        return VideoMeasures(len(times), (max(known) - min(known)) * float(stream.time_base), width, height)


def processor_inputs(
    processor: Any, frames: VideoFrames, question: str, size: Mapping[str, int] | None = None
) -> dict[str, Tensor]:
    """What a model is fed to answer a question about a video.

    Args:
        processor: of a Video-LLM of transformers, with a chat template.
        frames: of the video; all of them are used.
        question: in words.
        size: of frames, as the video processor takes it; None: its own.

    Returns:
        `input_ids` [1, T], `attention_mask`, `pixel_values_videos`, and for Qwen's architectures `mm_token_type_ids`,
        `video_grid_thw` and, for Qwen2.5-VL, `second_per_grid_ts`.

    Raises:
        UserError: the question is empty, or contains a token that only the layout of a conversation may; or the video
            has fewer frames than the model reads.

    Warns:
        QuestionWarning: words that the processor's tokenizer does not know.
    """
    check_long_enough(len(frames.frames), processor)
    question = question.strip()
    if not question:
        raise UserError("question is empty; ask something about the video")
    # Not every processor's own word for a video or a picture is among its tokenizer's special ones.
    own = [getattr(processor, f"{kind}_token", None) for kind in ("video", "image")]
    special = next(
        (token for token in (*processor.tokenizer.all_special_tokens, *own) if token and token in question), None
    )
    if special is not None:
        raise UserError(f"question must not contain {special}; leave it out")
    unknown = unknown_words(processor.tokenizer, question)
    if unknown:
        words = ", ".join(repr(word) for word in unknown)
        warn(f"question: the model does not know {words}; use other words", QuestionWarning)
    conversation = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    # Left undecided, this class logs a warning; False is what undecided means.
    undecided = getattr(processor.video_processor, "cap_pixels_per_frame", False) is None
    try:
        inputs = processor(
            text=[text],
            videos=[frames.frames],
            video_metadata=[frames.metadata],
            do_sample_frames=False,
            return_tensors="pt",
            **({"cap_pixels_per_frame": False} if undecided else {}),
            **({} if size is None else {"size": dict(size)}),
        )
    except ValueError as error:  # frames of 300:1
        raise UserError(f"video: the model's processor refuses its frames ({reason_of(error)}); cut them") from error
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


def _existing(path: str | PathLike[str]) -> Path:
    place = expanded(path)
    if not place.exists():
        raise UserError(f"video: {place} does not exist; give a video file or a folder of pictures")
    if not (place.is_file() or place.is_dir()):  # a pipe would be waited for
        raise UserError(f"video: {place} is a device or a pipe; give a video file or a folder of pictures")
    return place


def _frames(count: int) -> str:
    return "no frames" if not count else "1 frame" if count == 1 else f"{count} frames"


def _to_bytes(frames: Tensor) -> Tensor:
    """uint8 of [F, 3, H, W] floats in [0, 1], or of uint8."""
    if frames.ndim != 4 or frames.shape[1] != 3 or not len(frames):
        raise ValueError(f"frames must have the shape [F, 3, H, W] with F at least 1, got {list(frames.shape)}")
    if frames.dtype == torch.uint8:
        return frames
    return (frames.detach().float().clamp(0, 1) * 255).round().byte()


def _stack(pictures: Sequence[np.ndarray], place: Path) -> Tensor:
    """[F, 3, H, W] of arrays [H, W, 3]."""
    shapes = list(dict.fromkeys(picture.shape[:2] for picture in pictures))
    if len(shapes) > 1:
        sizes = " and ".join(f"{width}x{height}" for height, width in shapes[:2])
        raise UserError(f"video: frames of {place} have different sizes ({sizes}); bring them to one size")
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


# Folders of pictures


def _pictures_of(folder: Path) -> list[Path]:
    """Pictures of a folder by name, numbers in names by their value."""
    found = list_pictures(folder, below=False)
    if not found:
        raise UserError(f"video: {folder} holds no pictures ({', '.join(IMAGE_SUFFIXES)}); name another folder")
    return found


def _read_folder(folder: Path, choose: Callable[[int, float], list[int]], rate: float) -> VideoFrames:
    paths = _pictures_of(folder)
    indices = choose(len(paths), rate)
    pictures = []
    for number in indices:
        try:
            pictures.append(np.asarray(read_rgb(paths[number], upright=True)))
        except DataError as error:
            reason = "cannot be read as a picture; repair or remove it"
            raise UserError(f"video: {paths[number]} {reason} ({reason_of(error.__cause__ or error)})") from error
    return VideoFrames(_stack(pictures, folder), tuple(indices), rate, len(paths))


# Video files


def pyav() -> ModuleType:
    """PyAV. Raises UserError where it is not installed."""
    try:
        import av
    except ImportError as error:
        raise UserError('video: reading and writing videos needs PyAV; run: pip install "vargen[video]"') from error
    return av


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file and its video stream; FFmpeg's errors in one line."""
    av = pyav()
    try:
        # FFmpeg reads a protocol before a colon. What else the file says of itself need not be UTF-8.
        with av.open(f"file:{path}", metadata_errors="replace", options=_ONLY_VIDEOS) as container:
            # The cover of a piece of music is a video stream, too.
            cover = av.stream.Disposition.attached_pic
            streams = [stream for stream in container.streams.video if not stream.disposition & cover]
            if not streams:
                raise UserError(f"video: {path} has no video stream; give a file with pictures in it")
            if streams[0].codec_context is None:
                raise UserError(f"video: {path} is damaged, or coded in a way that FFmpeg does not know; convert it")
            streams[0].thread_type = "AUTO"
            yield container, streams[0]
    except (av.FFmpegError, IndexError) as error:  # the latter where streams of a damaged file come and go
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UserError(f"video: {path} cannot be read as a video ({reason}); it is damaged, or no video") from error


def _frame_index(container: Any, stream: Any) -> list[tuple[int, bool]] | None:
    """Time stamp of each frame, in the order they are shown, and whether decoding can begin there; read from the file's
    packets without decoding one. None where packets do not tell."""
    codec = stream.codec_context.codec.canonical_name
    if container.format.name not in _INDEXED_FORMATS or codec not in _ONE_FRAME_PER_PACKET:
        return None
    packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
    if any(packet.pts is None for packet in packets):
        return None
    index = sorted((packet.pts, packet.is_keyframe) for packet in packets)
    unique = len({stamp for stamp, _ in index}) == len(index)
    return index if unique and index and index[0][1] else None


def _read_file(path: Path, choose: Callable[[int, float], list[int]]) -> VideoFrames:
    with _opened(path) as (container, stream):
        index, base = _frame_index(container, stream), float(stream.time_base)
        stated_rate = float(stream.average_rate or 0)
    if index is not None:
        rate = stated_rate or _rate([stamp * base for stamp, _ in index])
        indices = choose(len(index), rate)
        pictures = _decode_by_seeking(path, index, indices)
        if pictures is not None:
            return VideoFrames(_stack(pictures, path), tuple(indices), rate, len(index))
    with _opened(path) as (container, stream):
        times = [frame.time for frame in container.decode(stream)]
    rate = stated_rate or _rate(times)
    indices = choose(len(times), rate)
    return VideoFrames(_stack(_decode_in_order(path, indices), path), tuple(indices), rate, len(times))


def _rate(times: Sequence[float | None]) -> float:
    """Frames per second of frames at these times, in seconds."""
    first, last = (times[0], times[-1]) if times else (None, None)
    return FRAMES_PER_SECOND if first is None or last is None or last <= first else (len(times) - 1) / (last - first)


def _decode_by_seeking(
    path: Path, index: Sequence[tuple[int, bool]], indices: Sequence[int]
) -> list[np.ndarray] | None:
    """The wanted frames, decoding from the last place before each where that can begin; None if one does not come."""
    starts = [stamp for stamp, begins in index if begins]
    pictures = []
    with _opened(path) as (container, stream):
        decoded: Iterator[Any] = iter(())
        reached = None
        for number in indices:
            wanted = index[number][0]
            start = starts[bisect_right(starts, wanted) - 1]
            if reached is None or start > reached:
                container.seek(start, stream=stream)
                decoded = container.decode(stream)
            frame = next((each for each in decoded if each.pts is None or each.pts >= wanted), None)
            if frame is None or frame.pts != wanted:
                return None
            reached = wanted
            pictures.append(_upright(frame))
    return pictures


def _decode_in_order(path: Path, indices: Sequence[int]) -> list[np.ndarray]:
    """The wanted frames, decoding everything before the last of them."""
    wanted = set(indices)
    with _opened(path) as (container, stream):
        decoded = zip(range(indices[-1] + 1), container.decode(stream), strict=False)
        return [_upright(frame) for number, frame in decoded if number in wanted]


def _upright(frame: Any) -> np.ndarray:
    """[H, W, 3] uint8, turned as the file says."""
    if frame.is_corrupt:
        raise UserError(f"video: the frame at {frame.time:.2f} s of the file is damaged; repair the file")
    pixels = frame.to_ndarray(format="rgb24")
    return np.rot90(pixels, round(frame.rotation / 90)) if frame.rotation else pixels
