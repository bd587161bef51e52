"""Exactness, proven on a target whose distribution is known."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_chains import assert_same, random_chain, state_for
from synthetic import GREEDY, MarkovDrafter, MarkovTarget, decoded, random_table, sequence_p_value
from torch import Tensor

import specdecode.verifiers.exact as exact
from specdecode import DecodeState, Draft, Drafter, ExactVerifier, SamplingConfig, Tag, TargetOutput, TokenTree

CHAIN = [-1, 0, 1]
TREE = [-1, 0, 0, 1, 1, 2]
DEEP_TREE = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 8]

VOCAB_SIZE, LENGTH, DRAWS = 5, 4, 40_000
TABLE = random_table(VOCAB_SIZE, seed=5, scale=1.2)
PROMPT = torch.tensor([1, 3])
SAMPLING = SamplingConfig(temperature=0.9)
FILTERED = SamplingConfig(temperature=1.3, top_k=4, top_p=0.8)
# Knows something of the target's table, but is wrong often enough for every branch to be walked.
DRAFT_TABLE = 0.5 * TABLE + random_table(VOCAB_SIZE, seed=6, scale=0.8)


def chi_square_p_value(make_drafter: Callable[[Tensor], Drafter] | None, sampling: SamplingConfig = SAMPLING) -> float:
    """Decode many rows of one prompt and compare whole sequences with their true distribution."""
    prompts = PROMPT.expand(DRAWS, 2)
    drafter = None if make_drafter is None else make_drafter(prompts)
    tokens = decoded(MarkovTarget(TABLE, prompts, LENGTH - 1), LENGTH, sampling, drafter=drafter).tokens
    return sequence_p_value(tokens, TABLE, PROMPT, sampling)


def markov_drafter(parents: list[int], children: str, tag: int = Tag.DRAFT) -> Callable[[Tensor], Drafter]:
    return lambda prompts: MarkovDrafter(DRAFT_TABLE, prompts, parents, children, tag)  # type: ignore[arg-type]


# ---- greedy and deterministic drafts: the tokens are those of plain decoding ----


@pytest.mark.parametrize("children", ["top", "sampled", "without replacement"])
@pytest.mark.parametrize("parents", [CHAIN, DEEP_TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("batch_size", [1, 5, 200])
def test_greedy_tokens_equal_plain_decoding(children, parents, batch_size):
    table = random_table(40, seed=batch_size)
    prompts = torch.randint(0, 40, (batch_size, 2), generator=torch.Generator().manual_seed(3))
    target = MarkovTarget(table, prompts, 63)
    drafter = MarkovDrafter(table + random_table(40, 77, scale=1.0), prompts, parents, children)  # type: ignore[arg-type]
    fast = decoded(target, 64, GREEDY, drafter=drafter)
    assert torch.equal(decoded(target, 64, GREEDY).tokens, fast.tokens)
    assert fast.trace.mean_accepted_length > 0.2
    if batch_size > 1:
        assert len({tuple(lengths) for lengths in fast.trace.accepted_lengths}) > 1, "rows should have diverged"


@pytest.mark.parametrize("parents", [CHAIN, DEEP_TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(0.8, 10, 0.95)], ids=str)
def test_deterministic_drafts_reproduce_plain_sampling_draw_for_draw(parents, sampling):
    """One number per output position decides its token, so no draft can change a picture."""
    table = random_table(40, seed=2, scale=3.0)
    prompts = torch.randint(0, 40, (50, 2), generator=torch.Generator().manual_seed(4))
    target = MarkovTarget(table, prompts, 63)
    drafter = MarkovDrafter(table + random_table(40, 78, scale=1.0), prompts, parents)
    fast = decoded(target, 64, sampling, drafter=drafter)
    assert torch.equal(decoded(target, 64, sampling).tokens, fast.tokens)
    assert fast.trace.mean_accepted_length > 0.2


# ---- sampled drafts: the distribution is the target's ----


@pytest.mark.parametrize(
    ("parents", "children", "sampling"),
    [
        (None, "", SAMPLING),
        (CHAIN, "sampled", SAMPLING),
        (TREE, "sampled", SAMPLING),
        (TREE, "without replacement", SAMPLING),
        (CHAIN, "sampled", FILTERED),
        (TREE, "without replacement", FILTERED),
    ],
)
def test_sequences_have_the_targets_distribution(parents, children, sampling):
    make_drafter = None if parents is None else markov_drafter(parents, children)
    assert chi_square_p_value(make_drafter, sampling=sampling) > 1e-3


class HiddenProbabilities(MarkovDrafter):
    """A drafter of random children that does not tell what they were drawn from."""

    def propose(self, state: DecodeState) -> Draft:
        return replace(super().propose(state), probabilities=None)


@pytest.mark.parametrize("tag", [Tag.DRAFT, Tag.TARGET])
def test_the_one_draw_walk_is_exact_for_any_draft(tag):
    """Even for guesses drawn with the very numbers the target will use, which is what coupled drafting does."""
    assert chi_square_p_value(lambda prompts: HiddenProbabilities(DRAFT_TABLE, prompts, TREE, "sampled", tag)) > 1e-3


def test_residual_rounds_accept_more_than_one_draw():
    """The reason to keep the drawn-from distributions: overlap sum(min(p, q)) is at least sum(p q)."""

    def accepted(make_drafter: Callable[[Tensor], Drafter]) -> float:
        prompts = PROMPT.expand(2000, 2)
        result = decoded(MarkovTarget(TABLE, prompts, 15), 16, SAMPLING, drafter=make_drafter(prompts))
        return result.trace.mean_accepted_length

    rounds = accepted(markov_drafter(CHAIN, "sampled"))
    one_draw = accepted(lambda prompts: HiddenProbabilities(DRAFT_TABLE, prompts, CHAIN, "sampled"))
    assert rounds > one_draw + 0.1


def test_a_perfect_drafter_is_always_believed():
    """Children drawn from the target's own distribution: every one is accepted."""
    prompts = PROMPT.expand(500, 2)
    drafter = MarkovDrafter(TABLE, prompts, [-1, 0, 1, 2], "sampled")
    result = decoded(MarkovTarget(TABLE, prompts, 12), 13, SAMPLING, drafter=drafter)
    assert result.trace.accepted_lengths == [[3, 3, 3]] * 500


# ---- chains are judged at once, with the tokens of the walk ----


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 6), st.integers(2, 30), st.booleans())
def test_chain_walk_has_the_tokens_of_the_walk(seed, batch_size, length, vocab_size, filtered):
    draft, output, lengths = random_chain(seed, batch_size, length, vocab_size)
    state = state_for(lengths, SamplingConfig(0.9, 4, 0.8) if filtered else SamplingConfig(1.1))
    assert draft.probabilities is not None
    slow = exact.multi_round_walk(draft.tree, draft.probabilities, output.logits, state)
    assert_same(ExactVerifier().accept(draft, output, state), slow)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 6), st.integers(2, 30), st.booleans())
def test_chains_of_one_draw_have_the_tokens_of_the_walk(seed, batch_size, length, vocab_size, greedy):
    draft, output, lengths = random_chain(seed, batch_size, length, vocab_size)
    state = state_for(lengths, SamplingConfig(0 if greedy else 0.7))
    wide = replace(draft.tree, max_children=2)  # the same chain, but nobody knows
    fast = ExactVerifier().accept(Draft(draft.tree), output, state)
    assert_same(fast, ExactVerifier().accept(Draft(wide), output, state))


def test_chain_walk_accepts_and_rejects():
    """The equality above is no comparison of empty paths."""
    draft, output, lengths = random_chain(1, 300, 5, 12)
    accepted = ExactVerifier().accept(draft, output, state_for(lengths, SamplingConfig())).accepted
    assert set(accepted.tolist()) == {0, 1, 2, 3, 4, 5}


def test_a_chain_with_a_gap_ends_at_it():
    tokens = torch.tensor([[1, 0, 2]])
    parents, valid = torch.tensor([[-1, -1, 0]]), torch.tensor([[True, False, True]])
    tree = TokenTree.from_parents(tokens, parents, valid, max_depth=1, max_children=1)
    probabilities = torch.nn.functional.one_hot(tokens, 3).float()
    logits = torch.full((1, 3, 3), -100.0)
    logits[..., 2] = 100.0
    state = state_for(torch.tensor([1]), SamplingConfig())
    for draft in (Draft(tree), Draft(tree, probabilities)):
        verdict = ExactVerifier().accept(draft, TargetOutput(logits), state)
        assert verdict.accepted.tolist() == [0] and verdict.next_tokens.tolist() == [2]
