"""Runs of `vargen generate`: which pictures they are made of, and what is told of their cost."""

import pytest
from refusals import refused

from vargen.base.bounds import MAX_SEED
from vargen.jobs.generation import GenerateConfig, RunTotals, _build_requests


def test_pictures_of_a_prompt_stand_together_and_each_has_the_next_seed():
    requests = _build_requests(GenerateConfig(num_images_per_prompt=2, seed=5), ["a", "b"], 64)
    told = [(each.index, each.seed, each.text, each.class_label) for each in requests]
    assert told == [(0, 5, "a", None), (1, 6, "a", None), (2, 7, "b", None), (3, 8, "b", None)]
    labelled = _build_requests(GenerateConfig(), [3, 3], 64)
    assert [(each.seed, each.text, each.class_label) for each in labelled] == [(0, None, 3), (1, None, 3)]
    assert len(_build_requests(GenerateConfig(seed=MAX_SEED - 2), ["a", "b"], 64)) == 2
    far = GenerateConfig(seed=MAX_SEED - 1)
    refused("seed must leave room for 2 pictures", _build_requests, far, ["a", "b"], 64)


def test_processes_add_up_and_their_slowest_phase_counts():
    shares = [
        RunTotals(0, 2, 20, 5, {"load": 1.0, "prefill": 1.0, "decode": 2.0}),
        RunTotals(0, 3, 30, 7, {"load": 4.0, "decode": 1.5}),
    ]
    together = RunTotals.of_processes(shares)
    assert (together.new_images, together.tokens, together.forward_passes) == (5, 50, 12)
    assert together.seconds == {"load": 4.0, "prefill": 1.0, "decode": 2.0}
    assert together.ms_per_token == pytest.approx(1000 * 3.0 / 50)
    assert RunTotals().ms_per_token is None
