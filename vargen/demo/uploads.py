"""Limits of uploads. A file is checked before anything in it is decoded.

Belongs here: limits and refusals. Does not belong here: reading frames (`vargen.models.video_llms.frames`). Importing
this imports no torch, since the page's server needs the limits at its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError

if TYPE_CHECKING:
    from vargen.models.video_llms.frames import VideoFrames

MAX_BYTES = 32 * 2**20
MAX_SECONDS = 120.0
MAX_PACKETS = 120 * 60
MAX_PIXELS = 4096 * 2304
"""Pixels of a frame."""


def read_upload(path: str, num_frames: int, processor: Any) -> VideoFrames:
    """Frames of an uploaded video, evenly spread; all frames where the video has fewer than `num_frames`.

    Args:
        path, num_frames: the file, and the number of its frames to read.
        processor: of the model.

    Raises:
        UserError: no video, a damaged one, or one beyond the limits. The message has the visitor's name of the file.
    """
    from vargen.models.video_llms.frames import frame_sampler, read_video

    file = Path(path)
    try:
        _check(file)
        return read_video(file, frame_sampler(processor, num_frames, at_most=True))
    except UserError as error:
        raise UserError(str(error).replace(str(file), file.name)) from error


def _check(file: Path) -> None:
    """Raises UserError for a file beyond the limits."""
    from vargen.models.video_llms.frames import measure_video

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
        raise UserError(
            f"video: {file.name} has {measures.width} x {measures.height} pixels; at most 4096 x 2304 are allowed"
        )


def _is_video(head: bytes) -> bool:
    """Whether the first bytes are those of a video, whatever the file's name ends in."""
    is_avi = head.startswith(b"RIFF") and head[8:12] == b"AVI "
    is_gif_or_matroska = head.startswith((b"\x1aE\xdf\xa3", b"GIF87a", b"GIF89a"))  # webm and mkv are Matroska
    return is_avi or is_gif_or_matroska or head[4:8] == b"ftyp"  # mp4, mov
