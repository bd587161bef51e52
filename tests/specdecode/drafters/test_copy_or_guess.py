"""How many tokens a head guesses, beside what a copy would give."""

from typing import Any

import pytest
import torch

from specdecode.drafters.copy_or_guess import CopyOrGuessDrafter, GuessDraftSize
from specdecode.drafters.draft_size import DraftSize
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.roles import DecodeState, Draft
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.tree import TokenTree

YES = torch.ones(1, dtype=torch.bool)


def taught(accepted: list[int], steps: int = 40) -> GuessDraftSize:
    """After steps in which 4 tokens were guessed and so many accepted, in turns."""
    sizer = GuessDraftSize(4)
    for step in range(steps):
        sizer.observe(DraftSize(5, 4), torch.tensor([accepted[step % len(accepted)]]), YES)
    return sizer


def test_rates_are_learned_level_by_level():
    sizer = taught([2])
    rates = [sizer.rate(level) for level in range(4)]
    assert min(rates[:2]) > 0.9 and rates[2] < 0.2 and rates[3] == GuessDraftSize(4).rate(3), "never came to level 3"
    assert sizer.best(1, 0.08, None)[0] == 2 and sizer.choose() == DraftSize(3, 2)
    assert taught([4]).best(1, 0.08, None)[0] == 4 and taught([0]).best(1, 0.08, None) == (0, 1.0)
    assert taught([0]).best(3, 0.08, None) == (0, 3.0)
    sizer.observe(DraftSize(5, 4), torch.tensor([4]), ~YES)
    assert [sizer.rate(level) for level in range(4)] == rates, "a row that is over teaches nothing"


def test_the_length_is_the_best_of_all():
    for row_cost in (0.02, 0.1, 0.5):
        sizer = taught([4, 1, 3, 2])
        values = []
        for depth in range(5):
            expected = 1 + sum(torch.tensor([sizer.rate(i) for i in range(n + 1)]).prod().item() for n in range(depth))
            values.append(2 * expected / (1 + (row_cost + sizer.guess_cost(None)) * depth))
        found = sizer.best(2, row_cost, None)
        assert found[1] == pytest.approx(max(values)) and values[found[0]] == pytest.approx(max(values))


def test_what_is_not_tried_is_tried_again():
    sizer = taught([0])
    assert sizer.best(1, 0.05, None)[0] == 0
    for _ in range(600):
        sizer.observe(DraftSize(1, 0), torch.tensor([0]), YES)
    assert sizer.best(1, 0.05, None)[0] > 0
    sizer = taught([2])
    for _ in range(2000):
        sizer.observe(DraftSize(1, 0), torch.tensor([0]), YES)
    before = GuessDraftSize(4)
    assert [sizer.rate(level) for level in range(4)] == pytest.approx([before.rate(level) for level in range(4)])


def test_costs_follow_the_clock():
    sizer = GuessDraftSize(4)
    for _ in range(60):
        sizer.took(0.02, 4)
    assert sizer.guess_cost(0.01) == pytest.approx(0.5, rel=0.25)
    assert sizer.guess_cost(None) == GuessDraftSize(4).guess_cost(0.01)
    assert sizer.best(1, 0.08, 0.01)[0] < sizer.best(1, 0.08, 1.0)[0]


def test_the_first_guess_reads_the_prompt_and_is_not_learned_from():
    now, took = [0.0], iter((9.0, 0.002))
    lookup = PromptLookupDrafter(torch.tensor([[1, 2, 3]]), LookupDraftLength(4, clock=lambda: now[0]))
    tokens, streams = torch.tensor([[5, 0, 0, 0, 0, 0]]), RandomStreams.from_seeds([0])
    state = DecodeState(tokens, torch.tensor([1]), YES, 6, SamplingConfig(temperature=0), streams)

    class Head:
        def propose(self, state: DecodeState) -> Draft:
            now[0] += next(took)
            return Draft(TokenTree.chain(state.last_tokens()[:, None]))

    head: Any = Head()
    drafter = CopyOrGuessDrafter(lookup, head, sizer := GuessDraftSize(4), clock=lambda: now[0])
    before = sizer.guess_cost(0.03)
    drafter.propose(state)
    assert sizer.guess_cost(0.03) == before
    now[0] += 0.03
    drafter.propose(state)
    assert sizer.guess_cost(0.03) != before and next(took, None) is None


def test_time_that_a_head_took_is_left_out():
    now = [0.0]
    sizer = LookupDraftLength(clock=lambda: now[0])
    for _ in range(20):
        now[0] += 0.03
        sizer.leave_out(0.02)
        sizer.begin(0)
    assert sizer.pass_seconds() == pytest.approx(0.01)
    assert LookupDraftLength().pass_seconds() is None
