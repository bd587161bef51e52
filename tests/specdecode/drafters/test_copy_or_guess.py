"""How many tokens a head guesses, beside what a copy would give."""

import random
from typing import Any

import pytest
import torch

from specdecode.drafters.copy_or_guess import CopyOrGuessDrafter, guess_sizes
from specdecode.drafters.draft_size import NO_DRAFT, StepCosts
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.roles import DecodeState, Draft
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.tree import TokenTree

YES = torch.ones(1, dtype=torch.bool)


def tokens_per_pass(rates: list[list[float]], guess_cost: float, length: int | None = None) -> float:
    """Of a row whose guesses are accepted at these rates, 150 steps each; `length` None: the sizer chooses."""
    draw, sizer, tokens, cost = random.Random(0), guess_sizes(4), 0, 0.0
    sizer.costs = StepCosts((1, 5), (1.0, 1.2), guess_cost)
    for rate in (rate for rate in rates for _ in range(150)):
        depth = sizer.choose().depth if length is None else length
        accepted = next((level for level in range(depth) if draw.random() >= rate[level]), depth)
        tokens, cost = tokens + 1 + accepted, cost + 1 + depth * (0.05 + guess_cost)
        if sizer.choose() == NO_DRAFT:
            sizer.forget(0.99)
        sizer.observe(sizer.choose(), torch.tensor([accepted]), YES)
    return tokens / cost


@pytest.mark.parametrize(
    "rates", [[[0.9] * 4], [[0.9, 0.9, 0.05, 0.05]], [[0.05] * 4], [[0.05] * 4, [0.9] * 4, [0.05] * 4, [0.9] * 4]]
)
@pytest.mark.parametrize("guess_cost", [0.05, 0.3])
def test_it_is_about_as_good_as_the_best_fixed_length(rates, guess_cost):
    """Also where guesses come to pay that did not: what is not tried is tried again."""
    best = max(tokens_per_pass(rates, guess_cost, length) for length in range(5))
    assert tokens_per_pass(rates, guess_cost) > 0.93 * best


def drafter_of(now: list[float], took: Any) -> tuple[CopyOrGuessDrafter, DecodeState]:
    """Over a head whose guesses take these seconds."""
    lookup = PromptLookupDrafter(torch.tensor([[1, 2, 3]]), LookupDraftLength(4, clock=lambda: now[0]))
    tokens, streams = torch.tensor([[5, 0, 0, 0, 0, 0]]), RandomStreams.from_seeds([0])

    class Head:
        sizer = guess_sizes(4)

        def propose(self, state: DecodeState) -> Draft:
            now[0] += next(took)
            return Draft(TokenTree.chain(state.last_tokens()[:, None]))

    head: Any = Head()
    state = DecodeState(tokens, torch.tensor([1]), YES, 6, SamplingConfig(temperature=0), streams)
    return CopyOrGuessDrafter(lookup, head, clock=lambda: now[0]), state


def test_costs_follow_the_clock_but_for_the_first_guess_which_reads_the_prompt():
    now = [0.0]
    drafter, state = drafter_of(now, iter((9.0, *(0.02 for _ in range(60)))))
    assumed = drafter.costs().drafting_step_seconds
    for number in range(61):
        drafter.propose(state)
        if number == 1:
            assert drafter.costs().drafting_step_seconds < 10 * assumed
        now[0] += 0.01
    depth = guess_sizes(4).choose().depth
    assert drafter.costs().drafting_step_seconds == pytest.approx(0.02 / depth / 0.01, rel=0.25)


def test_time_that_a_head_took_is_left_out():
    now = [0.0]
    sizer = LookupDraftLength(clock=lambda: now[0])
    for _ in range(20):
        now[0] += 0.03
        sizer.leave_out(0.02)
        sizer.begin(0)
    assert sizer.pass_seconds() == pytest.approx(0.01)
    assert LookupDraftLength().pass_seconds() is None
