"""The model for lmms-eval, against a stand-in of the parts of lmms-eval 0.7.3 that it touches.

What the stand-in keeps of the original: the registry's manifest and its checks of a model class, the abstract methods
of the base class, how a model is made of a string of arguments, and the tuple that a chat request holds. lmms-eval
itself is too heavy to be a dependency.
"""

import abc
import importlib
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import raised, refused
from scene_truth import render_video
from small_video_llms import build_video_llm, save_both
from transformers import Qwen2VLVideoProcessor

from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig
from scenes.rendering.story import sample_story
from scenes.rendering.video_file import write_video
from specdecode.trace import DecodeTrace
from vargen.methods.catalogue import resolve_method
from vargen.video.pipelines.answering import Answer
from vargen.video.pipelines.options import VideoOptions

pytest.importorskip("av")

PACKAGE = Path(__file__).resolve().parent.parent / "integrations" / "lmms_eval"
GROUP = "lmms_eval.models"


@dataclass(frozen=True)
class ModelManifest:
    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass
class TokenCounts:
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass
class GenerationResult:
    text: str
    token_counts: TokenCounts | None = None


class CacheHook:
    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        self.kept.append((attr, req, res))


class Lmms(abc.ABC):
    is_simple = True
    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.cache_hook = CacheHook()
        self.task_dict: dict[str, Any] = {}

    @abc.abstractmethod
    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]: ...

    @abc.abstractmethod
    def generate_until(self, requests: list[Any]) -> list[str]: ...

    @abc.abstractmethod
    def generate_until_multi_round(self, requests: list[Any]) -> list[str]: ...

    @classmethod
    def create_from_arg_string(cls, arguments: str, additional: dict[str, Any] | None = None) -> Any:
        parsed: dict[str, Any] = {}
        for name, value in (part.split("=", 1) for part in arguments.split(",") if part):
            try:
                parsed[name] = int(value) if value.isnumeric() else float(value)
            except ValueError:
                parsed[name] = value
        return cls(**parsed, **{name: value for name, value in (additional or {}).items() if value is not None})

    def clean(self) -> None:
        for name in [name for name, value in vars(self).items() if isinstance(value, torch.nn.Module)]:
            delattr(self, name)


@dataclass
class Request:
    args: tuple[Any, ...]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The stand-in in place of lmms-eval; what is logged by it."""
    metrics: list[dict[str, Any]] = []
    packages = ("lmms_eval", "lmms_eval.api", "lmms_eval.models", "lmms_eval.models.model_utils")
    contents: dict[str, dict[str, Any]] = {name: {} for name in packages} | {
        "lmms_eval.api.instance": {"GenerationResult": GenerationResult, "TokenCounts": TokenCounts},
        "lmms_eval.api.model": {"lmms": Lmms},
        "lmms_eval.models.registry_v2": {"ModelManifest": ModelManifest},
        "lmms_eval.models.model_utils.gen_metrics": {"log_metrics": lambda **figures: metrics.append(figures)},
    }
    for name, members in contents.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(PACKAGE)
    yield metrics
    sys.modules.pop("vargen_lmms_eval.model", None)


def model_class() -> Any:
    """As lmms-eval's registry resolves and checks it."""
    ((name, point),) = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"][GROUP].items()
    package, _, function = point.partition(":")
    found = getattr(importlib.import_module(package), function)()
    assert found.model_id == name == "vargen_video" and found.simple_class_path is None
    module, name = found.chat_class_path.rsplit(".", 1)
    resolved = getattr(importlib.import_module(module), name)
    assert issubclass(resolved, Lmms) and not resolved.is_simple
    return resolved


class FakeAnswerer:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.default_method = "flash"
        video_processor = Qwen2VLVideoProcessor()
        self.processor = types.SimpleNamespace(video_processor=video_processor)
        self.asked: list[dict[str, Any]] = []
        self.closed = False

    def answer(self, frames: Any, question: str, method: Any, **settings: Any) -> Answer:
        self.asked.append({"frames": len(frames.frames), "question": question, "method": method, **settings})
        trace = DecodeTrace(1)
        trace.record_prefill()
        for accepted in range(len(self.asked) + 1):  # 0 + 1 in the first answer, 0 + 1 + 2 in the second, ...
            trace.record_step(*(torch.tensor([value]) for value in (1, 5, accepted, accepted + 1, 0)))
        ids = list(range(trace.tokens))
        return Answer(f"about {question}", ids, [str(i) for i in ids], trace, 2.0, 40, 30, method)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def model(logged: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes the model around a `FakeAnswerer`, from a string of arguments."""
    resolved = model_class()
    made: list[VideoOptions] = []

    def from_options(options: VideoOptions, *, methods: list[Any]) -> FakeAnswerer:
        made.append(options)
        return FakeAnswerer()

    module = sys.modules["vargen_lmms_eval.model"]
    monkeypatch.setattr(module.VideoAnswerer, "from_options", from_options)

    def make(arguments: str = "", **additional: Any) -> Any:
        built = resolved.create_from_arg_string(arguments, {"batch_size": 1, "max_batch_size": None, **additional})
        built.made = made[-1]
        return built

    return make


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("videos") / "scene.mp4"
    write_video(render_video(sample_story(0, 11), 32), path)
    return path


def chat(video: Path, question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "video", "url": str(video)}, {"type": "text", "text": question}]}]


def ask(model: Any, video: Path, questions: list[str], **settings: Any) -> list[Any]:
    documents = [{"question": question} for question in questions]
    model.task_dict = {"task": {"test": documents}}
    requests = [
        Request((f"context {i}", lambda doc: chat(video, doc["question"]), dict(settings), i, "task", "test"))
        for i in range(len(documents))
    ]
    return model.generate_until(requests)


def test_answers_come_in_order_with_their_counts(model, video, logged):
    made = model("pretrained=some/folder,draft_model=other,method=lvspec,num_frames=4,seed=5", device="cpu")
    models = {"model": "some/folder", "draft_model": "other"}
    assert made.made == VideoOptions(**models, num_frames=4, device="cpu", max_new_tokens=256, seed=5)
    assert made.device == torch.device("cpu")
    results = ask(made, video, ["one", "two", "three"], max_new_tokens=16, temperature=0, until=["\n\n"])
    assert [result.text for result in results] == ["about one", "about two", "about three"]
    # 1 + (0 + 1) + (1 + 1), then with another step of 2 + 1, of 3 + 1
    assert [result.token_counts.output_tokens for result in results] == [4, 7, 11]
    assert results[0].token_counts.input_tokens == 40
    method = resolve_method("lvspec", task="video")
    unsaid = dict.fromkeys(("top_k", "top_p", "repetition_penalty"))
    shared = {"frames": 4, "method": method, "max_new_tokens": 16, "temperature": 0.0, **unsaid}
    wanted = [{**shared, "question": question, "seed": 5 + i} for i, question in enumerate(("one", "two", "three"))]
    assert made.answerer.asked == wanted
    assert [kept[2] for kept in made.cache_hook.kept] == ["about one", "about two", "about three"]
    asked = ("context 0", {"max_new_tokens": 16, "temperature": 0, "until": ["\n\n"]})
    assert made.cache_hook.kept[0][:2] == ("generate_until", asked)
    (figures,) = logged
    assert (figures["total_gen_tokens"], figures["total_elapsed_time"]) == (22, 6.0)
    assert figures["avg_speed"] == pytest.approx(22 / 6)
    more = figures["additional_metrics"]
    assert more["rank"] == 0 and more["target_passes"] == 3 + 4 + 5
    assert more["mean_accepted_length"] == pytest.approx((0 + 1 + 0 + 1 + 2 + 0 + 1 + 2 + 3) / 9)
    assert more["mean_accepted_length_with_bonus"] == pytest.approx(10 / 9 + 1)
    assert more["tokens_per_pass"] == pytest.approx(22 / 12)


def test_settings_of_a_task_and_their_defaults(model, video):
    made = model("max_new_tokens=77", device="cpu")
    for settings, expected in (
        ({}, (77, 0.0, None)),
        ({"max_new_tokens": 8, "temperature": 0.5, "top_p": 0.9, "num_beams": 1}, (8, 0.5, 0.9)),
        ({"temperature": 0.5, "do_sample": False, "top_k": 5, "top_p": None}, (77, 0.0, None)),
    ):
        ask(made, video, ["what?"], **settings)
        asked = made.answerer.asked[-1]
        assert (asked["max_new_tokens"], asked["temperature"], asked["top_p"]) == expected
    ask(made, video, ["what?"], repetition_penalty=1.1)
    assert made.answerer.asked[-1]["repetition_penalty"] == 1.1
    refused("num_beams: beams", ask, made, video, ["what?"], num_beams=3)


@pytest.mark.parametrize(("arguments", "frames"), [("", 10), ("num_frames=6", 6), ("fps=1", 4)])
def test_short_videos_are_taken_whole(model, video, arguments, frames):
    """11 frames, 2 a second; steps of two."""
    made = model(arguments, device="cpu")
    ask(made, video, ["what?"])
    assert made.answerer.asked[0]["frames"] == frames


def test_what_is_no_question_about_a_video_is_refused(logged):
    for messages, message in (
        ([{"role": "user", "content": "what?"}], "one video file is needed, got none"),
        ([{"role": "user", "content": [{"type": "image", "url": object()}] * 2}], "got image, image"),
        ([{"role": "user", "content": [{"type": "video", "url": [object()]}]}], "needed, got frames of one"),
        ([{"role": "user", "content": [{"type": "video", "url": "a"}] * 2}], "got video, video"),
        ([{"role": "user", "content": [{"type": "video", "url": "a", "start_time": 1.0}]}], "a part of a video"),
        ([{"role": "assistant", "content": "so"}], "num_fewshot"),
    ):
        model_class()
        read_messages = sys.modules["vargen_lmms_eval.model"].read_messages
        refused(message, read_messages, messages)
        system = [{"role": "system", "content": "be brief."}, *chat(Path("a.mp4"), " what? ")]
        assert read_messages(system) == ("a.mp4", "be brief.\nwhat?")


def test_bad_arguments_are_refused_before_a_model_is_loaded(model):
    for arguments, additional, message in (
        ("", {"batch_size": 4}, "batch_size must be 1, got 4"),
        ("num_frames=4,fps=2", {}, "cannot both be given"),
        ("method=fast", {}, "fast"),
        ("method=lvspec,method_options.loose_ratio=2", {}, "loose_ratio"),
        ("method=lvspec,method_options.lose_ratio=0.5", {}, "lose_ratio"),
    ):
        refused(message, model, arguments, **{"device": "cpu", **additional})
    raised(TypeError, "temperatur", model, "temperatur=1", device="cpu")


def test_it_gives_its_memory_back(model, video):
    made = model(device="cpu")
    answerer = made.answerer
    made.clean()
    assert answerer.closed and made.answerer is None
    refused("has released", ask, made, video, ["what?"])
    for kind in (made.loglikelihood, made.generate_until_multi_round):
        raised(NotImplementedError, "vargen_video", kind, [])


def test_each_process_has_its_own_device(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, device: torch.zeros(1))  # a device is tried before it is used
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert model().made.device == "cuda:3"
    made = model("device=cuda:1,dtype=float16").made
    assert (made.device, made.dtype) == ("cuda:1", "float16")


def test_a_real_model_answers(logged, video, tmp_path):
    torch.manual_seed(0)
    config = VideoLLMConfig(32, 8, 4, TextModelConfig(32, 48, 2, 2, 1), TowerConfig(16, 32, 1, 2))
    save_both(tmp_path, *build_video_llm(config))
    made = model_class().create_from_arg_string(f"pretrained={tmp_path},num_frames=8,device=cpu", {"batch_size": 1})
    results = ask(made, video, ["describe the video in detail."] * 2, max_new_tokens=5)
    assert results[0].text == results[1].text and 1 <= results[0].token_counts.output_tokens <= 5
    assert results[0].token_counts.input_tokens > 16
    assert logged[0]["total_elapsed_time"] > 0 and logged[0]["additional_metrics"]["mean_accepted_length"] == 0
