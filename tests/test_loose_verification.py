"""LVSpec's figures go on where they were stopped, and rules are compared where they accept as much."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import loose_verification as loose
import pytest
import torch
from small_video_llms import build_video_llm, save_both

from scenes.cases import scene_video_cases
from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig
from vargen.video.models.frames import CAPTION_PROMPTS, processor_inputs
from vargen.video.pipelines.answering import VideoAnswerer


def test_a_killed_run_goes_on_and_a_longer_one_watches_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched: list[int] = []

    def watch(_: Any, chosen: list[Any], cases: list[int], first: int, views: Any = ()) -> dict[str, Any]:
        if len(watched) == 2:
            raise KeyboardInterrupt
        watched.append(first)
        each = {"accuracy": first / 100, "accepted_length": 4.0 + first, "relaxed_share": 0.25}
        count = len(cases)
        words = [[True, False, False], [False, True, True]]
        return {"accuracy": [0.5] * count, "words": words, "variants": {one.label: [each] * count for one in chosen}}

    def scores(_: Any, cases: list[int]) -> dict[str, list]:
        return {"is_visual": [True, False], **{way: [0.5, 0.25] for way in loose._WAYS}}

    for name, made in (("watch", watch), ("scores", scores), ("RESULTS", tmp_path)):
        monkeypatch.setattr(loose, name, made)
    monkeypatch.setattr(loose, "scene_video_cases", lambda count, *_: list(range(count)))
    monkeypatch.setattr(loose.VideoAnswerer, "from_pretrained", lambda *_: None)

    def run(videos: int, scored: int = 10, settings: int = 0) -> Any:
        kept = str(tmp_path / "kept" / "videos.jsonl")
        counts = {"--videos": videos, "--scored_videos": scored, "--settings_videos": settings}
        options = [str(each) for pair in counts.items() for each in pair]
        monkeypatch.setattr(sys, "argv", ["loose", *options, "--kept", kept, "--quiet"])
        loose.main()
        return json.loads((tmp_path / "loose_verification.json").read_text())["studies"]

    with pytest.raises(KeyboardInterrupt):
        run(30)
    assert watched == [0, 10] and not (tmp_path / "loose_verification.json").exists()
    watched.clear()
    studies = run(30)
    assert watched == [20] and studies["curves"]["videos"] == 30
    assert {row["accepted_length"] for row in studies["curves"]["rows"]} == {14.0}
    assert studies["curves"]["rows"][0]["kept"] == pytest.approx(0.2)
    assert {row["area_under_curve"] for row in studies["scores"]["rows"]} == {1.0}
    assert studies["mismatches"]["rows"][0]["mismatches_at_them"] == 1.0
    watched.clear()
    assert run(40)["curves"]["videos"] == 40 and watched == [30]
    watched.clear()
    studies = run(0, scored=0, settings=10)
    assert watched == [0] and studies["curves"]["videos"] == 40, "what is not asked for stays as it was"
    by_name = {row["setting"]: row for row in studies["settings"]["rows"]}
    assert by_name.keys() == loose.SETTINGS.keys() and by_name["N 1"]["accepted_length"]["value"] == 4.0
    assert by_name["lambda 0.7"]["paper_accepted_length"] == 7.27


def test_settings_are_those_of_the_paper_but_for_one() -> None:
    configs = {name: variant.config for name, (variant, *_) in loose.SETTINGS.items()}
    paper = configs["lambda 0.7"]
    assert (paper.relevance_from, paper.relevance_layer, paper.relevance_centred) == ("token", -1, False)
    assert (paper.num_nearest, paper.branches, paper.draft_length, paper.keep_ratio) == (10, 1, 10, 0.1)
    assert configs["N 100"] == replace(paper, num_nearest=100)
    assert configs["position shift, two branches"] == replace(paper, position_shift=True, branches=2)
    assert configs["predicting row"] == replace(paper, relevance_from="prediction")


def test_rules_are_compared_at_the_same_accepted_length() -> None:
    """Two videos; chance keeps 60 and 40 points at 4 and 8 tokens, the rule 70 and 50 at 5 and 9."""
    chance = torch.tensor([[4.0, 0.6], [8.0, 0.4]])[..., None].expand(-1, -1, 2).double()
    rule = torch.tensor([[5.0, 0.7], [9.0, 0.5]])[..., None].expand(-1, -1, 2).double()
    assert loose.at_length(chance[..., 0], torch.tensor(5.0)) == pytest.approx(0.55)
    assert loose.at_length(chance[..., 0], torch.tensor(99.0)) == pytest.approx(0.4), "its end beyond it"
    gain = loose._gain_at(rule, chance, torch.tensor([5.0, 7.0]).double())
    assert gain is not None and gain["value"] == pytest.approx(0.65 - 0.5)
    assert loose._gain_at(rule, chance, torch.tensor([4.0, 5.0]).double()) is None, "the rule does not go so low"
    assert loose._gain_at(rule, chance, torch.tensor([8.0, 9.0]).double()) is None, "chance does not go so high"


def test_the_theorem_and_the_share_of_mismatches_by_hand() -> None:
    words = [[True, False, True], [True, False, True], [False, False, True], [False, True, False]]
    narrow, wide = loose.mismatch_rows(words)
    assert (narrow["mismatch_rate"], narrow["mismatches_at_them"]) == (0.75, pytest.approx(2 / 3))
    assert narrow["length_if_all_others_were_loosened"] == pytest.approx(1.5) and narrow["length_by_theorem"] == 2
    assert wide["mismatches_at_them"] == 0 and wide["length_if_all_others_were_loosened"] is None
    exact, own = loose.Variant("relevance", 0.0, 0.1), loose.Variant("relevance", 0.7, 0.1)
    found = {exact.label: [{"accepted_length": 4.0}], own.label: [{"accepted_length": 7.0}]}
    (row,) = loose.theorem_rows([exact, own], found)
    assert row["failure_exact"] == pytest.approx(0.6) and row["failure"] == pytest.approx(0.3)
    assert row["by_theorem"] == pytest.approx(0.18)


def test_targets_that_last_answer_as_new_ones(tmp_path: Path) -> None:
    """Every rule on two tiny models: what was read once gives what is read anew, after any other rule."""
    sizes = TextModelConfig(32, 64, 2, 4, 2), TowerConfig(32, 64, 1, 2)
    save_both(tmp_path, *build_video_llm(VideoLLMConfig(32, 8, 8, *sizes)))
    answerer = VideoAnswerer.from_pretrained(tmp_path, tmp_path)
    cases = scene_video_cases(2, "heldout", 8, 32, 0)
    inputs = [processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0]) for case in cases]
    own = answerer.components(inputs, 24)
    lasting = loose.LastingComponents(**{**vars(own), "lasting": {}})
    for rule in (*loose.RULES, "fly"):
        variant = loose.Variant(rule, 0.3, 0.5)
        assert loose.run(answerer, lasting, cases, variant, 0) == loose.run(answerer, own, cases, variant, 0), rule
