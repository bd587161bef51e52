"""FLy's rule against a loop over its definition."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_chains import state_for
from refusals import value_error
from synthetic import GREEDY

from specdecode import Draft, TargetOutput, TokenTree, WindowedVerifier

VOCAB = 5
STATE = state_for(torch.tensor([2]), GREEDY)


@st.composite
def windows(draw: st.DrawFn) -> tuple[Draft, torch.Tensor]:
    """Mostly matching chains, with flat and sharp distributions."""
    length = draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    logits = torch.randn(1, length + 1, VOCAB, generator=generator)
    logits = logits * torch.tensor([draw(st.sampled_from([0.2, 1.0, 8.0])) for _ in range(length + 1)])[None, :, None]
    tokens = logits[0].argmax(-1).roll(1)
    for place in range(1, length + 1):
        if draw(st.integers(0, 3)) == 0:
            tokens[place] = (tokens[place] + 1) % VOCAB
    return Draft(TokenTree.chain(tokens[None])), logits


def slow_rule(tokens: list[int], logits: torch.Tensor, threshold: float, window: int | None) -> int:
    """Accepted tokens, one at a time."""
    drafted, wanted = tokens[1:], logits.argmax(-1).tolist()
    matches = [token == want for token, want in zip(drafted, wanted, strict=False)]
    for number in range(len(drafted)):
        if matches[number]:
            continue
        p = logits[number].softmax(-1).tolist()
        entropy = -sum(each * math.log(each) for each in p if each > 0) / math.log(VOCAB)
        following = window or 0
        after = matches[number + 1 : number + 1 + following]
        agrees = len(after) == following and all(after)
        if abs(entropy - threshold) < 1e-5:
            return -1  # rounding decides
        if entropy < threshold or not agrees:
            return number
    return len(drafted)


@settings(max_examples=200, deadline=None)
@given(windows(), st.sampled_from([0.0, 0.3, 0.8]), st.sampled_from([None, 1, 2, 3]))
def test_the_rule_against_its_definition(window, threshold, width):
    draft, logits = window
    verdict = WindowedVerifier(threshold, width).accept(draft, TargetOutput(logits), STATE)
    wanted = slow_rule(draft.tree.tokens[0].tolist(), logits[0], threshold, width)
    if wanted < 0:
        return
    assert int(verdict.accepted[0]) == wanted
    assert int(verdict.next_tokens[0]) == int(logits[0, wanted].argmax())
    assert verdict.relaxed is not None
    relaxed = verdict.relaxed[0, :wanted]
    assert torch.equal(relaxed, draft.tree.tokens[0, 1 : wanted + 1] != logits[0, :wanted].argmax(-1))


def test_certain_targets_forgive_nothing():
    logits = 50 * torch.nn.functional.one_hot(torch.tensor([[1, 2, 3, 4, 0, 1]]), VOCAB).float()
    draft = Draft(TokenTree.chain(torch.tensor([[0, 1, 4, 3, 4, 0]])))
    assert int(WindowedVerifier(0.3, 1).accept(draft, TargetOutput(logits), STATE).accepted[0]) == 1


@pytest.mark.parametrize(("options", "message"), [({"threshold": -1}, "threshold"), ({"window": 0}, "window")])
def test_settings_out_of_range_are_named(options, message):
    value_error(message, WindowedVerifier, **options)


def test_entropy_is_a_share_of_the_largest_possible_one():
    """Of 0.6 and four times 0.1."""
    entropy = 1.2275 / math.log(VOCAB)
    logits = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]).log().expand(1, 2, -1)
    draft = Draft(TokenTree.chain(torch.tensor([[0, 3]])))
    for threshold, accepted in ((entropy - 0.01, 1), (entropy + 0.01, 0)):
        verdict = WindowedVerifier(threshold, None).accept(draft, TargetOutput(logits), STATE)
        assert int(verdict.accepted[0]) == accepted


def test_padding_is_never_forgiven():
    tree = TokenTree.chain(torch.tensor([[0, 3, 3, 3]]))
    tree = replace(tree, valid=torch.tensor([[True, True, False, False]]))
    verdict = WindowedVerifier(0.0, None).accept(Draft(tree), TargetOutput(torch.zeros(1, 4, VOCAB)), STATE)
    assert int(verdict.accepted[0]) == 1
    assert verdict.relaxed is not None and verdict.relaxed[0].tolist() == [True, False, False]
