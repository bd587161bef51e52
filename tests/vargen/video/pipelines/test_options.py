"""Options of a pair, and that what is wrong with a model or a video is said in one line before weights are loaded."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import refused, refuses
from transformers import (
    LlavaNextVideoVideoProcessor,
    LlavaOnevisionVideoProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLVideoProcessor,
)
from transformers.video_utils import VideoMetadata

from scenes.rendering.video_file import write_video
from vargen.checkpoints.options import LoadingOptions
from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.video.jobs.cases import VideoCase
from vargen.video.methods.catalogue import default_method
from vargen.video.methods.parallelvlm import ParallelConfig
from vargen.video.models.architectures.catalogue import ARCHITECTURES
from vargen.video.models.context import ContextUse
from vargen.video.models.frames import frame_sampler
from vargen.video.pipelines.answering import VideoAnswerer, sized_inputs
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.loading import LazyModel, load_processor, open_video_model
from vargen.video.pipelines.options import VideoOptions

QUESTION = "describe the video in detail."
BOTH = {"quantization": "int8", "draft_quantization": "int4"}


@pytest.mark.parametrize(
    ("given", "target", "drafter"),
    [
        ({"device": "cpu"}, {"device": "cpu"}, {"device": "cpu"}),
        ({"device_map": "auto"}, {"device_map": "auto"}, {"device_map": "auto"}),
        (
            {"device_map": "cuda:0, cuda:1", "revision": "a", "draft_revision": "b"},
            {"device_map": "cuda:0", "revision": "a"},
            {"device_map": "cuda:1", "revision": "b"},
        ),
        ({"quantization": "int8"}, {"quantization": "int8"}, {"quantization": "int8"}),
        (BOTH, BOTH, {"quantization": "int4"}),
    ],
)
def test_target_and_drafter_have_places_of_their_own(given, target, drafter):
    options = VideoOptions(model="large", draft_model="small", **given)
    assert options.of_target == LoadingOptions("large", **target)
    assert options.of_draft_model == LoadingOptions("small", **drafter)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"num_frames": 4, "fps": 2.0}, "num_frames and fps"),
        ({"device_map": "cuda:0,cuda:1,cuda:2"}, "device_map"),
        ({"device_map": "auto", "device": "cpu"}, "device cannot be given beside device_map"),
        ({"draft_revision": "main"}, "draft_revision"),
        ({"quantization": "int3"}, "quantization"),
    ],
)
def test_wrong_options_are_refused_by_name(given, named):
    refused(named, VideoOptions, **given)


VIDEO_PROCESSORS = [
    Qwen2VLVideoProcessor(do_sample_frames=True, fps=2),
    Qwen2VLVideoProcessor(),
    Qwen3VLVideoProcessor(),
    LlavaOnevisionVideoProcessor(),
    LlavaNextVideoVideoProcessor(do_sample_frames=True, num_frames=8),
]


@pytest.mark.parametrize("own", VIDEO_PROCESSORS)
@pytest.mark.parametrize("asked", [{}, {"num_frames": 12}, {"fps": 1.5}])
def test_frames_are_those_the_processor_would_take(own, asked):
    """By the processor itself, from a whole video in which every frame has a colour of its own."""
    total, rate = 60, 12.0
    chosen = frame_sampler(SimpleNamespace(video_processor=own), **asked)(total, rate)
    video = torch.arange(total, dtype=torch.uint8)[:, None, None, None].expand(total, 3, 32, 32)
    metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
    told = {"do_sample_frames": True, **asked} if asked else {"do_sample_frames": own.do_sample_frames}
    _, (made,) = own._decode_and_sample_videos(
        [video], [metadata], told["do_sample_frames"], lambda metadata: own.sample_frames(metadata=metadata, **asked)
    )
    theirs = range(total) if made.frames_indices is None else made.frames_indices
    assert chosen == [int(number) for number in theirs]


def test_a_video_that_no_rule_fits_is_refused():
    choose = frame_sampler(SimpleNamespace(video_processor=Qwen2VLVideoProcessor()))
    refused(r"900 frames, more than 768.*give num_frames or fps", choose, 900, 30.0)


def test_what_a_video_takes_is_said_and_what_is_too_long_refused(qwen_pair, cases):
    found = open_video_model(qwen_pair / "target")
    processor = load_processor(found)
    inputs = sized_inputs(processor, found.architecture, cases[0].frames, QUESTION)
    use = ContextUse.of(found.config, inputs, 4, 2)
    # 4 frames of 64 pixels in patches of 8, two frames and four patches to a token; 3 layers of 2 heads of 16.
    assert use.visual_tokens == 32 and use.bytes_per_token == 2 * 3 * 2 * 16 * 2
    assert str(use).startswith("4 frames, 32 visual tokens; keys and values of the prompt take 0.0 MiB")
    use.check(256)
    long = ContextUse(600, 216_000, 216_030, 128_000, 3, 28 * 2 * 4 * 128 * 2)
    assert "11.5 GiB" in str(long)
    refused(r"600 frames are 216,000 visual tokens.*num_frames 354 or fewer.*max_pixels", long.check, 256)
    refused(r"give fewer frames \(num_frames, fps\)$", ContextUse(2, 90, 95, 100, 1, 8).check, 99)


def test_frames_have_at_most_the_pixels_asked_for(qwen_pair, cases):
    found = open_video_model(qwen_pair / "target")
    small = sized_inputs(load_processor(found), found.architecture, cases[0].frames, QUESTION, 32 * 32)
    assert small["video_grid_thw"].tolist() == [[2, 4, 4]]
    # Qwen3-VL's processor counts all frames together.
    size = ARCHITECTURES["qwen3_vl"].frame_size(Qwen3VLVideoProcessor(), 1000, 8)
    assert size == {"shortest_edge": 8000, "longest_edge": 8000}
    frame_size = ARCHITECTURES["llava_onevision"].frame_size
    refused("max_pixels cannot be used with LLaVA-OneVision", frame_size, LlavaOnevisionVideoProcessor(), 1000, 8)


def test_a_drafter_is_loaded_when_a_method_asks_and_not_for_another_process(qwen_pair, cases):
    answerer = VideoAnswerer.from_pretrained(str(qwen_pair / "target"), str(qwen_pair / "draft"))
    assert isinstance(answerer.draft_model, LazyModel) and answerer.draft_model._loaded is None
    components = answerer.components([answerer.inputs(cases[0].frames, QUESTION)])
    assert isinstance(components, VideoLLMComponents) and components.vocab_size > 0
    players: Any = ParallelConfig(draft_length=3).build(components)
    assert players.pair.drafter is answerer.draft_model and answerer.draft_model._loaded is None
    assert components.draft_weights("pair") is components.draft_weights("pair")
    assert answerer.draft_model.elsewhere()._loaded is None
    answerer.close()


@pytest.fixture
def clip(tmp_path: Path, cases: list[VideoCase]) -> str:
    path = tmp_path / "clip.mp4"
    write_video(cases[0].frames.frames, path)
    return str(path)


def test_a_name_on_the_hub_goes_to_the_hub(monkeypatch, qwen_pair, capsys, clip):
    """Weights after everything that the small files can say, and of the commit that these are of."""
    asked: list[tuple[str, str | None, bool]] = []

    def fetch(name: str, revision: str | None, files: Any, argument: str) -> Path:
        asked.append((name, revision, "*.safetensors" in files))
        return qwen_pair / ("target" if argument == "model" else "draft")

    monkeypatch.setattr("vargen.video.pipelines.loading.fetch", fetch)
    pair = ["--model", "some/large", "--revision", "v2", "--draft_model", "some/small", "--draft_revision", "v3"]
    more = ["--device_map", "cpu,cpu", "--attn_implementation", "eager", "--fps", "2", "--max_new_tokens", "4"]
    assert main(["caption", clip, *pair, *more]) == 0
    small = [("some/large", "v2", False), ("some/small", "v3", False)]
    assert asked == [*small, ("some/small", "draft", True), ("some/large", "target", True)]
    assert "32 visual tokens" in capsys.readouterr().err


def test_a_clip_too_long_is_refused_before_weights_are_fetched(monkeypatch, qwen_pair, tmp_path, capsys, clip):
    """The folder has none, and nobody asks for them."""
    small = shutil.copytree(qwen_pair / "target", tmp_path / "small", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((small / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 40
    (small / "config.json").write_text(json.dumps(config))

    def fetch(name: str, revision: str | None, files: Any, argument: str) -> Path:
        assert "*.safetensors" not in files
        return small

    monkeypatch.setattr("vargen.video.pipelines.loading.fetch", fetch)
    refuses(capsys, main(["caption", clip, "--model", "some/large"]), "more than the context of 40 tokens")


@pytest.mark.parametrize(
    ("trained", "paired", "name"),
    [((), False, "ar"), ((), True, "sd"), (("sparrow", "flash"), True, "flash"), (("sparrow",), False, "sparrow")],
)
def test_who_names_no_method_gets_one_whose_drafter_is_there(trained, paired, name):
    resolve_method(name, task="video").check_drafter(trained, paired)
    assert default_method(trained, paired) == name


@pytest.fixture
def alone(qwen_pair: Path, tmp_path: Path) -> str:
    """A target that nothing trained came with."""
    return str(shutil.copytree(qwen_pair / "target", tmp_path / "alone", ignore=shutil.ignore_patterns("drafters")))


def test_a_model_without_a_drafter_answers_plainly_and_says_so(alone, qwen_pair, clip, capsys):
    small = str(qwen_pair / "draft")
    answer = ["caption", clip, "--model", alone, "--max_new_tokens", "8"]
    assert main(answer) == 0
    plain = capsys.readouterr()
    assert "alone has no drafter" in plain.err and "\nar: 8 tokens, 8 target passes" in plain.err
    assert plain.out.endswith("\n") and not plain.out.endswith("\n\n")
    assert main([*answer, "--draft_model", small]) == 0
    drafted = capsys.readouterr()
    assert "no drafter" not in drafted.err and "sd: 8 tokens" in drafted.err and drafted.out == plain.out
    refuses(capsys, main([*answer, "--method_options.draft_length", "3"]), "method_options needs method")
    for option, told in (("--method", "method '' is not known"), ("--draft_model", "no folder with a config.json")):
        refuses(capsys, main([*answer, option, ""]), told)


@pytest.mark.parametrize(
    ("method", "told"),
    [(name, "draft_model must be given") for name in ("sd", "specvlm", "fly", "lvspec", "parallelvlm")]
    + [(name, f"{name}.drafter must be given") for name in ("eagle", "msd", "vispec", "sparrow", "flash")],
)
def test_a_method_without_its_drafter_is_refused_before_weights_are_loaded(
    method, told, alone, clip, monkeypatch, capsys
):
    monkeypatch.setattr(LazyModel, "load", lambda self: pytest.fail("weights were loaded"))
    refuses(capsys, main(["caption", clip, "--model", alone, "--method", method]), told)


def test_every_setting_of_a_call_reaches_the_answer(qwen_pair, cases, answerer_of):
    answerer = answerer_of(qwen_pair)
    plain = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=20)
    penalised = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=20, repetition_penalty=1.5)
    assert plain.token_ids != penalised.token_ids
    only = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=20, temperature=5.0, top_k=1)
    assert only.token_ids == plain.token_ids
    own = answerer.model.generation_config
    try:
        own.repetition_penalty = 1.5
        again = answerer.answer(cases[0].frames, QUESTION, "sd", max_new_tokens=20)
    finally:
        own.repetition_penalty = None
    assert again.token_ids == penalised.token_ids


def test_a_draft_model_is_named_or_comes_with_the_shipped_model():
    given = [{}, {"model": "large"}, {"model": "large", "draft_model": "small"}, {"draft_model": "small"}]
    assert [VideoOptions(**each).paired for each in given] == [True, False, True, True]  # type: ignore[arg-type]
