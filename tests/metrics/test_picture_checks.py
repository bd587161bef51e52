"""What benchmarks ask, answered by stand-ins of the networks, and figures by group counted by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from refusals import raised
from torch import Tensor

from metrics.composition import Composition, CompositionRule, Found, Wanted
from metrics.errors import DataError
from metrics.extractors import CLIPFeatures
from metrics.picture_checks import (
    CompositionCheck,
    QuestionCheck,
    benchmark_scores,
    check_names,
    check_pictures,
    group_mean,
    most_asked,
    needs_check,
)
from metrics.prompt_formats import BenchmarkPrompt, Question
from metrics.tables import markdown_groups

PICTURE = torch.zeros(3, 32, 32, dtype=torch.uint8)
RED = BenchmarkPrompt("a red cube", {"task": "colors"}, Composition((Wanted("cube", 1, "red"),)))
TWO = BenchmarkPrompt("two cubes", {"task": "counting"}, Composition((Wanted("cube", 2),), (), "counting"))
ASKED = (
    Question("Is there a cube?", "entity"),
    Question("Is it red?", "attribute", (0,)),
    Question("Is it near?", "relation", (1,)),
)


class Finds:
    """A detector that finds the same in every picture."""

    identity = "finds"

    def __init__(self, *found: Found) -> None:
        self.found = found

    def check(self, names: Sequence[str]) -> None: ...

    def __call__(self, picture: Tensor, names: Sequence[str]) -> list[Found]:
        return [item for item in self.found if item.name in names]


class Names:
    """A CLIP whose picture features are those of one text."""

    identity = "names"

    def __init__(self, text: str) -> None:
        self.text, self.shown = text, list[Tensor]()

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([torch.tensor([float(self.text in text), 1.0]) for text in texts])

    def __call__(self, pictures: Tensor) -> Tensor:
        self.shown.append(pictures[0])
        return torch.tensor([[1.0, 0.0]])


def test_colours_are_named_by_clip_on_grey():
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[4:8, 4:12] = True
    detector = Finds(Found("cube", 0.9, (4.0, 4.0, 12.0, 9.0), mask))
    for colour, right in (("red", True), ("blue", False)):
        clip: Any = Names(f" {colour}")
        check = CompositionCheck(detector, clip, CompositionRule())
        assert check(PICTURE, RED) == [right]
        (shown,) = clip.shown
        assert shown.shape == (3, 5, 8) and (shown[:, 4] == 0x99).all() and not shown[:, :4].any()
    outside = CompositionCheck(Finds(Found("cube", 0.9, (40.0, 4.0, 50.0, 9.0))), clip, CompositionRule())
    assert outside(PICTURE, RED) == [False]
    assert not len(clip.shown) > 1


def test_a_real_clip_takes_what_was_cut_out(clip_folder):
    finds = Finds(Found("cube", 0.9, (3.2, 4.0, 12.0, 9.0)))
    check = CompositionCheck(finds, CLIPFeatures(clip_folder), CompositionRule())
    assert check(PICTURE, RED) in ([True], [False])


def test_answers_are_a_table():
    class Answers:
        identity = "answers"

        def __call__(self, picture: Tensor, questions: Sequence[str]) -> list[str]:
            return ["yes" if "cube" in question else "no" for question in questions]

    answers: Any = Answers()
    prompts = [BenchmarkPrompt("a", {}, None, ASKED), BenchmarkPrompt("b", {}, None, ASKED[:1])]
    table = check_pictures(QuestionCheck(answers), [PICTURE] * 2, prompts, most_asked(prompts))
    assert table.tolist() == [[1, 0, 0], [1, -1, -1]]
    assert needs_check(prompts) == "vqa_model" and needs_check([RED]) == "detector" and needs_check([]) is None
    assert most_asked([RED, TWO]) == 1


def test_a_yes_that_depends_on_a_no_is_none():
    prompts = [BenchmarkPrompt(name, {"source": name}, None, ASKED) for name in "ab"]
    prompts.append(BenchmarkPrompt("c", {"source": "c"}))
    answers = torch.tensor([[1, 0, 1], [1, 1, 1], [-1, -1, -1]], dtype=torch.int8)
    told = benchmark_scores(prompts, {}, answers, draws=0)
    assert told["dpg"]["score"]["value"] == pytest.approx((1 / 3 + 1) / 2)
    shares = {name: each["value"] for name, each in told["dpg"]["categories"].items()}
    assert shares == {"entity": 1.0, "attribute": 0.5, "relation": 1.0}, "of all questions, whatever they depend on"
    groups = told["groups"]["source"]
    assert groups["a"]["questions"]["value"] == pytest.approx(1 / 3) and groups["c"]["questions"] is None
    assert "| c      | x" in markdown_groups([{"method": "x", **told}])


def test_tasks_count_alike_and_prompts_are_right_once():
    prompts = [RED, RED, RED, TWO]
    told = benchmark_scores(prompts, {}, torch.tensor([[1], [0], [0], [0]]), draws=20)
    assert told["groups"]["task"]["colors"]["count"] == 3
    assert told["geneval"]["overall"]["value"] == pytest.approx((1 / 3 + 0) / 2)
    assert told["geneval"]["pictures"]["value"] == 0.25 and told["geneval"]["prompts"]["value"] == 0.5
    table = markdown_groups([{"method": "ar", **told}, {"method": "scd", **told}])
    assert table.count("| colors") == 2 and "mean over tasks, %" in table


def test_few_numbers_have_no_interval():
    assert group_mean(torch.arange(7.0), 50) == {"value": 3.0, "interval": None}
    assert group_mean(torch.arange(8.0), 50)["interval"] is not None  # type: ignore[index]
    assert group_mean(torch.tensor([True, False]), 50)["interval"] is not None  # type: ignore[index]
    assert group_mean(torch.tensor([torch.nan]), 50) is None


def test_a_class_that_the_detector_does_not_know():
    from scenes.judge.object_detector import SceneDetector

    dog = BenchmarkPrompt("a dog", {}, Composition((Wanted("dog"),)))
    told = "the judge of scenes knows no 'dog'; name the folder"
    raised(DataError, told, check_names, SceneDetector(reader=object()), [dog])  # type: ignore[arg-type]
