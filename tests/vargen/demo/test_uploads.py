"""Uploads: taken within limits, refused in one line that names the file as its owner knows it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from transformers import Qwen2VLVideoProcessor

from scenes.rendering.video_file import write_video
from vargen.demo import videos as uploads
from vargen.video.models import frames

av = pytest.importorskip("av", reason='videos need the extra "video"')
PROCESSOR = SimpleNamespace(video_processor=Qwen2VLVideoProcessor())


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve frames in six seconds."""
    path = tmp_path_factory.mktemp("videos") / "of mine.mp4"
    write_video(torch.rand(12, 3, 16, 24, generator=torch.Generator().manual_seed(0)), path)
    return path


def test_frames_are_spread_over_the_video(video):
    read = uploads.read_upload(str(video), 6, PROCESSOR)
    assert read.frames_indices == (0, 2, 4, 6, 8, 10) and read.frames.shape == (6, 3, 16, 24)
    assert len(uploads.read_upload(str(video), 32, PROCESSOR).frames_indices) == 12  # all there are


def test_what_is_too_much_is_refused_undecoded(video, monkeypatch):
    monkeypatch.setattr(frames, "read_video", lambda *_, **__: pytest.fail("was decoded"))
    for limit, value, said in (
        ("MAX_BYTES", 100, "at most 0 MB"),
        ("MAX_SECONDS", 2.0, "lasts"),
        ("MAX_PACKETS", 5, "12 frames"),
        ("MAX_PIXELS", 100, "24 x 16"),
    ):
        told = rf"^(?!.*{video.parent})(?=.*of mine\.mp4).*{said}"
        with monkeypatch.context() as patch:
            patch.setattr(uploads, limit, value)
            refused(told, uploads.read_upload, str(video), 6, PROCESSOR)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no video at all",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 64,
        b"\x1aE\xdf\xa3" + b"\xff" * 200,
    ],
)
def test_a_file_that_is_no_video_is_refused(tmp_path, content, monkeypatch):
    """Before the decoder looks at it, unless it begins as a video does: play lists name other files."""
    path = tmp_path / "broken.mp4"
    path.write_bytes(content)
    if content[:1] not in (b"\0", b"\x1a"):
        monkeypatch.setattr(frames, "measure_video", lambda _: pytest.fail("was opened"))
    refused(rf"^(?!.*{tmp_path}).*broken", uploads.read_upload, str(path), 6, PROCESSOR)
