"""Prompt lookup: the drafts are those of a slow search, and change no token and no distribution."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_chains import state_for
from refusals import value_error
from synthetic import GREEDY, MarkovTarget, chain_of, decoded, random_table

from specdecode import PromptLookupDrafter, SamplingConfig, TargetOutput, TokenTree

VOCAB, LENGTH, DRAWS = 4, 5, 40_000
TABLE, PROMPT = random_table(VOCAB, seed=5, scale=1.2), torch.tensor([1, 3])


def slow_draft(row: list[int], depth: int, max_ngram_size: int) -> list[int]:
    """The latest of the longest occurrences, copied token by token; the copy may be copied from."""
    for size in range(min(max_ngram_size, len(row) - 1), 0, -1):
        for end in range(len(row) - 1, size - 1, -1):
            if row[end - size : end] == row[-size:]:
                grown = list(row)
                for number in range(depth):
                    grown.append(grown[end + number])
                return grown[len(row) :]
    return []


@pytest.fixture(params=["plain", "auto"])
def searches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, own_kernels: None) -> None:
    """In operations of torch, and in the kernel."""
    monkeypatch.setenv("VARGEN_KERNELS", request.param)


rows = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), min_size=1, max_size=7)))


@example([([1, 1, 2, 2, 2, 2, 2, 2, 2], [0, 1])], 3, 3)  # behind a row's end lie zeros, and nothing before its start
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows.filter(len), st.integers(1, 6), st.integers(1, 4))
def test_drafts_are_those_of_a_slow_search(searches, texts, depth, max_ngram_size):
    prompt = torch.tensor([[9] * (9 - len(before)) + before for before, _ in texts])
    mask = torch.tensor([[0] * (9 - len(before)) + [1] * len(before) for before, _ in texts])
    tokens = torch.tensor([after + [0] * (8 - len(after)) for _, after in texts])
    lengths = torch.tensor([len(after) for _, after in texts])
    state = state_for(lengths, SamplingConfig(), tokens, torch.ones(len(texts), dtype=torch.bool), 8)
    drafter = PromptLookupDrafter(prompt, chain_of(depth), mask, max_ngram_size)
    drafter.start(TargetOutput(torch.zeros(len(texts), 1, 10)), state)
    draft = drafter.propose(state)
    draft.tree.check()
    assert draft.probabilities is None and draft.tree.is_chain
    for number, (before, after) in enumerate(texts):
        drafted = draft.tree.tokens[number, 1:][draft.tree.valid[number, 1:]].tolist()
        assert drafted == slow_draft(before + after, depth, max_ngram_size)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(0.8, 9, 0.9)], ids=str)
def test_no_token_changes(sampling):
    prompts = torch.randint(0, 12, (5, 2), generator=torch.Generator().manual_seed(0))
    target, drafter = MarkovTarget(random_table(12, 3, 3.0), prompts, 59), PromptLookupDrafter(prompts, chain_of(3))
    fast, plain = (decoded(target, 60, sampling, drafter=each) for each in (drafter, None))
    assert torch.equal(fast.tokens, plain.tokens)
    if sampling.is_greedy:  # which ends in a circle, and that is copied
        assert fast.trace.target_passes < 40


def test_nothing_is_drafted_where_nothing_repeats_or_a_row_is_finished():
    tokens, active = torch.tensor([[5, 0], [1, 0]]), torch.tensor([True, False])
    state = state_for(torch.tensor([1, 1]), SamplingConfig(), tokens, active, 2)
    tree: TokenTree = PromptLookupDrafter(torch.tensor([[1, 2], [1, 2]]), chain_of(4)).propose(state).tree
    assert tree.num_nodes == 1, "on a CPU nobody computes what nobody drafted"


def test_arguments_that_cannot_be_used_are_named():
    value_error("max_ngram_size must be at least 1", PromptLookupDrafter, PROMPT[None], chain_of(2), max_ngram_size=0)
    with pytest.raises(ValueError, match=r"attention_mask must be int64 of shape \[1, 2\], got"):
        PromptLookupDrafter(PROMPT[None], chain_of(2), torch.ones(2, 2))
    with pytest.raises(ValueError, match="prompt must have the target's 3 rows, got 1"):
        decoded(MarkovTarget(TABLE, PROMPT.expand(3, 2), 4), 5, drafter=PromptLookupDrafter(PROMPT[None], chain_of(2)))
