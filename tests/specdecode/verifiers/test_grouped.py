"""GSD: its test against a slow form that sorts lists, the exact rule at its zero, and its distance from the target."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_chains import assert_same, random_chain, state_for
from refusals import value_error
from synthetic import MarkovDrafter, MarkovTarget, decoded, goodness_of_fit, random_table
from torch import Tensor

from specdecode.roles import DecodeState, Draft, TargetOutput
from specdecode.sampling import SamplingConfig, Tag, logits_to_probabilities
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier

VOCAB_SIZE = 10
SAMPLING = SamplingConfig(temperature=0.9)
FILTERED = SamplingConfig(temperature=1.2, top_k=6, top_p=0.9)
VECTORS = 0.5 * torch.randn(VOCAB_SIZE, 3, generator=torch.Generator().manual_seed(2))


def slow_group(p: list[float], x: int, size: int, max_difference: float, max_distance: float) -> list[int]:
    order = sorted(range(len(p)), key=lambda token: (-p[token], token))
    place = order.index(x)
    near = order[max(0, place - size // 2) : place] + order[place + 1 : place + 1 + size // 2]
    return [x] + [
        y
        for y in near
        if abs(p[y] - p[x]) < max_difference and float((VECTORS[y] - VECTORS[x]).square().sum()) < max_distance
    ]


def judged_token(
    draft: Draft, output: TargetOutput, state: DecodeState, row: int, place: int
) -> tuple[float, int, list[float], list[float]]:
    """Its random number, the drafted token after a node, and the target's and the drafter's distribution of it."""
    assert draft.probabilities is not None
    counter = (state.lengths[row] + place).expand(draft.tree.batch_size)
    return (
        float(state.streams.uniform(Tag.ACCEPT, counter)[row]),
        int(draft.tree.tokens[row, place + 1]),
        logits_to_probabilities(output.logits[row, place], state.sampling).tolist(),
        draft.probabilities[row, place + 1].tolist(),
    )


def slow_accepted(
    draft: Draft, output: TargetOutput, state: DecodeState, size: int, max_difference: float, max_distance: float
) -> list[int]:
    counts = []
    for row in range(draft.tree.batch_size):
        accepted, valid = 0, draft.tree.valid[row].tolist()
        while accepted < draft.tree.max_depth and valid[accepted + 1]:
            threshold, x, p, q = judged_token(draft, output, state, row, accepted)
            group = slow_group(p, x, size, max_difference, max_distance)
            if threshold >= sum(p[y] for y in group) / sum(q[y] for y in group):
                break
            accepted += 1
        counts.append(accepted)
    return counts


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(2, 25),
    st.sampled_from([0.05, 0.15, 1.0]),
    st.sampled_from([0.2, 0.5, 100.0]),
    st.sampled_from([SAMPLING, FILTERED]),
)
def test_accepts_what_the_slow_form_accepts(seed, length, size, max_difference, max_distance, sampling):
    draft, output, lengths = random_chain(seed, 10, length, VOCAB_SIZE)
    state = state_for(lengths, sampling)
    verdict = GroupedVerifier(VECTORS, size, max_difference, max_distance).accept(draft, output, state)
    assert verdict.accepted.tolist() == slow_accepted(draft, output, state, size, max_difference, max_distance)
    assert verdict.relaxed is not None and verdict.relaxed.shape == (10, draft.tree.max_depth)
    for row, accepted in enumerate(verdict.accepted.tolist()):
        tested = [judged_token(draft, output, state, row, place) for place in range(accepted)]
        assert verdict.relaxed[row, :accepted].tolist() == [threshold >= p[x] / q[x] for threshold, x, p, q in tested]


NO_RELAXATION = [
    GroupedVerifier(VECTORS, 0),
    GroupedVerifier(VECTORS, 1),
    GroupedVerifier(VECTORS, 15, max_probability_difference=0),
    GroupedVerifier(VECTORS, 15, max_distance=0),
]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 5), st.sampled_from([SAMPLING, FILTERED, SamplingConfig(0)]))
def test_groups_of_one_have_the_tokens_of_exact_verification(seed, length, sampling):
    draft, output, lengths = random_chain(seed, 10, length, VOCAB_SIZE)
    state = state_for(lengths, sampling)
    expected = ExactVerifier().accept(draft, output, state)
    # Groups that could have members but, so far apart are the codes, have none.
    lonely = GroupedVerifier(1e3 * VECTORS, 15, 1.0)
    for verifier in (*NO_RELAXATION, lonely):
        assert_same(verifier.accept(draft, output, state), expected)


def test_greedy_is_exact():
    """The relaxed rule would accept the same: no group unites the one token of probability 1 with another."""
    one_hot = [0.0, 1.0, 0.0]
    assert slow_group(one_hot, 1, 15, 0.15, 100.0) == [1] and 1 not in slow_group(one_hot, 0, 15, 0.15, 100.0)
    draft, output, lengths = random_chain(5, 30, 4, VOCAB_SIZE)
    state = state_for(lengths, SamplingConfig(0))
    verdict = GroupedVerifier(VECTORS, 15).accept(Draft(draft.tree), output, state)
    assert_same(verdict, ExactVerifier().accept(Draft(draft.tree), output, state))


def test_it_says_whether_it_is_exact():
    assert all(verifier.exact for verifier in NO_RELAXATION)
    assert not GroupedVerifier(VECTORS, 15).exact


def emitted_distribution(p: Tensor, q: Tensor, size: int, max_difference: float, max_distance: float) -> Tensor:
    """By enumeration over the drafted token: accepted ones, and the residual in place of the others."""
    accepted = torch.zeros_like(p)
    for x in range(len(p)):
        group = slow_group(p.tolist(), x, size, max_difference, max_distance)
        accepted[x] = q[x] * min(1.0, float(p[group].sum() / q[group].sum()))
    residual = (p - q).clamp(min=0)
    return accepted + (1 - accepted.sum()) * residual / residual.sum()


def p_value_of(verifier: GroupedVerifier, p: Tensor, q: Tensor, expected: Tensor, draws: int = 50_000) -> float:
    """Of the first token emitted over many rows with one drafted token each."""
    drafted = torch.multinomial(q, draws, replacement=True, generator=torch.Generator().manual_seed(1))
    tree = TokenTree.chain(torch.stack([torch.zeros_like(drafted), drafted], 1))
    draft = Draft(tree, q.expand(draws, 2, VOCAB_SIZE))
    state = state_for(torch.ones(draws, dtype=torch.int64), SamplingConfig())
    verdict = verifier.accept(draft, TargetOutput(p.log().expand(draws, 2, VOCAB_SIZE)), state)
    return goodness_of_fit(torch.where(verdict.accepted > 0, drafted, verdict.next_tokens), expected)


def target_and_draft(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, VOCAB_SIZE, generator=generator).softmax(-1).unbind(0)


def test_emits_the_distribution_its_rule_implies():
    p, q = target_and_draft(3)
    expected = emitted_distribution(p, q, 7, 1.0, 1.0)
    assert p_value_of(GroupedVerifier(VECTORS, 7, 1.0, 1.0), p, q, expected) > 1e-3
    assert p_value_of(GroupedVerifier(VECTORS, 1), p, q, p) > 1e-3
    assert float((expected - p).abs().sum() / 2) > 0.03, "the rule should differ from the target here"
    assert p_value_of(GroupedVerifier(VECTORS, 7, 1.0, 1.0), p, q, p) < 1e-9


def test_large_groups_accept_more():
    prompts = torch.randint(0, VOCAB_SIZE, (60, 2), generator=torch.Generator().manual_seed(4))
    table = random_table(VOCAB_SIZE, 5)
    drafter = MarkovDrafter(0.3 * table, prompts, [-1, 0, 1, 2], "sampled")

    def accepted(verifier: GroupedVerifier | None) -> float:
        target = MarkovTarget(table, prompts, 31)
        return decoded(target, 32, SAMPLING, drafter=drafter, verifier=verifier).trace.mean_accepted_length

    exact = accepted(GroupedVerifier(VECTORS, 1))
    assert accepted(GroupedVerifier(VECTORS, 9, 1.0, 3.0)) > exact + 0.1
    assert exact == accepted(None)
    # Where a group is the whole vocabulary, p and q are both 1.
    assert accepted(GroupedVerifier(VECTORS, 2 * VOCAB_SIZE, 1.0, 1e9)) > 2.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((VECTORS[0], 3), r"vectors must be float32 of shape \[tokens, dim\]"),
        ((VECTORS.long(), 3), "vectors must be float32"),
        ((VECTORS, -1), "group_size must be an integer >= 0"),
        ((VECTORS, 2.5), "group_size must be an integer"),
        ((VECTORS, 3, 1.5), r"max_probability_difference must be a finite number in \[0, 1\]"),
        ((VECTORS, 3, 0.1, -1.0), "max_distance must be a finite number >= 0"),
    ],
)
def test_bad_arguments(arguments, message):
    value_error(message, GroupedVerifier, *arguments)


def test_drafts_it_does_not_take():
    draft, output, _ = random_chain(1, 2, 2, VOCAB_SIZE)
    state, verifier = state_for(torch.tensor([1, 1]), SAMPLING), GroupedVerifier(VECTORS, 5)
    value_error("has no probabilities", verifier.accept, Draft(draft.tree), output, state)
    tree = TokenTree.from_parents(draft.tree.tokens, torch.tensor([[-1, 0, 0]] * 2), max_depth=1)
    with pytest.raises(ValueError, match="judges chains only, but the nodes of this draft have up to 2 children"):
        verifier.accept(Draft(tree, draft.probabilities), output, state)
    with pytest.raises(ValueError, match="vectors must have a row for each of the target's 4 tokens"):
        verifier.accept(draft, TargetOutput(output.logits[..., :4]), state)
    root = TokenTree.chain(torch.tensor([[3], [4]]))
    assert verifier.accept(Draft(root), TargetOutput(output.logits[:, :1]), state).accepted.tolist() == [0, 0]
