"""Choosing visual tokens: budgets, spreads, UV-Prune against its double sum, SpecVLM's two stages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from vargen.models.video_llms.pruning import keep_by_attention, keep_highest, keep_uniform, token_budget, visual_gain


@pytest.mark.parametrize(
    ("count", "ratio", "budget"), [(100, 0.1, 10), (100, 1 - 0.9, 10), (7, 0.01, 1), (5, 1.0, 5), (3, 0.5, 2)]
)
def test_budgets_are_rounded_and_never_empty(count: int, ratio: float, budget: int) -> None:
    assert token_budget(count, ratio) == budget


@pytest.mark.parametrize(("count", "ratio"), [(0, 0.5), (5, 0.0), (5, 1.1), (5, -1.0)])
def test_impossible_budgets_are_refused(count: int, ratio: float) -> None:
    with pytest.raises(ValueError, match=r"count must|keep_ratio must"):
        token_budget(count, ratio)


@given(st.integers(1, 60), st.data())
def test_uniform_choices_are_ascending_and_spread(count: int, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, count))
    kept = keep_uniform(count, budget)
    assert len(kept) == budget and bool((kept.diff() > 0).all())
    if budget > 1:
        assert kept[0] == 0 and kept[-1] == count - 1
        gaps = kept.diff()
        assert int(gaps.max() - gaps.min()) <= 1


def test_visual_gain_is_the_papers_double_sum() -> None:
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


def test_zero_vectors_are_like_nothing() -> None:
    gain = visual_gain(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(1, 3), torch.zeros(1, 3))
    assert torch.equal(gain, torch.zeros(2))


def test_planted_tokens_are_recovered_by_gain_and_missed_by_a_sink() -> None:
    """Some visual tokens turn towards the text; attention looks at the first one whatever it shows."""
    generator = torch.Generator().manual_seed(1)
    visual, text = torch.randn(40, 16, generator=generator), torch.randn(6, 16, generator=generator)
    planted = torch.tensor([5, 17, 18, 31])
    after = visual.clone()
    after[planted] += 4 * text.mean(0)
    assert torch.equal(keep_highest(visual_gain(visual, after, text, text), 4), planted)
    attention = (after @ text.T).softmax(0).mean(1)
    attention[0] += 1.0
    assert 0 in keep_by_attention(attention, 4).tolist()


def slow_two_stages(scores: list[float], budget: int, share: float) -> list[int]:
    """Take the highest until they have the share of all; then spread what is missing over the rest."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    first: list[int] = []
    while share > 0 and len(first) < budget and sum(scores[i] for i in first) < share * sum(scores) - 1e-12:
        first.append(order[len(first)])
    rest = [i for i in range(len(scores)) if i not in first]
    missing = budget - len(first)
    places = torch.linspace(0, len(rest) - 1, missing, dtype=torch.float64).round().long().tolist() if missing else []
    return sorted(first + [rest[place] for place in places])


@given(st.lists(st.integers(1, 50), min_size=2, max_size=30), st.sampled_from([0.0, 0.2, 0.4, 0.9, 1.0]), st.data())
def test_two_stages_against_a_loop(weights: list[int], share: float, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, len(weights)))
    scores = torch.tensor(weights, dtype=torch.float64)
    kept = keep_by_attention(scores, budget, share)
    assert len(kept) == budget
    # Where the share falls exactly on a sum, rounding may count one more to the first stage.
    exact = share * sum(weights)
    if all(abs(exact - sum(sorted(weights, reverse=True)[:k])) > 1e-6 for k in range(1, len(weights) + 1)):
        assert kept.tolist() == slow_two_stages([float(each) for each in weights], budget, share)


def test_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        keep_by_attention(torch.ones(3), 2, 1.5)
