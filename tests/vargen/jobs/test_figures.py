"""Shares of claims, and differences between methods over the same captions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from metrics.protocol import ClipProtocol, Protocol
from scenes.judge.claim_checks import KINDS
from vargen.checkpoints.options import SamplingOptions
from vargen.jobs.cases import BenchmarkCase
from vargen.jobs.comparison import describe_run
from vargen.jobs.figures import against_plain, judge_scores
from vargen.jobs.measuring import Evaluation, Networks, measure, measure_pictures
from vargen.jobs.study import key_of
from vargen.methods.catalogue import resolve_method
from vargen.runs.processes import Processes

COLOUR, PROMPT, COUNT = KINDS.index("colour"), KINDS.index("prompt"), KINDS.index("object_count")


def verdicts(rows: list[dict[int, tuple[int, int]]]) -> torch.Tensor:
    table = torch.zeros(len(rows), len(KINDS), 2)
    for number, row in enumerate(rows):
        for kind, counts in row.items():
            table[number, kind] = torch.tensor(counts, dtype=torch.float32)
    return table.reshape(len(rows), -1)


def test_shares_are_of_claims_and_nobody_claims_the_number_of_objects():
    judged = [{COLOUR: (1, 3), PROMPT: (0, 1), COUNT: (0, 1)}, {COLOUR: (1, 1), PROMPT: (1, 1), COUNT: (0, 1)}]
    table = verdicts([*judged, {}])  # the last caption nobody can judge
    scores = judge_scores(table, KINDS, draws=20)
    assert scores["judge_accuracy"]["value"] == pytest.approx(2 / 4)
    assert scores["judge_prompts"]["value"] == pytest.approx(1 / 2)
    assert scores["judge"].keys() == {"colour", "prompt", "object_count"}
    low, high = scores["judge_accuracy"]["interval"]
    assert low < 0.5 < high
    assert judge_scores(table, KINDS, draws=0)["judge_accuracy"] == {"value": 0.5, "interval": None}


def test_pairs_cancel_what_captions_differ_in():
    """Half of the captions are hard; the method loses one claim in twenty pictures."""
    plain = verdicts([{COLOUR: (number % 2, 1)} for number in range(400)])
    ours = plain.clone().reshape(400, len(KINDS), 2)
    ours[1:400:20, COLOUR, 0] = 0  # odd numbers: right before
    pair = {"verdicts": ours.reshape(400, -1)}, {"verdicts": plain}
    difference = against_plain(*pair, Protocol("mine", clip_score=None), KINDS, draws=100)["judge_accuracy"]
    assert difference["value"] == pytest.approx(-0.05)
    low, high = difference["interval"]
    alone = judge_scores(plain, KINDS, draws=100)["judge_accuracy"]["interval"]
    assert high < 0 and high - low < 0.6 * (alone[1] - alone[0])


def test_pairs_cancel_what_clip_scores_of_captions_differ_in():
    """Every second caption is hard for both; the method loses a hundredth of the cosine."""
    text = torch.tensor([[1.0, 0.0]]).expand(40, -1)
    cosines = torch.tensor([0.3, 0.1]).repeat(20)
    sets = [torch.stack((each, (1 - each.square()).sqrt()), 1) for each in (cosines - 0.01, cosines)]
    ours, plain = ({"features_clip": each, "text": text} for each in sets)
    difference = against_plain(ours, plain, Protocol("mine"), KINDS, draws=50)["clip_score"]
    assert difference["value"] == pytest.approx(-1.0, abs=1e-4)
    assert difference["interval"] == pytest.approx([-1.0, -1.0], abs=1e-3)


class Reader:
    """Stands in for CLIP: notes the texts."""

    def __init__(self, identity: str = "one") -> None:
        self.identity, self.told = identity, list[list[str]]()

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(pictures), 2)

    def encode_text(self, texts: list[str]) -> torch.Tensor:
        self.told.append(texts)
        return torch.zeros(len(texts), 2)


OWN = Protocol("own", extractor="clip", resolution=8, clip_score=ClipProtocol(prefix="A photo of "))
CASES = [BenchmarkCase(prompt=text) for text in ("a cube", "a cone")]


def test_texts_are_encoded_behind_the_protocols_words():
    """And for HPS as they are."""
    readers: Any = {"clip": Reader(), "hps": Reader()}
    measure([torch.zeros(3, 8, 8, dtype=torch.uint8)] * 2, CASES, OWN, Networks(readers, None))
    assert readers["clip"].told == [["A photo of a cube", "A photo of a cone"]]
    assert readers["hps"].told == [["a cube", "a cone"]]


def test_features_are_kept_apart_by_all_that_they_depend_on(tmp_path):
    """The protocol, the network, and the texts."""
    keys: list[str] = []

    def folder(key: str) -> Path:
        keys.append(key)
        return tmp_path / key

    def read(numbers: Sequence[int]) -> list[torch.Tensor]:
        return [torch.zeros(3, 8, 8, dtype=torch.uint8)] * len(numbers)

    for protocol, name, cases in (
        (OWN, "one", CASES),
        (OWN, "one", [*CASES]),
        (replace(OWN, resolution=4), "one", CASES),
        (replace(OWN, clip_score=ClipProtocol(prefix="")), "one", CASES),
        (OWN, "other", CASES),
        (OWN, "one", CASES[::-1]),
    ):
        networks: Any = Networks({"clip": Reader(name)}, None)  # type: ignore[dict-item]
        alone = Processes(0, 1, torch.device("cpu"), SimpleNamespace(wait_for_everyone=lambda: None))
        run = Evaluation(SamplingOptions(), tmp_path, 2, True, protocol, cases, networks, alone, True)
        measure_pictures(run, "ar", read, folder)
    assert keys[0] == keys[1] and len(set(keys)) == 5


def test_a_run_is_known_by_its_weights_and_settings_whatever_their_order():
    methods = {"ar": resolve_method("ar")}
    assert describe_run(methods, "one") != describe_run(methods, "two")
    assert describe_run(methods, "one", seed=1) != describe_run(methods, "one", seed=2)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 2, "b": 1})
