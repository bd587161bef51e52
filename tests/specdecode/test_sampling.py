"""Logits to probabilities against slow oracles, and the random streams against what random numbers must be."""

import math
import shutil
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import value_error
from scipy import stats

from specdecode import RandomStreams, SamplingConfig, Tag, apply_guidance, logits_to_probabilities
from specdecode.sampling import Ahead, _covers, _exponential, _uniform, draw_tokens, sample


def slow_probabilities(logits: list[float], config: SamplingConfig) -> list[float]:
    """One row, in plain Python, following the definition word by word."""
    if config.temperature == 0:
        best = logits.index(max(logits))
        return [float(token == best) for token in range(len(logits))]
    scaled = [logit / config.temperature for logit in logits]
    kept = set(range(len(scaled)))
    if 0 < config.top_k < len(scaled):
        smallest = sorted(scaled, reverse=True)[config.top_k - 1]
        kept = {token for token in kept if scaled[token] >= smallest}
    weight = {token: math.exp(scaled[token] - max(scaled)) for token in kept}
    total = sum(weight.values())
    if config.top_p < 1:
        nucleus, cumulative = set(), 0.0
        for token in sorted(kept, key=lambda token: -scaled[token]):
            if cumulative > config.top_p:
                break
            nucleus.add(token)
            cumulative += weight[token] / total
        kept = nucleus
    total = sum(weight[token] for token in kept)
    return [weight[token] / total if token in kept else 0.0 for token in range(len(scaled))]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.05, 0.37, 0.8, 0.99, 1.0]),
    ties=st.booleans(),
)
def test_probabilities_follow_the_definition(seed, size, temperature, top_k, top_p, ties):
    logits = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(seed)) * 2
    if ties and top_p == 1:  # with top-p, which of several equal tokens is cut is a matter of rounding
        logits = logits.round()
    config = SamplingConfig(temperature, top_k, top_p)
    expected = [[slow_probabilities(row, config) for row in rows] for rows in logits.double().tolist()]
    actual = logits_to_probabilities(logits, config)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_half_precision_logits_are_processed_in_float32():
    logits = torch.randn(4, 50).bfloat16()
    config = SamplingConfig(0.7, 20, 0.9)
    torch.testing.assert_close(logits_to_probabilities(logits, config), logits_to_probabilities(logits.float(), config))


def test_guidance():
    conditional, unconditional = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    guided = apply_guidance(conditional, unconditional, 7.5)
    torch.testing.assert_close(guided, unconditional + 7.5 * (conditional - unconditional))
    for off in (1.0, 0.5, 0.0):
        assert torch.equal(apply_guidance(conditional, None, off), conditional)
    assert apply_guidance(conditional.bfloat16(), unconditional.bfloat16(), 2.0).dtype == torch.float32
    value_error("unconditional", apply_guidance, conditional, None, 2.0)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (-0.1, math.nan, math.inf, "1", True)),
        ("top_k", (-1, 2.0, True)),
        ("top_p", (0, 1.01, math.nan, None)),
    ],
)
def test_config_errors_name_the_field(field, values):
    for value in values:
        value_error(f"^{field} must be", SamplingConfig, **{field: value})


# ---- random streams ----


def splitmix64(value: int) -> int:
    """The published scrambler, in unbounded integers."""
    mask = (1 << 64) - 1
    value &= mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def slow_uniform(key: int, tag: int, counter: int, element: int | None) -> float:
    advance = 0x9E3779B97F4A7C15
    state = splitmix64(splitmix64(key + advance) + (tag + 1) * 0x94D049BB133111EB)
    state = splitmix64(state + counter * advance)
    bits = splitmix64(state + (1 if element is None else element + 1) * advance) >> 11
    return (bits | 1) / (1 << 53)


def test_numbers_are_those_of_splitmix64():
    # First outputs of the reference generator seeded with 0: the scrambler itself is right.
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert splitmix64(2 * 0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    seeds = [0, 1, -5, 2**63, 123456789123456789]
    streams = RandomStreams.from_seeds(seeds)
    counters = torch.tensor([[0, 1, 255]] * len(seeds))
    single = streams.uniform(Tag.ACCEPT, counters)
    several = streams.uniform(Tag.ACCEPT, counters, size=4)
    assert single.dtype == torch.float64
    for row, seed in enumerate(seeds):
        for column, counter in enumerate((0, 1, 255)):
            assert single[row, column].item() == slow_uniform(seed, Tag.ACCEPT, counter, None)
            for element in range(4):
                assert several[row, column, element].item() == slow_uniform(seed, Tag.ACCEPT, counter, element)


def test_rows_do_not_depend_on_the_batch():
    together = RandomStreams.from_seeds([7, 8, 9])
    alone = RandomStreams.from_seeds([8])
    counters = torch.arange(6).expand(3, 6)
    noise = together.exponential(Tag.TARGET, counters, 33)
    assert torch.equal(noise[1:2], alone.exponential(Tag.TARGET, counters[:1], 33))
    # Nor on what was drawn before, nor on which other counters are asked for.
    assert torch.equal(noise[:, 4:5], together.exponential(Tag.TARGET, counters[:, 4:5], 33))
    assert torch.equal(noise[..., :10], together.exponential(Tag.TARGET, counters, 10))


def test_generators_give_keys_in_order():
    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    streams = RandomStreams.from_generators([generator(1), generator(2)])
    assert torch.equal(streams.keys[1:], RandomStreams.from_generators([generator(2)]).keys)
    shared = generator(1)
    repeated = RandomStreams.from_generators([shared, shared, shared]).keys
    assert len(set(repeated.tolist())) == 3 and repeated[0] == streams.keys[0]
    torch.manual_seed(11)
    default = RandomStreams.from_generators([None]).keys
    torch.manual_seed(11)
    assert torch.equal(default, RandomStreams.from_generators([None]).keys)


def test_all_bits_of_a_seed_count():
    """torch's generator of a CPU reads the last 32 alone; seeds below 2**32 keep their keys."""
    seeds = [7, *(7 + (1 << bit) for bit in range(32, 63)), 2**63 - 1, 2**64 - 1]
    keys = RandomStreams.from_generators([torch.Generator().manual_seed(seed) for seed in seeds]).keys
    assert len(set(keys.tolist())) == len(seeds)
    own = torch.randint(-(1 << 63), (1 << 63) - 1, (1,), generator=torch.Generator().manual_seed(7))
    assert torch.equal(keys[:1], own)
    drawn = []
    for seed in seeds[:3]:
        torch.manual_seed(seed)
        drawn.append(RandomStreams.from_generators([None]).keys)
    assert torch.equal(torch.cat(drawn), keys[:3])


def test_bad_streams_are_refused():
    value_error("generators", RandomStreams.from_generators, [])
    for seeds in ([], [2**64], [-(2**63) - 1], [10**99], [True], [1.5], ["7"], [None]):
        value_error("seeds", RandomStreams.from_seeds, seeds)
    value_error("keys", RandomStreams, torch.zeros(2, 2, dtype=torch.int64))
    value_error("keys", RandomStreams, torch.zeros(2))


@pytest.fixture(scope="module")
def uniforms() -> torch.Tensor:
    """[keys, tags, counters, elements]: neighbours along every axis."""
    streams = RandomStreams.from_seeds(list(range(24)))
    counters = torch.arange(40).expand(24, 40)
    return torch.stack([streams.uniform(tag, counters, 64) for tag in range(6)], dim=1)


def test_uniform_moments_and_range(uniforms):
    count = uniforms.numel()
    assert 0 < uniforms.min() < 1e-4 and 1 - 1e-4 < uniforms.max() < 1
    assert abs(uniforms.mean().item() - 0.5) < 4 / math.sqrt(12 * count)
    assert abs(uniforms.var().item() - 1 / 12) < 4 * math.sqrt(1 / 180 / count)
    assert uniforms.flatten().unique().numel() == count
    observed = torch.histc(uniforms, bins=256, min=0, max=1)
    assert stats.chisquare(observed.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("axis", [0, 1, 2, 3], ids=["keys", "tags", "counters", "elements"])
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_neighbours_are_uncorrelated(uniforms, axis, lag):
    centred = (uniforms - 0.5) * math.sqrt(12)
    length = uniforms.shape[axis] - lag
    first, second = centred.narrow(axis, 0, length), centred.narrow(axis, lag, length)
    assert abs((first * second).mean().item()) < 4 / math.sqrt(first.numel())
    # Pairs fill the unit square evenly: dependence that correlation does not see.
    cells = (first > 0).long() * 2 + (second.abs() > math.sqrt(3) / 2).long()
    assert stats.chisquare(cells.flatten().bincount(minlength=4).numpy()).pvalue > 1e-4


def test_bits_are_balanced(uniforms):
    bits = (uniforms * 2**53).long()
    shares = torch.stack([(bits >> position & 1).double().mean() for position in range(1, 53)])
    assert (shares - 0.5).abs().max() < 5 / math.sqrt(4 * bits.numel())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    calls=st.lists(
        st.tuples(
            st.integers(0, 90), st.integers(1, 40), st.sampled_from([3, 5]), st.sampled_from([Tag.TARGET, Tag.DRAFT])
        ),
        min_size=1,
        max_size=8,
    ),
    apart=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    least=st.sampled_from([1, 200, 2**18]),
)
def test_numbers_that_are_drawn_ahead_are_those_of_their_position(seed, calls, apart, least):
    seeds = [seed + row for row in range(len(apart))]
    streams = RandomStreams.from_seeds(seeds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdecode.sampling._NUMBERS_AHEAD", least)
        for first, count, size, tag in calls:
            counters = first + torch.tensor(apart)[:, None] + torch.arange(count)
            expected = RandomStreams.from_seeds(seeds)._draw(_uniform, tag, counters, size).log().neg().float()
            noise = streams.exponential(tag, counters, size, revisited=True)
            assert torch.equal(noise, expected)
            noise.zero_()  # a caller's own, whatever becomes of it
            assert torch.equal(streams.exponential(tag, counters[:, 0], size, revisited=True), expected[:, 0])
            for how_many in (None, size):
                thresholds = RandomStreams.from_seeds(seeds)._draw(_uniform, Tag.ACCEPT, counters, how_many)
                assert torch.equal(streams.uniform(Tag.ACCEPT, counters, how_many), thresholds)


@pytest.mark.parametrize("rows", [1, 2])
def test_numbers_that_were_made_cover_their_positions_alone(rows):
    made = Ahead(torch.full((rows,), 5), torch.ones(rows, 8, 3))
    for first, are_there in ((4, False), (5, True), (11, True), (12, False)):
        assert _covers(made, torch.full((rows, 1), first), count=2) is are_there


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs a C++ compiler")
def test_compiled_code_makes_the_same_bits():
    """But for the logarithm's last one in float64, as between devices."""
    keys, counters = torch.tensor([3, -(2**62)]), torch.tensor([[0, 1, 7], [5, 2**40, 2]])
    steps = RandomStreams(keys)._steps(17)

    def numbers(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _uniform(*given), _exponential(*given)

    compiled = torch.compile(numbers, fullgraph=True, dynamic=True)
    made = [make(keys, counters.clone(), steps, 17) for make in (numbers, compiled)]
    for eager, fused, apart in zip(*made, (0.0, 2e-7), strict=True):
        torch.testing.assert_close(fused, eager, rtol=apart, atol=0.0)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_numbers_of_several_counters_are_all_among_those_made_ahead(batch_size):
    streams = RandomStreams.from_seeds(range(batch_size))
    for counter in (0, 36, 37, 90):  # 40 are made ahead
        ahead = streams.numbers(Tag.TARGET, torch.full((batch_size,), counter), 5, count=4)
        assert ahead is not None
        for row, first in enumerate(ahead.first.tolist()):
            made = ahead.numbers[row, counter - first : counter - first + 4]
            counters = torch.arange(counter, counter + 4).expand(batch_size, 4)
            assert torch.equal(made, streams._draw(_exponential, Tag.TARGET, counters, 5)[row])


def test_of_no_positions_there_are_no_numbers():
    """A chain of the root alone has nothing to be tested."""
    streams, none = RandomStreams.from_seeds([1, 2]), torch.zeros(2, 0, dtype=torch.int64)
    assert streams.uniform(Tag.ACCEPT, none).shape == (2, 0)
    assert streams.exponential(Tag.TARGET, none, 5).shape == (2, 0, 5)


def test_exponential_noise_is_exponential():
    streams = RandomStreams.from_seeds(list(range(8)))
    noise = streams.exponential(Tag.DRAFT, torch.arange(50).expand(8, 50), 256)
    assert noise.dtype == torch.float32 and noise.shape == (8, 50, 256)
    assert noise.min() > 0 and noise.max() < 40
    assert stats.kstest(noise.flatten().double().numpy(), "expon").pvalue > 1e-3


def test_samples_have_the_given_distribution():
    probabilities = torch.tensor([0.5, 0.0, 0.25, 0.125, 0.1, 0.025])
    rows, columns = 200, 500
    streams = RandomStreams.from_seeds(list(range(rows)))
    noise = streams.exponential(Tag.TARGET, torch.arange(columns).expand(rows, columns), 6)
    counts = sample(probabilities, noise).flatten().bincount(minlength=6)
    assert counts[1] == 0
    kept = probabilities > 0
    assert stats.chisquare(counts[kept].numpy(), (probabilities[kept] * rows * columns).double().numpy()).pvalue > 1e-3


def test_rare_tokens_of_a_large_vocabulary_are_drawn_often_enough():
    """Coarse random numbers would show first where everything hangs on the smallest of many."""
    size, draws = 16384, 400
    probabilities = torch.full((size,), 1e-3 / (size - 1))
    probabilities[5] = 0.999
    streams = RandomStreams.from_seeds([3])
    rare = 0
    for start in range(0, draws, 50):
        counters = torch.arange(start, start + 50)[None]
        rare += int((sample(probabilities / probabilities.sum(), streams.exponential(1, counters, size)) != 5).sum())
    assert stats.binomtest(rare, draws, 1e-3).pvalue > 1e-3
    flat = sample(torch.ones(size), streams.exponential(2, torch.arange(200)[None], size))
    assert flat.unique().numel() >= 190  # about 200^2 / (2 * 16384) = 1.2 repetitions are expected


def test_greedy_uses_no_random_number():
    logits = torch.randn(2, 3, 11)

    class NoStreams(RandomStreams):
        def uniform(self, *_: object, **__: object) -> torch.Tensor:
            raise AssertionError("a random number was drawn")

    streams = NoStreams(torch.zeros(2, dtype=torch.int64))
    tokens = draw_tokens(logits, SamplingConfig(temperature=0), streams, torch.zeros(2, 3, dtype=torch.int64), 1)
    assert torch.equal(tokens, logits.argmax(-1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_the_same_numbers():
    here, there = RandomStreams.from_seeds([1, 2, -3]), RandomStreams.from_seeds([1, 2, -3], device="cuda")
    counters = torch.arange(100).expand(3, 100)
    assert torch.equal(here.uniform(3, counters, 50), there.uniform(3, counters.cuda(), 50).cpu())
    noise, other = here.exponential(3, counters, 500), there.exponential(3, counters.cuda(), 500).cpu()
    torch.testing.assert_close(noise, other, rtol=1.2e-7, atol=0)


def test_every_purpose_has_numbers_of_its_own():
    assert len(set(Tag)) == len(Tag.__members__)  # equal values would be one member with two names
