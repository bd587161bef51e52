"""CLIP score's conventions, diversity, the bootstrap and the bank of features."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import raised
from torch.nn.functional import normalize

from metrics.bootstrap import mean_interval, spread_interval, student_interval
from metrics.clip_score import clip_scores, retrieval_accuracy
from metrics.diversity import distances_to_others
from metrics.errors import DataError
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.proportion import Proportion, clustered_interval


def test_clip_score_scales_and_clips():
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    texts = torch.tensor([[0.6, 0.8], [0.0, -1.0]])
    assert clip_scores(images, texts).tolist() == pytest.approx([60.0, 0.0])
    assert clip_scores(images, texts, scale=1.0, clip_at_zero=False).tolist() == pytest.approx([0.6, -1.0])
    raised(DataError, "1 captions", clip_scores, images, texts[:1])


@given(
    width=st.integers(1, 600),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_identical_unit_vectors_score_100_whatever_type_normalised_them(width, seed, dtype):
    """But for what rounding makes of their two lengths."""
    features = torch.randn(4, width, generator=torch.Generator().manual_seed(seed)).abs().to(dtype) + 0.1
    unit = features / features.norm(dim=-1, keepdim=True)
    off = {torch.bfloat16: 1.6, torch.float16: 0.2}.get(dtype, 1e-4)
    assert clip_scores(unit, unit).tolist() == pytest.approx([100.0] * 4, abs=off)


@pytest.mark.parametrize("length", [8.62, 1.002, 0.998, 0.0, math.nan])
@pytest.mark.parametrize("name", ["image_features", "text_features"])
def test_features_that_are_no_unit_vectors_are_refused(name, length):
    unit = normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    features = {"image_features": unit, "text_features": unit, name: unit * torch.tensor([[1.0], [length], [1.0]])}
    message = f"^{name} must be unit vectors, got one of length {length:.4g} in row 1; .*normalize"
    raised(DataError, message, clip_scores, **features)


def test_features_of_another_width_are_told_from_missing_captions():
    for of_images, of_texts, got in (
        ((5, 8), (5, 4), r"\[5, 8\] and \[5, 4\]"),
        ((8,), (8,), r"\[8\] and \[8\]"),
        ((5, 8), (8,), r"\[5, 8\] and \[8\]"),
    ):
        told = f"must be .N, D. of one width D, got {got}; make both with the same CLIP"
        raised(DataError, told, clip_scores, torch.ones(of_images), torch.ones(of_texts))


def test_retrieval_finds_the_own_text_and_only_that():
    features = normalize(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    assert retrieval_accuracy(features, features, candidates=16) == 1.0
    assert retrieval_accuracy(features, features.roll(1, 0), candidates=16) < 0.3


def test_retrieval_asks_every_picture_of_every_whole_group_for_its_text():
    images = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])
    texts = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.8, 0.6], [0.0, 1.0]])
    # Both pictures of the first pair find theirs (.96 to .8 the second), and of the second; the fifth has no group.
    assert retrieval_accuracy(images, texts, candidates=2) == 1.0
    # Both pictures like the first text better, but each text is liked best by its own picture.
    texts[1] = torch.tensor([0.0, 1.0])
    assert retrieval_accuracy(images[:4], texts[:4], candidates=2) == 0.75
    assert retrieval_accuracy(images[:1], texts[:1], candidates=2) == 0.0


def test_pairwise_distance_is_the_mean_over_pairs():
    features = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    pairs = [float((features[i] - features[j]).norm()) for i in range(7) for j in range(i)]
    assert float(distances_to_others(features).mean()) == pytest.approx(sum(pairs) / len(pairs))
    raised(DataError, "2 or more", distances_to_others, features[:1])


def test_the_interval_of_a_mean_covers_the_truth_as_often_as_it_says():
    for count, samples, draws, made, truth, least, most in (
        (80, 200, 100, torch.clone, 0.0, 0.88, 0.99),
        (6, 400, 100, torch.clone, 0.0, 0.91, 1.0),  # the fewest that are drawn from, see the docstring's table
        # Log-normal ones, of which the middle of what is drawn again covers the truth 87 times of 100.
        (32, 300, 200, torch.exp, math.exp(0.5), 0.91, 1.0),
    ):
        generator = torch.Generator().manual_seed(0)
        covered = 0
        for number in range(samples):
            low, high = mean_interval(made(torch.randn(count, generator=generator)), draws, number) or (0.0, 0.0)
            covered += low <= truth <= high
        assert least <= covered / samples <= most


def test_the_interval_is_the_studentised_bootstraps_and_leaves_out_pictures_without_a_number():
    """By the book's formula, draw by draw: the greatest distances below the mean bound it from above."""
    values = torch.randn(60, generator=torch.Generator().manual_seed(3), dtype=torch.float64).exp()
    values[::3] = math.nan
    generator, distances = torch.Generator().manual_seed(5), []
    known = values[~values.isnan()].numpy()
    for _ in range(50):
        drawn = values[torch.randint(60, (60,), generator=generator)].numpy()
        drawn = drawn[~np.isnan(drawn)]
        distances.append((drawn.mean() - known.mean()) / (drawn.std(ddof=1) / len(drawn) ** 0.5))
    error = known.std(ddof=1) / len(known) ** 0.5
    bounds = [known.mean() - np.quantile(distances, level) * error for level in (0.975, 0.025)]
    assert mean_interval(values, draws=50, seed=5) == pytest.approx(np.clip(bounds, known.min(), known.max()))


def test_the_interval_around_a_figure_is_two_standard_errors_each_way():
    values = torch.randn(200, generator=torch.Generator().manual_seed(2))
    low, high = spread_interval(7.0, 200, lambda chosen: float(values[chosen].mean()), draws=400) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(7.0)
    assert (high - low) / 2 == pytest.approx(1.96 * float(values.std()) / math.sqrt(200), rel=0.15)


def test_the_interval_of_a_difference_holds_the_truth_at_eight_pictures():
    """Claims hang together by picture; the middle of the draws held it in three samples of four."""
    generator, covered = np.random.default_rng(0), 0
    for _ in range(200):
        total, share = generator.integers(1, 5, 8), generator.beta(6, 2, 8)
        theirs, ours = (torch.tensor(generator.binomial(total, each)) for each in (share, share - 0.1 * share))
        claims = torch.tensor(total)

        def difference(chosen: torch.Tensor, gained: torch.Tensor = ours - theirs, of: torch.Tensor = claims) -> float:
            return float(gained[chosen].sum() / of[chosen].sum())

        low, high = student_interval(8, difference, draws=60) or (0.0, 0.0)
        covered += low <= -0.075 <= high  # 0.1 of the mean share
    assert covered >= 0.91 * 200


def test_the_interval_of_a_frechet_distance_surrounds_the_biased_value():
    """Of 32 pictures it never holds the true distance, 0 here, as docs/evaluation.md says."""
    generator = torch.Generator().manual_seed(3)
    reference = GaussianStatistics.of(torch.randn(4000, 16, generator=generator))
    for _ in range(10):
        features = torch.randn(32, 16, generator=generator)

        def distance(chosen: torch.Tensor, features: torch.Tensor = features) -> float:
            return frechet_distance(reference, GaussianStatistics.of(features[chosen]))

        value = distance(torch.arange(32))
        low, high = spread_interval(value, 32, distance, draws=20) or (0.0, 0.0)
        assert 0 < low < value < high


def test_no_interval_without_draws_and_nan_is_no_number():
    assert spread_interval(1.0, 10, lambda chosen: 1.0, draws=0) is None
    assert student_interval(10, lambda chosen: 1.0, draws=0) is None
    assert mean_interval(torch.tensor([True, False]), draws=0) is None
    low, high = mean_interval(torch.tensor([1.0, float("nan"), 1.0, 1.0]), draws=50) or (0.0, 0.0)
    assert (low, high) == (1.0, 1.0)


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=5), missing=st.integers(0, 40))
def test_the_interval_of_fewer_than_six_numbers_is_least_to_greatest(values, missing):
    """However many pictures have none. Of two numbers it had no width, of three it ended at the mean."""
    values = [round(value, 3) for value in values]
    interval = mean_interval(torch.tensor(values + [math.nan] * missing, dtype=torch.float64))
    assert interval == pytest.approx((min(values), max(values)), abs=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_interval_of_a_mean_ends_at_the_least_and_the_greatest_number(sign):
    """One number lies far from seven that are nearly alike: draws without it lie very many errors from the mean."""
    values = sign * torch.tensor([0.0, *(10 + 0.1 * number for number in range(7))])
    assert 0 in (mean_interval(values) or ())


def test_distances_that_are_all_alike_say_nothing_of_the_spread():
    """Two draws with the one among seven zeros once each gave the mean alone, with it twice each less than the mean."""
    values = torch.tensor([0.0] * 7 + [1.0])
    assert mean_interval(values, draws=2, seed=5) == mean_interval(values, draws=2, seed=4) == (0.0, 1.0)


@given(values=st.lists(st.booleans(), min_size=2, max_size=30), as_shares=st.booleans())
def test_no_interval_of_a_share_is_beyond_it(values, as_shares):
    shares = torch.tensor(values) if as_shares else torch.tensor(values).double()
    low, high = mean_interval(shares, draws=20) or (-1.0, 2.0)
    assert 0 <= low <= high <= 1
    if as_shares:
        assert low <= sum(values) / len(values) <= high and low < high


def test_interval_of_a_share_is_wilsons():
    """The bounds are the shares p whose distance from the observed one is z standard errors under p itself."""
    for bound in Proportion(97, 100).interval():
        assert abs(0.97 - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / 100) ** 0.5, rel=1e-6)
    assert Proportion(0, 0).interval() == (0.0, 1.0)
    assert Proportion(5, 5).interval()[1] == 1.0 and Proportion(0, 5).interval()[0] == 0.0


def test_the_interval_of_claims_that_hang_together_covers_the_truth_as_often_as_it_says():
    """Three claims a picture, all alike in a third of the pictures: 75 % are right."""
    generator = torch.Generator().manual_seed(1)
    covered = plain = 0
    for _ in range(400):
        alike = torch.rand(64, 1, generator=generator) < 1 / 3
        claims = torch.rand(64, 3, generator=generator) < 0.75
        claims = torch.where(alike, claims[:, :1], claims)
        right = claims.sum(1).tolist()
        low, high = clustered_interval(right, [3] * 64)
        covered += low <= 0.75 <= high
        low, high = Proportion(sum(right), 3 * 64).interval()
        plain += low <= 0.75 <= high
    assert covered / 400 >= 0.93 > plain / 400


def test_groups_of_one_case_have_wilsons_interval_but_for_students_distribution():
    right = [1] * 600 + [0] * 200
    low, high = Proportion(600, 800).interval()
    assert clustered_interval(right, [1] * 800) == pytest.approx((low, high), abs=5e-4)
    assert clustered_interval([3, 3], [3, 3]) == Proportion(2, 2).interval()
    assert clustered_interval([0, 0, 0], [3, 3, 0]) == Proportion(0, 2).interval()
    assert clustered_interval([2], [3]) == Proportion(2, 3).interval()
    assert clustered_interval([2, 2], [3, 3])[1] < 1


def test_groups_more_even_than_chance_say_no_more_than_independent_cases():
    low, high = Proportion(199, 400).interval()
    bounds = clustered_interval([2] * 99 + [1], [4] * 100)
    assert bounds[0] < low < high < bounds[1]


@pytest.mark.parametrize(("extractor", "called"), [("clip", "Frechet distance"), ("inception", "FID")])
def test_a_plot_shows_shares_in_percent_and_says_fid_only_over_inceptions_features(extractor, called):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    from metrics.plots import plot_quality

    titles, shown = list[str](), list[float]()
    row = {"precision": {"value": 0.5, "interval": [0.4, 0.6]}, "frechet_distance": {"value": 0.1, "interval": None}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Axes, "set_title", lambda self, title, **_: titles.append(title))
        patch.setattr(Axes, "plot", lambda self, value, *_, **__: shown.append(value))
        patch.setattr(Axes, "hlines", lambda self, place, low, high, **_: shown.extend((low, high)))
        plot_quality([{"method": "ar", **row}], extractor)
    assert titles[0].startswith(called) and shown == pytest.approx([0.1, 50, 40, 60])
