"""Whether pictures show what their benchmark asks: objects by a detector, questions by a network that answers.

Does not belong here: the rule (`metrics.composition`), networks (`metrics.picture_readers`), forms of prompts
(`metrics.prompt_formats`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from metrics.composition import COLOURS, CompositionRule, Found
from metrics.extractors import CLIPFeatures
from metrics.picture_readers import Detector, VisualAnswers
from metrics.prompt_formats import BenchmarkPrompt
from metrics.proportion import clustered_interval
from metrics.quality import figure, mean_figure

_LEAST_NUMBERS = 8
_BACKGROUND = 0x99
"""Grey around an object whose colour is asked, as the published evaluator has it."""
_COLOUR_TEXTS = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")


FigureOf = Callable[[list[int]], dict[str, Any] | None]
"""A figure over the pictures with these numbers; None where it cannot be made of them."""


class PictureCheck(Protocol):
    """Answers what is asked of each picture."""

    @property
    def identity(self) -> str: ...

    def __call__(self, picture: Tensor, prompt: BenchmarkPrompt) -> list[bool]:
        """The answers for a picture, uint8 `[3, H, W]`."""


@dataclass(frozen=True)
class CompositionCheck:
    """GenEval: one answer a picture, by a detector, and colours by CLIP.

    Args:
        detector: finds objects.
        clip: names colours that the detector does not.
        rule: the protocol's.
    """

    detector: Detector
    clip: CLIPFeatures
    rule: CompositionRule
    _named: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def identity(self) -> str:
        return f"{self.detector.identity}, colours by {self.clip.identity}"

    def __call__(self, picture: Tensor, prompt: BenchmarkPrompt) -> list[bool]:
        wanted = prompt.composition
        assert wanted is not None
        names = list(dict.fromkeys(each.name for each in (*wanted.include, *wanted.exclude)))
        found = self.detector(picture, names)
        return [self.rule.holds(wanted, found, lambda item: self._colour(picture, item))]

    def _colour(self, picture: Tensor, item: Found) -> str | None:
        if item.colour is not None:
            return item.colour
        height, width = picture.shape[-2:]
        left, top, right, bottom = (round(edge) for edge in item.box)
        left, right = max(left, 0), min(right, width)
        top, bottom = max(top, 0), min(bottom, height)
        if left >= right or top >= bottom:
            return None
        if item.mask is not None:
            picture = torch.where(item.mask, picture, torch.tensor(_BACKGROUND, dtype=torch.uint8))
        shown = self.clip(picture[None, :, top:bottom, left:right])
        return COLOURS[int((self._colours_of(item.name) @ shown[0]).argmax())]

    def _colours_of(self, name: str) -> Tensor:
        """What CLIP makes of a class in each colour, made once."""
        if name not in self._named:
            texts = [text.format(colour=colour, name=name) for colour in COLOURS for text in _COLOUR_TEXTS]
            means = self.clip.encode_text(texts).unflatten(0, (len(COLOURS), -1)).mean(1)
            self._named[name] = torch.nn.functional.normalize(means, dim=-1)
        return self._named[name]


@dataclass(frozen=True)
class QuestionCheck:
    """DPG-Bench: an answer for each question."""

    answers: VisualAnswers

    @property
    def identity(self) -> str:
        return self.answers.identity

    def __call__(self, picture: Tensor, prompt: BenchmarkPrompt) -> list[bool]:
        return [answer == "yes" for answer in self.answers(picture, [each.text for each in prompt.questions])]


def check_pictures(
    check: PictureCheck, pictures: Sequence[Tensor], prompts: Sequence[BenchmarkPrompt], most: int
) -> Tensor:
    """int8 `[B, most]`: 1 what holds, 0 what does not, -1 where a picture has fewer questions than `most`."""
    table = torch.full((len(prompts), most), -1, dtype=torch.int8)
    for row, picture, prompt in zip(table, pictures, prompts, strict=True):
        answers = check(picture, prompt)
        row[: len(answers)] = torch.tensor(answers, dtype=torch.int8)
    return table


def most_asked(prompts: Sequence[BenchmarkPrompt]) -> int:
    """The most answers that one picture has."""
    return max((1 if each.composition is not None else len(each.questions) for each in prompts), default=0)


def needs_check(prompts: Sequence[BenchmarkPrompt]) -> str | None:
    """The argument that names the check of these prompts: "detector", "vqa_model" or None."""
    if any(each.composition is not None for each in prompts):
        return "detector"
    return "vqa_model" if any(each.questions for each in prompts) else None


def check_names(detector: Detector, prompts: Sequence[BenchmarkPrompt]) -> None:
    """Raises DataError for a class that the detector does not know."""
    for prompt in prompts:
        if (wanted := prompt.composition) is not None:
            detector.check([each.name for each in (*wanted.include, *wanted.exclude)])


def benchmark_scores(
    prompts: Sequence[BenchmarkPrompt], figures: Mapping[str, FigureOf], answers: Tensor | None, draws: int
) -> dict[str, Any]:
    """Figures by group.

    Args:
        prompts: of the pictures, in their order.
        figures: more of them, by name.
        answers: `[N, most]` of `check_pictures`; None where nothing was checked.
        draws: of the bootstrap.

    Returns:
        `groups`: by kind and name, the number of pictures and each figure over them. With answers about objects
        `geneval`: the mean over tasks and the shares of pictures and of prompts (right in one picture or more). With
        answers to questions `dpg`: the mean over pictures and the share of questions by category.
    """
    scores: dict[str, Any] = {}
    figures = dict(figures)
    if answers is not None and any(prompt.composition is not None for prompt in prompts):
        shown = answers[:, 0] == 1
        figures["shown"] = lambda chosen: group_mean(shown[chosen], draws)
    elif answers is not None:
        questions = _question_scores(prompts, answers)
        figures["questions"] = lambda chosen: group_mean(questions[chosen], draws)
        scores["dpg"] = {
            "score": group_mean(questions, draws),
            "categories": _question_categories(prompts, answers),
        }
    groups: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for prompt in prompts for kind in prompt.groups):
        members: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            members.setdefault(prompt.groups[kind], []).append(number)
        groups[kind] = {
            name: {"count": len(chosen), **{key: of(chosen) for key, of in figures.items()}}
            for name, chosen in members.items()
        }
    if "shown" in figures:
        scores["geneval"] = _geneval(prompts, shown, groups["task"], draws)
    return {"groups": groups, **scores}


def group_mean(values: Tensor, draws: int) -> dict[str, Any] | None:
    """The mean over a group, which may be small; None where all are NaN. Few numbers that are no truths have no
    interval: drawn again they would seem surer than they are."""
    known = int((~values.isnan()).sum())
    enough = values.dtype == torch.bool or known >= _LEAST_NUMBERS
    return mean_figure(values, draws if enough else 0) if known else None


def _geneval(
    prompts: Sequence[BenchmarkPrompt], shown: Tensor, tasks: Mapping[str, Mapping[str, Any]], draws: int
) -> dict[str, Any]:
    by_prompt: dict[Any, bool] = {}
    for prompt, right in zip(prompts, shown.tolist(), strict=True):
        by_prompt[prompt.prompt, prompt.composition] = (
            by_prompt.get((prompt.prompt, prompt.composition), False) or right
        )
    return {
        "overall": figure(sum(each["shown"]["value"] for each in tasks.values()) / len(tasks), None),
        "pictures": mean_figure(shown, draws),
        "prompts": mean_figure(torch.tensor(list(by_prompt.values())), draws),
    }


def _question_scores(prompts: Sequence[BenchmarkPrompt], answers: Tensor) -> Tensor:
    """float64 `[N]`: the share of a picture's questions answered by yes; a yes that depends on a no is none. NaN where
    nothing is asked."""
    scores = torch.full((len(prompts),), torch.nan, dtype=torch.float64)
    for number, prompt in enumerate(prompts):
        right = (answers[number, : len(prompt.questions)] == 1).tolist()
        for place, question in enumerate(prompt.questions):
            right[place] = right[place] and all(right[parent] for parent in question.depends_on)
        if right:
            scores[number] = sum(right) / len(right)
    return scores


def _question_categories(prompts: Sequence[BenchmarkPrompt], answers: Tensor) -> dict[str, Any]:
    """The share of questions answered by yes, whatever they depend on, by category; questions of a picture belong
    together in the interval."""
    told: dict[str, dict[int, list[bool]]] = {}
    for number, prompt in enumerate(prompts):
        for question, answer in zip(prompt.questions, answers[number].tolist(), strict=False):
            told.setdefault(question.category, {}).setdefault(number, []).append(answer == 1)
    figures = {}
    for category, of_pictures in told.items():
        right, total = ([count(each) for each in of_pictures.values()] for count in (sum, len))
        figures[category] = figure(sum(right) / sum(total), clustered_interval(right, total))
    return figures
