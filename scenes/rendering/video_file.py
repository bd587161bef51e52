"""Small videos as files.

Belongs here: coding frames. Does not belong here: rendering them (`video.py`), and reading videos, which is vargen's.
"""

from __future__ import annotations

from fractions import Fraction
from os import PathLike
from pathlib import Path
from types import ModuleType

from torch import Tensor

from vargen.base.errors import UserError
from vargen.runs.files import atomic_path
from vargen.video.models.frames import FRAMES_PER_SECOND, VideoFrames, pyav

# The first that is there. The first loses nothing; colours at half resolution, which every player shows, are off by up
# to 110 of 255 at the edges of small pictures.
_ENCODERS = (
    ("libx264rgb", "rgb24", {"qp": "0"}),
    ("mpeg4", "yuv420p", {"qmin": "1", "qmax": "1", "b": "100M"}),
)


def write_video(frames: Tensor, path: str | PathLike[str], fps: float = FRAMES_PER_SECOND) -> None:
    """Write an mp4 file, whole or not at all; the same frames give the same bytes.

    H.264 without loss, where PyAV has the encoder: the same frames are read back. VLC, mpv and Chrome play that,
    QuickTime and Safari do not.

    Args:
        frames: [F, 3, H, W], float in [0, 1] or uint8, F at least 1.
        path: ending in .mp4, in a folder that exists.
        fps: 0.001 to 1000.

    Raises:
        UserError: another ending, a rate out of range, or PyAV is not installed.
        ValueError: frames of another shape.
    """
    av = check_writing(fps)
    if Path(path).suffix.lower() != ".mp4":
        raise UserError(f"path: {path} must end in .mp4")
    pixels = VideoFrames.from_frames(frames).frames.permute(0, 2, 3, 1).cpu().contiguous().numpy()  # [F, H, W, 3]
    name, pixel_format, options = next(each for each in _ENCODERS if each[0] in av.codecs_available)
    with atomic_path(path) as temporary, av.open(f"file:{temporary}", "w", format="mp4") as container:
        rate = Fraction(fps).limit_denominator(1001)  # 30000 / 1001 is a customary one
        stream = container.add_stream(name, rate=rate, options=options)
        stream.codec_context.thread_count = 1  # x264's bytes depend on the number of threads
        stream.height, stream.width, stream.pix_fmt = *pixels.shape[1:3], pixel_format
        for picture in pixels:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def check_writing(fps: float) -> ModuleType:
    """PyAV, if it is installed and can write a video of so many frames a second. Raises UserError otherwise."""
    if not 0.001 <= fps <= 1000:
        raise UserError(f"fps must lie between 0.001 and 1000, got {fps}")
    return pyav()
