"""Choosing visual tokens: budgets, spreads, UV-Prune against its double sum, SpecVLM's two stages."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import raised
from torch.nn.functional import cosine_similarity

from vargen.video.models.pruning import (
    keep_by_attention,
    keep_jittered,
    keep_low_discrepancy,
    keep_random,
    keep_uniform,
    token_budget,
    visual_gain,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("count", "ratio", "budget"), [(100, 0.1, 10), (100, 1 - 0.9, 10), (7, 0.01, 1), (5, 1.0, 5), (3, 0.5, 2)]
)
def test_budgets_are_rounded_and_never_empty(count, ratio, budget):
    assert token_budget(count, ratio) == budget


@pytest.mark.parametrize(("count", "ratio"), [(0, 0.5), (5, 0.0), (5, 1.1), (5, -1.0)])
def test_impossible_budgets_are_refused(count, ratio):
    raised(ValueError, r"count must|keep_ratio must", token_budget, count, ratio)


def slow_bins(count: int, shares: list[float]) -> list[int]:
    """One token of each of as many bins as there are shares, which say where in its bin."""
    kept = []
    for number, share in enumerate(shares):
        bin_ = range(number * count // len(shares), (number + 1) * count // len(shares))
        kept.append(bin_[int(share * len(bin_))])
    return kept


@given(st.integers(1, 60), st.integers(0, 9), st.data())
def test_uniform_and_jittered_choices_are_one_of_each_bin(count, seed, data):
    budget = data.draw(st.integers(1, count))
    golden = (1 + 5**0.5) / 2
    assert keep_uniform(count, budget).tolist() == slow_bins(count, [(i + 0.5) / golden % 1 for i in range(budget)])
    drawn = torch.rand(budget, dtype=torch.float64, generator=seeded(seed)).tolist()
    assert keep_jittered(count, budget, seeded(seed)).tolist() == slow_bins(count, drawn)


@given(st.integers(1, 60), st.integers(0, 9), st.data())
def test_random_choices_are_drawn_without_repetition(count, seed, data):
    budget = data.draw(st.integers(0, count))
    kept = keep_random(count, budget, seeded(seed))
    assert len(kept) == budget and bool((kept.diff() > 0).all())
    assert sorted(torch.randperm(count, generator=seeded(seed)).tolist()[:budget]) == kept.tolist()


@pytest.mark.parametrize("axes", [(12,), (5, 6), (4, 6, 5)])
def test_low_discrepancy_choices_are_cells_with_least_turns(axes):
    """Against a loop over cells, of a grid whose positions begin elsewhere and go up in steps, as M-RoPE's may."""
    ratio = {1: 1.6180339887498949, 2: 1.324717957244746, 3: 1.2207440846057596}[len(axes)]
    cells = list(itertools.product(*map(range, axes)))
    origin = float(torch.rand(1, dtype=torch.float64, generator=seeded(3)))
    turns = [(origin + sum(at / ratio ** (axis + 1) for axis, at in enumerate(cell))) % 1 for cell in cells]
    for budget in (1, len(cells) // 4, len(cells)):
        expected = sorted(sorted(range(len(cells)), key=turns.__getitem__)[:budget])
        assert keep_low_discrepancy(torch.tensor(cells).T * 2 + 17, budget, seeded(3)).tolist() == expected


def test_visual_gain_is_the_papers_double_sum():
    """Over all text tokens and all layers: the growth of the cosine from layer to layer."""
    generator = torch.Generator().manual_seed(0)
    layers, m, n, dim = 5, 7, 4, 6
    visual = torch.randn(layers + 1, m, dim, generator=generator)
    text = torch.randn(layers + 1, n, dim, generator=generator)
    slow = torch.zeros(m)
    for layer in range(1, layers + 1):
        for i in range(m):
            for j in range(n):
                now = cosine_similarity(visual[layer, i], text[layer, j], dim=0)
                before = cosine_similarity(visual[layer - 1, i], text[layer - 1, j], dim=0)
                slow[i] += now - before
    torch.testing.assert_close(visual_gain(visual[0], visual[-1], text[0], text[-1]), slow, rtol=1e-4, atol=1e-5)


def test_zero_vectors_are_like_nothing():
    gain = visual_gain(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(1, 3), torch.zeros(1, 3))
    assert torch.equal(gain, torch.zeros(2))


def slow_two_stages(scores: list[float], budget: int, share: float) -> list[int]:
    """Take the highest until they have the share of all; then spread what is missing over the rest."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    first: list[int] = []
    while share > 0 and len(first) < budget and sum(scores[i] for i in first) < share * sum(scores) - 1e-12:
        first.append(order[len(first)])
    rest = [i for i in range(len(scores)) if i not in first]
    missing = budget - len(first)
    golden = (1 + 5**0.5) / 2
    places = slow_bins(len(rest), [(i + 0.5) / golden % 1 for i in range(missing)])
    return sorted(first + [rest[place] for place in places])


@given(st.lists(st.integers(1, 50), min_size=2, max_size=30), st.sampled_from([0.0, 0.2, 0.4, 0.9, 1.0]), st.data())
def test_two_stages_against_a_loop(weights, share, data):
    budget = data.draw(st.integers(1, len(weights)))
    scores = torch.tensor(weights, dtype=torch.float64)
    kept = keep_by_attention(scores, budget, share)
    assert len(kept) == budget
    # Where the share falls exactly on a sum, rounding may count one more to the first stage.
    exact = share * sum(weights)
    if all(abs(exact - sum(sorted(weights, reverse=True)[:k])) > 1e-6 for k in range(1, len(weights) + 1)):
        assert kept.tolist() == slow_two_stages([float(each) for each in weights], budget, share)


def test_a_share_out_of_range_is_refused():
    raised(ValueError, "share", keep_by_attention, torch.ones(3), 2, 1.5)
