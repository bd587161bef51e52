"""Cool-SD: its weights, the exact rule at its zero, and the distributions its formulas imply."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_chains import assert_same, random_chain, state_for
from refusals import value_error
from synthetic import MarkovDrafter, MarkovTarget, decoded, goodness_of_fit, random_table, total_variation
from torch import Tensor

from specdecode import AnnealedVerifier, Draft, ExactVerifier, SamplingConfig, TargetOutput, TokenTree
from specdecode.trace import TokenOrigin

VOCAB_SIZE = 6
SAMPLING = SamplingConfig(temperature=0.9)
FILTERED = SamplingConfig(temperature=1.2, top_k=4, top_p=0.9)


# ---- weights ----


@pytest.mark.parametrize("delta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("decay", [0.0, 0.7, 50.0])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_weights_have_mean_delta_and_fall(delta, decay, length):
    weights = AnnealedVerifier(delta, decay).weights(length)
    assert len(weights) == length and sum(weights) / length == pytest.approx(delta)
    assert weights == sorted(weights, reverse=True)
    if decay == 0:
        assert weights == [delta] * length  # to the last bit, or delta 1 would not be exact
    elif length > 1:
        assert weights[1] / weights[0] == pytest.approx(torch.tensor(-decay, dtype=torch.float64).exp().item())


def test_it_says_whether_it_is_exact():
    assert AnnealedVerifier(1, decay=0).exact and AnnealedVerifier(0.5, decay=0).exact
    assert not AnnealedVerifier(1, decay=0.7).exact and not AnnealedVerifier(1.1, decay=0).exact


# ---- zero relaxation takes the exact path ----


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 6), st.sampled_from([SAMPLING, FILTERED, SamplingConfig(0)]))
def test_weight_one_has_the_tokens_of_exact_verification(seed, length, sampling):
    draft, output, lengths = random_chain(seed, 10, length, VOCAB_SIZE)
    state, verifier = state_for(lengths, sampling), AnnealedVerifier(1, decay=0)
    assert_same(verifier.accept(draft, output, state), ExactVerifier().accept(draft, output, state))
    likely = Draft(draft.tree)
    assert_same(verifier.accept(likely, output, state), ExactVerifier().accept(likely, output, state))


def test_certain_tokens_break_nothing():
    """p(x) = 1, where the odds are infinite, and p(x) = 0, at any weight."""
    tree = TokenTree.chain(torch.tensor([[0, 2, 1]] * 5))
    logits = torch.full((5, 3, VOCAB_SIZE), -200.0)
    logits[:, 0, 2] = logits[:, 1, 3] = logits[:, 2, 4] = 200.0
    drawn_from = torch.nn.functional.one_hot(tree.tokens, VOCAB_SIZE).float()
    for delta in (0.5, 1.0, 3.0):
        for draft in (Draft(tree), Draft(tree, drawn_from)):
            state = state_for(torch.arange(5) + 1, SamplingConfig())
            verdict = AnnealedVerifier(delta, 0).accept(draft, TargetOutput(logits), state)
            if delta >= 1 or draft.probabilities is None:
                assert verdict.accepted.tolist() == [1] * 5 and verdict.next_tokens.tolist() == [3] * 5


@pytest.mark.parametrize("given", [False, True])
def test_nothing_is_relaxed_behind_the_end_of_a_chain(given):
    """Clipped nodes hold token 0, which must not be favoured."""
    draft, output, lengths = random_chain(3, 200, 3, VOCAB_SIZE)
    tree = draft.tree.clip(torch.zeros(200, dtype=torch.int64))
    draft = Draft(tree, None if given else draft.probabilities)
    state = state_for(lengths, SAMPLING)
    verdict = AnnealedVerifier(5.0, 0).accept(draft, output, state)
    assert_same(verdict, ExactVerifier().accept(draft, output, state))


def test_prompts_decode_to_plain_tokens_at_weight_one():
    prompts = torch.randint(0, 20, (30, 2), generator=torch.Generator().manual_seed(4))
    table = random_table(20, seed=2, scale=2.0)
    target = MarkovTarget(table, prompts, 31)
    drafter = MarkovDrafter(table + random_table(20, 78), prompts, [-1, 0, 1, 2])
    plain = decoded(target, 32, SAMPLING)
    exact, relaxed = (
        decoded(target, 32, SAMPLING, drafter=drafter, verifier=AnnealedVerifier(delta, decay=0))
        for delta in (1.0, 3.0)
    )
    assert torch.equal(exact.tokens, plain.tokens) and exact.trace.relaxed_tokens == 0
    assert relaxed.trace.mean_accepted_length > exact.trace.mean_accepted_length + 0.1
    # Whichever token of a row differs first was lent by the rule, and the trace says so.
    for row, other, origins in zip(exact.tokens, relaxed.tokens, relaxed.trace.token_origins, strict=True):
        if (places := (row != other).nonzero()).numel():
            assert origins[int(places[0])] == TokenOrigin.RELAXED
    assert relaxed.trace.relaxed_tokens > 0


# ---- distributions ----


def emitted_distribution(p: Tensor, q: Tensor, weight: float) -> Tensor:
    """q f + (1 - sum q f) norm[(p - q f)+] with f = min(1, w p / q), entry by entry."""
    accepted = torch.tensor([b * min(1.0, weight * a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True)])
    residual = (p - accepted).clamp(min=0)
    return accepted + (1 - accepted.sum()) * residual / residual.sum()


def emitted_for_a_given_token(p: Tensor, x: int, weight: float) -> Tensor:
    """Accept x with min(1, w p(x)), else draw from p without x."""
    accept = min(1.0, max(weight, 1.0) * float(p[x]))
    emitted = (1 - accept) * p / (1 - p[x])
    emitted[x] = accept
    return emitted


GENERATOR = torch.Generator().manual_seed(12)
# Distributions after the root and after the first drafted token, and those the two drafted tokens come from.
P = torch.randn(3, VOCAB_SIZE, generator=GENERATOR).softmax(-1)
Q = torch.randn(2, VOCAB_SIZE, generator=GENERATOR).softmax(-1)
DRAWS = 60_000


def p_values(verifier: AnnealedVerifier, expected: list[Tensor], drafted: Tensor | None = None) -> list[float]:
    """Goodness of fit of the first emitted token, and of the second where the first was a drafted one.

    Args:
        verifier: Judges chains of two.
        expected: Two distributions [V].
        drafted: [2] fixed tokens; None: drawn from Q.
    """
    if drafted is None:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.stack([torch.multinomial(q, DRAWS, replacement=True, generator=generator) for q in Q], 1)
        probabilities = torch.cat([Q[:1], Q]).expand(DRAWS, 3, VOCAB_SIZE)  # the root's row is not read
    else:
        tokens, probabilities = drafted.expand(DRAWS, 2), None
    tree = TokenTree.chain(torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1))
    state = state_for(torch.ones(DRAWS, dtype=torch.int64), SamplingConfig())
    verdict = verifier.accept(Draft(tree, probabilities), TargetOutput(P.log().expand(DRAWS, 3, VOCAB_SIZE)), state)
    values = []
    for position, distribution in enumerate(expected):
        reached = verdict.accepted >= position
        emitted = torch.where(verdict.accepted > position, tokens[:, position], verdict.next_tokens)[reached]
        values.append(goodness_of_fit(emitted, distribution))
    return values


@pytest.mark.parametrize(("delta", "decay"), [(1.0, 0.0), (0.6, 0.0), (1.1, 0.7), (2.0, 0.7)])
def test_drafts_emit_the_distribution_of_the_formula(delta, decay):
    verifier, drafted = AnnealedVerifier(delta, decay), torch.tensor([1, 4])
    weights = verifier.weights(2)
    drawn = [emitted_distribution(P[i], Q[i], weights[i]) for i in range(2)]
    assert min(p_values(verifier, drawn)) > 1e-3
    given = [emitted_for_a_given_token(P[i], int(drafted[i]), weights[i]) for i in range(2)]
    assert min(p_values(verifier, given, drafted)) > 1e-3


def test_weights_below_one_are_exact_and_above_are_not():
    for weight in (0.1, 0.6, 1.0):
        assert total_variation(emitted_distribution(P[0], Q[0], weight), P[0]) < 1e-6
    assert total_variation(emitted_distribution(P[0], Q[0], 1.5), P[0]) > 0.02
    assert min(p_values(AnnealedVerifier(0.6, 0), [P[0], P[1]])) > 1e-3
    assert p_values(AnnealedVerifier(1.5, 0), [P[0]])[0] < 1e-9


# ---- bad input ----


@pytest.mark.parametrize(
    ("delta", "decay", "message"),
    [
        (0, 0.7, "delta must be > 0"),
        (-1, 0.7, "delta must be a finite number >= 0"),
        (float("inf"), 0.7, "delta must be a finite number"),
        (1, -0.1, "decay must be a finite number >= 0"),
        (1, "fast", "decay must be"),
    ],
)
def test_bad_arguments(delta, decay, message):
    value_error(message, AnnealedVerifier, delta, decay)


def test_trees_are_refused_and_bare_roots_taken():
    tree = TokenTree.from_parents(torch.tensor([[0, 1, 2]]), torch.tensor([[-1, 0, 0]]), max_depth=1)
    state, output = state_for(torch.tensor([1]), SAMPLING), TargetOutput(torch.zeros(1, 3, VOCAB_SIZE))
    with pytest.raises(ValueError, match=r"AnnealedVerifier judges chains only, but .* up to 2 children"):
        AnnealedVerifier(1.1).accept(Draft(tree), output, state)
    root = Draft(TokenTree.chain(torch.tensor([[3]])))
    verdict = AnnealedVerifier(1.1).accept(root, TargetOutput(output.logits[:, :1]), state)
    assert_same(verdict, ExactVerifier().accept(root, TargetOutput(output.logits[:, :1]), state))
