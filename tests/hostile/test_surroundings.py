"""Modes of torch, locales, words and videos around a call that is right in itself: bug reports of other projects, tried
here. The same answer as in plain surroundings, or one line."""

import inspect
import io
import itertools
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import emu3_models
import glm_image_models
import janus_models
import language_models
import pytest
import token_image_models
import torch
from hostile import check_refused
from refusals import refused
from tiny_pipelines import build_drafting_pipeline
from torch import nn
from video_pairs import answerer_of, cases, qwen_pair  # noqa: F401  # the fixtures are for the tests below

import specdecode
from metrics.extractors import CLIPFeatures
from vargen.base.errors import UserError
from vargen.cli import main
from vargen.methods.catalogue import methods_for
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.token_images import TokenImagePipeline
from vargen.video.models.frames import VideoFrames
from vargen.video.pipelines.answering import VideoAnswerer


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


def in_inference_mode(call: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return call()


def in_autocast(call: Callable[[], Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return call()


def check_modes(call: Callable[[], Any]) -> None:
    """What a mode leaves behind may end the next call, so a plain call stands before, between and after."""
    inside, plain = in_inference_mode(call), call()
    assert inside == plain and in_autocast(call) == plain and in_inference_mode(call) == plain and call() == plain


@pytest.mark.parametrize("method", sorted(methods_for("image")))
@pytest.mark.filterwarnings("ignore")
def test_modes_around_a_picture(method):
    """Every method: each keeps caches of its own."""
    pipeline = build_drafting_pipeline()
    prompts = ["a red cube", "a blue cone"]
    check_modes(lambda: pipeline(prompts, method=method, generator=seeds(0, 1)).tokens.tolist())


def janus() -> tuple[Any, dict[str, Any]]:
    return JanusPipeline(janus_models.make().float(), janus_models.processor()), {}


def emu3() -> tuple[Any, dict[str, Any]]:
    return Emu3Pipeline(emu3_models.make().float(), emu3_models.processor()), {**emu3_models.SIZE}


def anole() -> tuple[Any, dict[str, Any]]:
    family = token_image_models.tiny_family("anole")
    model, tokenizer = token_image_models.tiny_model(family), token_image_models.tiny_tokenizer(family)
    return TokenImagePipeline(model, tokenizer, None, family), {"height": 32, "width": 64}


def glm_image() -> tuple[Any, dict[str, Any]]:
    pipe = glm_image_models.make()
    glm_image_models.mend(pipe)
    return GlmImagePriorPipeline.from_pipe(pipe), {"height": 64, "width": 96}


FAMILIES = [janus, emu3, anole, glm_image]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_modes_around_a_picture_of_another_family(family):
    pipeline, size = family()
    pipeline.set_progress_bar_config(disable=True)
    own = {} if family is glm_image else {"output_type": "latent"}
    check_modes(lambda: pipeline(["a dog", "the dog runs"], generator=seeds(0, 1), **size, **own).tokens.tolist())


@pytest.mark.parametrize("family", [build_drafting_pipeline, *FAMILIES])
def test_parts_that_are_wrapped_or_train_are_named(family):
    """Every part of every family: `DataParallel` hides its attributes, and dropout would draw another picture."""
    pipeline, size = family() if family in FAMILIES else (family(), {})
    modules = {name: each for name, each in pipeline.components.items() if isinstance(each, nn.Module)}
    assert modules
    for name, module in modules.items():
        wrapped = nn.DataParallel(module)
        refused(rf"^{name} must be .*, got (a )?DataParallel; give its .module", setattr, pipeline, name, wrapped)
        module.train()
        refused(rf"^{name} must be in evaluation mode; call {name}.eval\(\)$", pipeline, "a dog", **size)
        module.eval()
        refused(rf"^{name} must be .*DataParallel", type(pipeline), **{**pipeline.components, name: wrapped})


def test_models_of_a_text_or_a_video_that_are_wrapped_or_elsewhere_are_named(qwen_pair):  # noqa: F811
    model, prompt = language_models.make("llama"), torch.tensor([[3, 5, 3]])
    elsewhere = language_models.make("llama").to("meta")
    for given, told in (
        ({"model": nn.DataParallel(model)}, r"^model must be .*DataParallel; give its \.module"),
        ({"draft_model": nn.DataParallel(model)}, r"^draft_model: .*DataParallel; give its \.module"),
        ({"model": elsewhere}, "^model must lie where input_ids do, on cpu, got meta; move one of them"),
        ({"draft_model": elsewhere}, "^draft_model must lie where input_ids do, on cpu, got meta"),
        ({"attention_mask": torch.ones(1, 3, device="meta")}, "^attention_mask must lie where input_ids do"),
    ):
        with pytest.raises(ValueError, match=told):
            specdecode.generate(**{"model": model, "input_ids": prompt, "max_new_tokens": 2, **given})
    with pytest.raises(ValueError, match=r"^draft_model must lie where input_ids do"):
        model.generate(prompt, max_new_tokens=2, custom_generate=specdecode.custom_generate, draft_model=elsewhere)
    video: Any = nn.Linear(1, 1)
    for name in ("model", "draft_model"):
        with pytest.raises(UserError, match=rf"^{name} must be the model itself, got a DataParallel; give its .module"):
            VideoAnswerer(**{"model": video, "processor": None, name: nn.DataParallel(video)})


def test_modes_around_a_stream():
    pipeline = build_drafting_pipeline()

    def draw() -> list[list[int]]:
        stream = pipeline.stream(["a red cube", "a blue cone"], generator=seeds(0, 1), batch_size=1)
        return [picture.tokens.tolist() for picture in stream]

    check_modes(draw)


@pytest.mark.filterwarnings("ignore")
def test_modes_around_an_answer(qwen_pair, cases, answerer_of):  # noqa: F811
    answerer = answerer_of(qwen_pair)
    check_modes(lambda: answerer.answer(cases[0].frames, "what?", "sd", max_new_tokens=6).token_ids)


def test_modes_around_a_text():
    model = language_models.make("llama")
    prompt = torch.tensor([[3, 5, 3, 5, 3]])
    check_modes(lambda: specdecode.generate(model, prompt, max_new_tokens=8).sequences.tolist())


@pytest.mark.filterwarnings("ignore")
def test_a_video_of_one_frame_is_refused_wherever_it_comes_from(
    qwen_pair,  # noqa: F811
    answerer_of,  # noqa: F811
):
    one = VideoFrames.from_frames(torch.zeros(1, 3, 56, 56))
    with pytest.raises(UserError, match="video: it has 1 frame, the model reads at least"):
        answerer_of(qwen_pair).answer(one, "what?", "ar", max_new_tokens=2)


def test_a_prompt_of_utf8_under_a_locale_of_ascii(tmp_path, capsys):
    as_python_takes_it = "ein grüner Würfel".encode().decode("ascii", "surrogateescape")
    command = ["generate", as_python_takes_it, "--output", str(tmp_path / "out")]
    check_refused(command, "is UTF-8 text, but the locale is not of UTF-8; set PYTHONUTF8=1", capsys, tmp_path)


VARIABLES = (
    *(("COLUMNS", value) for value in ("0", "-5", "abc", "1000000000")),
    ("TMPDIR", "/none"),
    ("VARGEN_CACHE", "f"),
)


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_variables_that_mean_nothing_stop_no_run(name, value, tiny_model_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "f").write_text("a file, which holds no cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert main(["generate", "a", "--model", str(tiny_model_folder), "--output", "out", "--quiet"]) == 0
    assert main(["methods"]) == 0 and "jacobi" in capsys.readouterr().out
    assert (tmp_path / "out/images/000000.png").is_file()


def test_unknown_kernels_end_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VARGEN_KERNELS", "abc")
    command = ["generate", "a red ball", f"--output={tmp_path / 'out'}"]
    check_refused(command, "VARGEN_KERNELS must be one of auto, plain, got 'abc'", capsys, tmp_path)


def _few_descriptors(work: Path, later: ExitStack) -> None:
    limits, free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(free)
    later.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))


def _few_levels(work: Path, later: ExitStack) -> None:
    later.callback(sys.setrecursionlimit, sys.getrecursionlimit())
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)


def _nowhere(work: Path, later: ExitStack) -> None:
    (work / "gone").mkdir()
    os.chdir(work / "gone")
    (work / "gone").rmdir()


def _backwards(work: Path, later: ExitStack) -> None:
    now, patch = itertools.count(10**9, -5), later.enter_context(pytest.MonkeyPatch.context())
    for name in ("time", "perf_counter"):
        patch.setattr(time, name, lambda: float(next(now)))


def _umask(work: Path, later: ExitStack) -> None:
    later.callback(os.umask, os.umask(0o777))


@pytest.mark.parametrize("around", [_few_descriptors, _few_levels, _nowhere, _backwards, _umask])
def test_what_surrounds_a_run_ends_in_no_traceback(around, tiny_model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["generate", "a", "--model", str(tiny_model_folder), "--output", str(tmp_path / "out"), "--quiet"]
    with ExitStack() as later:
        around(tmp_path, later)
        code = main(command)
    told = capsys.readouterr().err
    assert code == 0 or (code, told.count("vargen: error: "), told.count("\n")) == (2, 1, 1), told
    if around is _umask:  # then what it made itself is closed to it, but not to root
        assert (code == 0) == (os.geteuid() == 0), told
        return
    assert (code == 0) == (around in (_backwards, _nowhere)), told
    assert "Traceback" not in told and (code == 0 or main(command) == 0)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(("stream", "code"), [("closed", 0), ("full", 2), ("read by nobody", 1)])
def test_streams_that_take_nothing(name, stream, code, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    place = "/dev/full" if stream == "full" else writer
    monkeypatch.setattr(
        sys, name, None if stream == "closed" else io.TextIOWrapper(io.FileIO(place, "w"), line_buffering=True)
    )
    found = main(["methods"]), main(["nonsense"])
    assert found == (code if name == "stdout" else 0, 2)


def test_captions_that_clip_cannot_read_are_told(clip_folder):
    clip = CLIPFeatures(clip_folder)
    with pytest.warns(UserWarning, match="CLIP does not know every word of '红色的球'"):
        clip.encode_text(["红色的球", "绿色的球"])
    known = sorted(set(clip.tokenizer.get_vocab()) - set(clip.tokenizer.all_special_tokens))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CLIPFeatures(clip_folder).encode_text([" ".join(known[:3])])


def test_components_draw_the_same_pictures():
    pipeline = build_drafting_pipeline()
    own = {"window": 3}
    usual = {"default_guidance_scale": 2.0, "default_top_k": 5, "default_temperature": 0.5}
    first = LlamaGenPipeline(**pipeline.components, methods={"sjd": own}, **usual)
    again = LlamaGenPipeline(**first.components)
    assert [again.config[name] for name in (*usual, "methods")] == [*usual.values(), {"sjd": own}]
    third = LlamaGenPipeline(**pipeline.components)  # not as the last pipeline of these modules
    assert dict(third.config) == dict(pipeline.config) != dict(again.config)
