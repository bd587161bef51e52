"""Frames of real files: the same as decoding everything and letting the processor choose, whatever the container."""

import itertools
import logging
import random
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from small_video_llms import build_llava_processor
from torch import Tensor
from transformers import Qwen2VLVideoProcessor
from transformers.video_utils import VideoMetadata

import vargen.video.models.frames as frames_module
from scenes.models.processor import build_processor
from scenes.rendering import video_file
from scenes.rendering.video_file import write_video
from vargen.base.errors import UserError
from vargen.video.models.frames import QuestionWarning, VideoFrames, frame_sampler, processor_inputs, read_video

av = pytest.importorskip("av")


def sampler(**asked: Any) -> Callable[[int, float], list[int]]:
    """Qwen2.5-VL's choice, without a rate of its own."""
    processor = Qwen2VLVideoProcessor(**{name: asked.pop(name) for name in ("temporal_patch_size",) if name in asked})
    return frame_sampler(SimpleNamespace(video_processor=processor), **asked)


PROCESSORS: dict[str, Callable[[int, int], Any]] = {"qwen": build_processor, "llava": build_llava_processor}
QUESTION = "describe the video in detail."


def moving(count: int, size: tuple[int, int] = (32, 48)) -> Tensor:
    """[count, 3, H, W] uint8: a smooth picture that is another one in every frame, and a bright square that moves."""
    height, width = size
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    frames = torch.zeros(count, 3, height, width)
    for number in range(count):
        frames[number, 0] = 40 + 2 * rows
        frames[number, 1] = 40 + 2 * columns
        frames[number, 2] = 20 + 180 * number / max(count - 1, 1)
        left = number % (width - 8)
        frames[number, :, 4:12, left : left + 8] = 220
    return frames.byte()


def encode(
    path: Path, frames: Tensor, codec: str, options: dict[str, str], rate: int = 30, stamps: list[int] | None = None
) -> Path:
    """A file by PyAV's encoder, with any settings. `stamps`: of the frames, in units of 1 / rate."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = frames.shape[-2:]
        stream.pix_fmt = {"gif": "rgb8", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame.permute(1, 2, 0).contiguous().numpy(), format="rgb24")
            if stamps is not None:
                picture.pts = stamps[number]
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def decode_everything(path: Path) -> Tensor:
    with av.open(str(path)) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


CONTAINERS = {
    "h264.mp4": ("libx264", {"g": "9", "bf": "2"}, True),
    "open_gop.mp4": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, True),
    "one_gop.mp4": ("libx264", {"g": "300"}, True),
    "h264.mkv": ("libx264", {"g": "9", "bf": "2"}, True),
    "mpeg4.mp4": ("mpeg4", {"g": "7", "bf": "1"}, True),
    "vp9.webm": ("libvpx-vp9", {"g": "10", "auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "8"}, True),
    "vp8.webm": ("libvpx", {"g": "20", "cpu-used": "5"}, False),
    "h264.avi": ("libx264", {"g": "9", "bf": "0"}, False),
    "h264.ts": ("libx264", {"g": "9", "bf": "2"}, False),
    "animated.gif": ("gif", {}, False),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("videos")
    return {
        name: encode(folder / name, moving(41), codec, options, rate=25 if codec == "gif" else 30)
        for name, (codec, options, _) in CONTAINERS.items()
    }


@pytest.mark.parametrize("name", CONTAINERS)
def test_frames_are_those_of_decoding_everything(files, name, monkeypatch):
    everything = decode_everything(files[name])
    assert len(everything) > 30
    in_order, used = frames_module._decode_in_order, []
    monkeypatch.setattr(frames_module, "_decode_in_order", lambda *given: used.append(1) or in_order(*given))
    for chosen in ({"num_frames": 8}, {"num_frames": 30}, {"fps": 7.0}, {}):
        video = read_video(files[name], sampler(**chosen))
        assert torch.equal(video.frames, everything[list(video.frames_indices)]), (name, chosen)
        assert video.total_num_frames == len(everything)
        assert video.fps == pytest.approx(25 if "gif" in name else 30, rel=0.01)
    assert bool(used) != CONTAINERS[name][2], "frames were sought where that is not safe, or not where it is"


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many frames are decoded meanwhile."""
    opened, count = frames_module._opened, [0]

    class Counted:
        def __init__(self, container: Any) -> None:
            self.container = container

        def decode(self, stream: Any) -> Iterator[Any]:
            for frame in self.container.decode(stream):
                count[0] += 1
                yield frame

        def __getattr__(self, name: str) -> Any:
            return getattr(self.container, name)

    @contextmanager
    def counted(path: Path) -> Iterator[tuple[Any, Any]]:
        with opened(path) as (container, stream):
            yield Counted(container), stream

    with monkeypatch.context() as patch:
        patch.setattr(frames_module, "_opened", counted)
        yield count


def test_no_more_is_decoded_than_is_needed(files, tmp_path, monkeypatch):
    path = encode(tmp_path / "long.mp4", moving(300, (32, 32)), "libx264", {"g": "10", "keyint_min": "10", "bf": "2"})
    with counting(monkeypatch) as count:
        read_video(path, sampler(num_frames=4))
    assert count[0] <= 4 * 10  # of 300
    with counting(monkeypatch) as count:
        read_video(files["one_gop.mp4"], sampler(num_frames=4))
    assert count[0] <= 31  # the last one is number 30; nothing is decoded twice


def test_a_file_whose_packets_mislead_is_decoded_whole(files, monkeypatch):
    """A stamp at which no frame comes: the fast way gives up, and nothing of it stays."""
    honest = frames_module._frame_index

    def misled(container: Any, stream: Any) -> list[tuple[int, bool]] | None:
        index = honest(container, stream)
        assert index is not None
        return [(stamp + (1 if number == 20 else 0), begins) for number, (stamp, begins) in enumerate(index)]

    monkeypatch.setattr(frames_module, "_frame_index", misled)
    video = read_video(files["h264.mp4"])
    assert torch.equal(video.frames, decode_everything(files["h264.mp4"]))


def test_what_an_edit_list_cuts_off_is_no_frame(files, tmp_path):
    path = tmp_path / "cut.mp4"
    with av.open(str(files["h264.mp4"])) as source, av.open(str(path), "w", options={"avoid_negative_ts": "0"}) as cut:
        stream = source.streams.video[0]
        copy = cut.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                step = packet.duration * 5
                packet.pts, packet.dts = packet.pts - step, packet.dts - step
                packet.stream = copy
                cut.mux(packet)
    everything = decode_everything(path)
    assert len(everything) == 36
    video = read_video(path, sampler(num_frames=6))
    assert torch.equal(video.frames, everything[list(video.frames_indices)])


def test_a_video_held_upright_is_upright(tmp_path):
    """A phone's file says by a matrix that its top left corner belongs to the top right."""
    path = tmp_path / "phone.mp4"
    write_video(moving(4), path)
    straight = read_video(path).frames
    content = path.read_bytes()
    plain = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    turned = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 32 << 16, 0, 1 << 30)
    track = content.index(b"tkhd")
    assert content.count(plain, track) == 1
    path.write_bytes(content[:track] + content[track:].replace(plain, turned))
    frames = read_video(path).frames
    assert frames.shape[-2:] == (48, 32)
    assert torch.equal(frames[:, :, 0, -1], straight[:, :, 0, 0])
    assert torch.equal(frames, straight.rot90(-1, (2, 3)))


def test_rate_of_uneven_frames(tmp_path):
    stamps = [0, 1, 2, 10, 20, 21, 22, 40]
    path = encode(tmp_path / "uneven.mkv", moving(8), "libx264", {"g": "3"}, rate=10, stamps=stamps)
    video = read_video(path)
    assert video.total_num_frames == 8 and len(video.frames) == 8
    late = encode(tmp_path / "late.mkv", moving(8), "libx264", {}, rate=10, stamps=[50 + stamp for stamp in stamps])
    assert read_video(late).fps == pytest.approx(video.fps)


def test_what_is_told_of_a_video_is_of_the_whole_of_it():
    whole = VideoFrames.from_frames(moving(6), 12.0)
    assert whole.metadata.fps == 12.0 and whole.metadata.duration == pytest.approx(0.5)
    taken = VideoFrames(moving(2), (0, 30), 10.0, 60)
    assert taken.metadata.duration == pytest.approx(6.0) and taken.metadata.frames_indices == [0, 30]
    assert (taken.metadata.height, taken.metadata.width) == (32, 48)
    assert frames_module._rate([0.5, 0.75, 1.0, 1.25]) == pytest.approx(4.0)


@pytest.mark.parametrize(("begins", "stamps", "told"), [
    ((True, False, True), (0, 2, 1), True),
    ((False, False, True), (0, 2, 1), False),  # nothing decodes the first
    ((True, False, True), (0, 1, 1), False),
    ((True, False, True), (0, None, 1), False),
])  # fmt: skip
def test_packets_tell_frames_where_decoding_can_begin_with_the_first(begins, stamps, told):
    usual = {"size": 1, "is_discard": False}
    packets = [SimpleNamespace(pts=at, is_keyframe=key, **usual) for at, key in zip(stamps, begins, strict=True)]
    container = SimpleNamespace(format=SimpleNamespace(name="matroska,webm"), demux=lambda stream: iter(packets))
    stream = SimpleNamespace(codec_context=SimpleNamespace(codec=SimpleNamespace(canonical_name="h264")))
    index = frames_module._frame_index(container, stream)
    assert index == ([(0, True), (1, True), (2, False)] if told else None)


# Which frames


@given(st.integers(4, 4000), st.integers(4, 900), st.sampled_from([1, 2, 4]))
@example(17, 14, 2)  # steps that are no whole number of frames
@example(49, 14, 2)
@settings(max_examples=100, deadline=None)
def test_a_number_of_frames_is_sampled_as_the_processor_does(total, wanted, step):
    processor = Qwen2VLVideoProcessor(temporal_patch_size=step)
    choose, rounded = sampler(num_frames=wanted, temporal_patch_size=step), round(wanted / step) * step
    if rounded > total:
        refused(f"num_frames: {rounded} cannot be taken of a video of {total}", choose, total, 30.0)
        whole = total // step * step
        taken = sampler(num_frames=wanted, at_most=True, temporal_patch_size=step)(total, 30.0)
        assert len(taken) == whole and taken == sampler(num_frames=whole, temporal_patch_size=step)(total, 30.0)
        return
    expected = processor.sample_frames(VideoMetadata(total_num_frames=total, fps=30.0), num_frames=wanted).tolist()
    # Where rounding makes torch.arange one longer, its last number is no frame.
    assert choose(total, 30.0) == expected[:rounded]


@given(st.integers(4, 4000), st.sampled_from([8.0, 24.0, 30000 / 1001, 60.0]), st.floats(0.05, 40.0))
@example(367, 24.0, 2.0)  # rounding makes torch.arange one longer than it should be
@example(670, 24.0, 2.0)
@settings(max_examples=100, deadline=None)
def test_a_rate_is_sampled_as_the_processor_does(total, source, wanted):
    expected = Qwen2VLVideoProcessor().sample_frames(VideoMetadata(total_num_frames=total, fps=source), fps=wanted)
    indices = sampler(fps=wanted)(total, source)
    assert indices == expected.tolist()[: len(indices)] and len(expected) - len(indices) in (0, 1)
    assert all(a < b for a, b in itertools.pairwise(indices)) and indices[-1] < total


@pytest.mark.parametrize("name", PROCESSORS)
def test_inputs_are_those_of_giving_the_processor_the_whole_video(files, name):
    processor = PROCESSORS[name](32, 8)
    path = files["h264.mp4"]
    everything = decode_everything(path)
    for chosen in ({"num_frames": 6}, {"fps": 5.0}):
        inputs = processor_inputs(processor, read_video(path, frame_sampler(processor, **chosen)), QUESTION)
        chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": QUESTION}]}]
        text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        # A processor's own default of a rate would forbid a number.
        processor.video_processor.fps = None
        told = VideoMetadata(total_num_frames=len(everything), fps=30.0)
        whole = {"videos": [everything], "video_metadata": [told], "do_sample_frames": True, **chosen}
        expected = processor(text=[text], return_tensors="pt", **whole)
        tensors = {key for key, value in expected.items() if isinstance(value, Tensor)}
        assert set(inputs) == tensors >= {"input_ids", "attention_mask", "pixel_values_videos"}
        assert all(torch.equal(inputs[key], expected[key]) for key in tensors)
        assert inputs["input_ids"].shape[0] == 1


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_say_nothing(name, capfd, caplog):
    processor = PROCESSORS[name](32, 8)
    if name == "qwen":  # as published checkpoints leave it
        processor.video_processor.cap_pixels_per_frame = None
    logger = logging.getLogger("transformers")
    propagates, logger.propagate = logger.propagate, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            processor_inputs(processor, VideoFrames.from_frames(moving(8)), QUESTION)
    finally:
        logger.propagate = propagates
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize("name", ["video_token", "image_token"])
def test_a_processors_own_words_are_no_questions(name):
    processor = build_processor(32, 8)
    setattr(processor, name, "<clip>")  # a word of the processor alone: the tokenizer does not call it special
    video = VideoFrames.from_frames(moving(8))
    refused("^question must not contain <clip>; leave it out", processor_inputs, processor, video, "what is <clip>?")


def test_questions_are_checked():
    processor, video = build_processor(32, 8), VideoFrames.from_frames(moving(8))
    refused("question is empty; ask something", processor_inputs, processor, video, "  ")
    refused(r"not contain <\|video_pad\|>; leave it", processor_inputs, processor, video, "what is <|video_pad|>?")
    with pytest.warns(QuestionWarning, match="does not know 'Giraffe', 'jazz'") as said:
        processor_inputs(processor, video, "does the Giraffe do jazz ?")
    assert len(said) == 1


# Writing


def test_what_is_written_is_read_back(tmp_path):
    noise = torch.rand(6, 3, 33, 47, generator=torch.Generator().manual_seed(0))
    for name in ("a.mp4", "b.mp4"):
        write_video(noise, tmp_path / name, 30000 / 1001)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]
    video = read_video(tmp_path / "a.mp4")
    assert video.frames.dtype == torch.uint8 and torch.equal(video.frames, (noise * 255).round().byte())
    assert video.fps == pytest.approx(30000 / 1001)


def test_without_an_h264_encoder_there_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(video_file, "_ENCODERS", video_file._ENCODERS[1:])
    write_video(moving(8), tmp_path / "a.mp4", 7.5)
    video = read_video(tmp_path / "a.mp4")
    assert video.fps == 7.5
    assert (video.frames.float() - moving(8)).abs().mean() < 4


# Folders


def picture_folder(folder: Path, frames: Tensor) -> Path:
    folder.mkdir()
    for number, frame in enumerate(frames):
        Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()).save(folder / f"{number}.png")
    return folder


def test_pictures_of_a_folder_come_by_name(tmp_path):
    frames = moving(12)
    folder = picture_folder(tmp_path / "pictures", frames)
    (folder / "notes.txt").write_text("no picture")
    Image.open(folder / "3.png").convert("RGBA").save(folder / "3.png")
    video = read_video(folder)
    assert torch.equal(video.frames, frames)  # 2.png before 10.png
    assert video.fps == 2.0 and video.total_num_frames == 12
    assert read_video(folder, sampler(num_frames=4)).frames_indices == (0, 3, 6, 9)
    faster = read_video(folder, fps=4.0)
    assert len(faster.frames) == 12 and faster.fps == 4.0 and faster.metadata.sampled_fps == 4.0


def test_a_photograph_held_upright_is_upright(tmp_path):
    folder = picture_folder(tmp_path / "pictures", moving(4))
    held = Image.open(folder / "0.png").transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[274] = 6  # turn it clockwise to see it
    held.save(folder / "0.png", exif=exif)
    assert torch.equal(read_video(folder).frames, moving(4))


# Errors


def one_line(message: str) -> None:
    assert "\n" not in message and len(message) < 300


def test_errors_name_the_remedy(files, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("this is no video at all, but a text that says so")
    (tmp_path / "nothing.mp4").touch()
    content = files["one_gop.mp4"].read_bytes()
    (tmp_path / "half.mp4").write_bytes(content[: len(content) // 2])
    write_video(moving(3), tmp_path / "short.mp4")
    with av.open(str(tmp_path / "cover.mp4"), "w") as container:  # a piece of music with a picture
        stream = container.add_stream("aac", rate=8000, layout="mono")
        cover = container.add_stream("mjpeg", rate=1)
        cover.height, cover.width, cover.pix_fmt = 16, 16, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 2048), dtype=np.float32), format="fltp", layout="mono")
        sound.sample_rate = 8000
        container.mux([*cover.encode(), *stream.encode(sound), *stream.encode()])
    mixed = picture_folder(tmp_path / "mixed", moving(4))
    Image.new("RGB", (9, 9)).save(mixed / "2.png")
    broken = picture_folder(tmp_path / "broken", moving(4))
    (broken / "1.png").write_bytes((broken / "1.png").read_bytes()[:60])
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "absent.mp4", {}, "video: .*absent.mp4 does not exist; give a video file"),
        (tmp_path / "empty", {}, "holds no pictures"),
        (tmp_path / "text.mp4", {}, "cannot be read as a video"),
        (tmp_path / "nothing.mp4", {}, "cannot be read as a video"),
        (tmp_path / "half.mp4", {}, "cannot be read as a video"),
        (tmp_path / "cover.mp4", {}, "has no video stream"),
        (tmp_path / "short.mp4", {}, r"video: it has 3 frames, the model reads at least 4; give a longer one .*short"),
        (files["h264.mp4"], {"num_frames": 2}, "num_frames: the model reads at least 4 frames, got 2"),
        (files["h264.mp4"], {"num_frames": 48}, "num_frames: 48 cannot be taken of a video of 41; give at most 40"),
        (mixed, {}, "different sizes .48x32 and 9x9.; bring them to one size"),
        (broken, {}, "1.png cannot be read as a picture"),
    ]
    for path, arguments, message in cases:
        with pytest.raises(UserError, match=message) as error:
            read_video(path, sampler(**arguments))
        one_line(str(error.value))
    refused("it has no frames", sampler(), 0, 30.0)
    for path, rate, message in (("a.gif", 2.0, "must end in .mp4"), ("a.mp4", 0.0, "between 0.001 and 1000")):
        refused(message, write_video, moving(4), tmp_path / path, rate)


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "mpeg4.mp4", "h264.ts", "animated.gif"])
def test_damaged_files_are_refused_or_read_as_far_as_they_go(files, tmp_path, name):
    content = files[name].read_bytes()
    path = tmp_path / name
    rng = random.Random(0)
    for attempt in range(8):
        damaged = bytearray(content[: len(content) * rng.randint(50, 100) // 100])
        for _ in range(attempt * 4):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            video = read_video(path)
        except UserError as error:
            one_line(str(error))
        else:
            assert len(video.frames) == video.total_num_frames >= 4


def test_frames_that_ffmpeg_patched_up_are_refused(files, tmp_path):
    content, path = files["one_gop.mp4"].read_bytes(), tmp_path / "a.mp4"
    begin, end = content.index(b"mdat"), content.index(b"moov")
    outcomes = []
    for place in range((begin + end) // 2, end - 4, (end - begin) // 40):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            patched_up = len(decode_everything(path)) == 41
        except av.FFmpegError:
            continue
        if not patched_up:  # a frame was dropped instead; which, the encoder's threads decide
            continue
        try:
            read_video(path)
            outcomes.append("taken")  # not all damage is noticed
        except UserError as error:
            outcomes.append("refused" if "is damaged; repair" in str(error) else str(error))
    assert set(outcomes) <= {"taken", "refused"} and outcomes.count("refused") >= 3


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch):
    write_video(moving(4), tmp_path / "a.mp4")
    folder = picture_folder(tmp_path / "pictures", moving(4))
    monkeypatch.setitem(sys.modules, "av", None)
    for call in (lambda: read_video(tmp_path / "a.mp4"), lambda: write_video(moving(4), tmp_path / "b.mp4")):
        refused(r'pip install "vargen\[video\]"', call)
    assert len(read_video(folder).frames) == 4  # pictures need no PyAV
