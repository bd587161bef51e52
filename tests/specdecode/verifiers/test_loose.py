"""LVSpec's rule against a loop over its definition, and its limits."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_chains import assert_same, state_for, way_to
from refusals import value_error
from synthetic import GREEDY
from torch import Tensor
from torch.nn.functional import cosine_similarity

from specdecode import Draft, ExactVerifier, LooseVerifier, SamplingConfig, StaticTree, TargetOutput, TokenTree
from specdecode.verifiers.loose import relevance_to

VOCAB, DIM, END = 6, 5, 0
STATE = state_for(torch.tensor([3]), GREEDY)


@st.composite
def windows(draw: st.DrawFn) -> tuple[Draft, TargetOutput, Tensor]:
    """A drafted chain, what the target says of it, and the reference."""
    length = draw(st.integers(1, 8))
    tokens = [draw(st.integers(0, VOCAB - 1)) for _ in range(length + 1)]
    wanted = [draw(st.integers(0, VOCAB - 1)) for _ in range(length + 1)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    states = torch.randn(1, length + 1, DIM, generator=generator)
    reference = torch.randn(draw(st.integers(1, 6)), DIM, generator=generator)
    logits = torch.nn.functional.one_hot(torch.tensor([wanted]), VOCAB).float() * 9
    return Draft(TokenTree.chain(torch.tensor([tokens]))), TargetOutput(logits, states), reference


def slow_rule(
    draft: Draft,
    output: TargetOutput,
    reference: Tensor,
    ratio: float,
    nearest: int,
    shift: bool,
    first: int,
    centred: bool = False,
) -> tuple[list[int], int]:
    """Accepted tokens and the one after them, one token at a time."""
    tokens = draft.tree.tokens[0].tolist()
    assert output.hidden_states is not None
    wanted = output.logits[0].argmax(-1).tolist()
    drafted = tokens[1:]
    relevance = []
    for number in range(len(drafted)):
        state = output.hidden_states[0, number + first]
        cosines = sorted((float(cosine_similarity(state, each, dim=0)) for each in reference), reverse=True)
        relevance.append(sum(cosines[:nearest]) / min(nearest, len(cosines)))
        relevance[-1] -= sum(cosines) / len(cosines) if centred else 0
    order = sorted(range(len(drafted)), key=lambda i: relevance[i])
    loose = set(order[: math.floor(ratio * len(drafted) + 1e-6)])
    accepted: list[int] = []
    for number, token in enumerate(drafted):
        target = wanted[number]
        passes = token == target
        if ratio > 0 and END not in (token, target):
            passes = passes or number in loose or (shift and target in drafted)
        if not passes:
            break
        accepted.append(token)
    return accepted, wanted[len(accepted)]


@settings(max_examples=150, deadline=None)
@given(
    windows(),
    st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["token", "prediction"]),
    st.booleans(),
)
def test_the_rule_against_its_definition(window, ratio, nearest, shift, source, centred):
    draft, output, reference = window
    # Where every cosine counts, what is centred is nothing, and rounding would choose.
    nearest = min(nearest, max(1, len(reference) - 1)) if centred else nearest
    assume(not centred or len(reference) > 1)
    verifier = LooseVerifier(lambda: [reference], ratio, nearest, shift, [END], source, centred)
    verdict = verifier.accept(draft, output, STATE)
    first = 1 if source == "token" else 0
    accepted, following = slow_rule(draft, output, reference, ratio, nearest, shift, first, centred)
    count = int(verdict.accepted[0])
    assert draft.tree.tokens[0, 1 : count + 1].tolist() == accepted
    assert int(verdict.next_tokens[0]) == following
    wanted = output.logits[0].argmax(-1)
    assert verdict.relaxed is not None
    relaxed = verdict.relaxed[0, :count]
    assert torch.equal(relaxed, draft.tree.tokens[0, 1 : count + 1] != wanted[:count])


def test_padding_is_not_elsewhere():
    """Token 0 is wanted, and padding behind the end of the row has token 0."""
    tokens, wanted = [4, 3, 0, 0], [0, 1, 1, 1]
    chain = TokenTree.chain(torch.tensor([tokens]))
    logits = torch.nn.functional.one_hot(torch.tensor([wanted]), VOCAB).float() * 9
    output = TargetOutput(logits, torch.randn(1, 4, DIM, generator=torch.Generator().manual_seed(0)))
    verifier = LooseVerifier(lambda: [torch.ones(2, DIM)], loose_ratio=0.01)  # too little to loosen anything
    assert verifier.accept(Draft(chain), output, STATE).accepted.tolist() == [1], "0 stands elsewhere"
    short = chain.clip(torch.tensor([1]))
    assert short.tokens[0].tolist() == [4, 3, 0, 0]
    assert verifier.accept(Draft(short), output, STATE).accepted.tolist() == [0], "padding says nothing"


@settings(max_examples=400, deadline=None)
@given(
    windows(),
    st.sampled_from([0.2, 0.5, 0.8, 1.0]),
    st.sampled_from([0.0, 0.05, 0.4, 0.9, 1.0]),
    st.sampled_from([0.03, 0.4, 0.9, 1.0]),
    st.booleans(),
)
def test_the_least_sure_tokens_are_loosened_where_they_are_plausible(window, ratio, min_p, relevant_min_p, cut):
    """Against a loop, with a floor for the loosened share and one for the others. A word that cannot be said, with a
    logit of minus infinity, has no part in the entropy and is never plausible. With floors of 1 the walk is exact."""
    draft, output, _ = window
    noise = torch.randn(output.logits.shape, generator=torch.Generator().manual_seed(draft.tree.num_nodes))
    logits = output.logits / 4 + noise
    if cut:
        logits[..., VOCAB - 1] = -torch.inf
    floors = {"min_p": min_p, "relevant_min_p": relevant_min_p}
    by = {"position_shift": False, "protected_tokens": [END], "loosened_by": "entropy", **floors}
    verdict = LooseVerifier(lambda: [], ratio, **by).accept(draft, TargetOutput(logits), STATE)
    drafted, wanted = draft.tree.tokens[0, 1:].tolist(), logits[0].argmax(-1).tolist()
    chances = logits[0].double().softmax(-1).tolist()[: len(drafted)]
    entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in chances]
    unsure = sorted(range(len(drafted)), key=lambda place: -entropies[place])[: math.floor(ratio * len(drafted) + 1e-6)]
    accepted = 0
    for place, token in enumerate(drafted):
        share = chances[place][token] / max(chances[place]) * (1 + 1e-6)
        plausible = (place in unsure and share >= min_p) or (relevant_min_p < 1 and share >= relevant_min_p)
        loosened = plausible and END not in (token, wanted[place])
        if token != wanted[place] and not loosened:
            break
        accepted += 1
    assert int(verdict.accepted[0]) == accepted
    if min_p == relevant_min_p == 1:
        assert accepted == int(ExactVerifier().accept(draft, TargetOutput(logits), STATE).accepted[0])


def test_a_token_is_compared_with_the_likeliest_in_its_place():
    """The second token is nearly as likely as the likeliest there, and far less likely than the first one's."""
    logits = torch.tensor([[[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.9], [5.0, 0.0, 0.0, 0.0]]])
    draft = Draft(TokenTree.chain(torch.tensor([[2, 1, 3]])))
    verifier = LooseVerifier(lambda: [], 1.0, position_shift=False, min_p=0.5)
    verdict = verifier.accept(draft, TargetOutput(logits), STATE)
    assert verdict.accepted.tolist() == [2] and verdict.relaxed is not None
    assert verdict.relaxed[0, :2].tolist() == [False, True]


def test_without_a_floor_a_relevant_token_is_the_one_that_was_drawn():
    """The draft is the likeliest token, and at a high temperature the target draws another."""
    logits = torch.tensor([[[2.0, 1.9, 1.9, 1.9, 1.9, 1.9], [0.0] * 6]])
    draft = Draft(TokenTree.chain(torch.tensor([[1, 0]])))
    hot = replace(STATE, sampling=SamplingConfig(temperature=1.0))
    assert ExactVerifier().accept(draft, TargetOutput(logits), hot).accepted.tolist() == [0]
    for min_p, relevant_min_p, accepted in ((0.0, 1.0, 0), (0.5, 1.0, 0), (0.0, 0.9, 1), (0.5, 0.9, 1)):
        floors = {"min_p": min_p, "relevant_min_p": relevant_min_p}
        verifier = LooseVerifier(lambda: [], 0.1, position_shift=False, loosened_by="entropy", **floors)
        assert verifier.accept(draft, TargetOutput(logits), hot).accepted.tolist() == [accepted]


def test_a_high_mean_is_no_sharp_profile():
    """A filler is a little like the whole video; a word about one thing is like that alone (figure 4)."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(32, generator=generator)
    reference = common + torch.randn(60, 32, generator=generator)
    fillers = common + 0.4 * torch.randn(30, 32, generator=generator)
    words = reference[:30] - common + 0.4 * torch.randn(30, 32, generator=generator)

    def area(centred: bool) -> float:
        of_words, of_fillers = (relevance_to(each, reference, 3, centred) for each in (words, fillers))
        return float((of_words[:, None] > of_fillers[None]).double().mean())

    assert area(True) > 0.95 > 0.5 > area(False)


@settings(max_examples=60, deadline=None)
@given(windows())
def test_lambda_one_accepts_all_but_protected_tokens_and_more_lambda_never_accepts_less(window):
    draft, output, reference = window
    counts = [
        int(LooseVerifier(lambda: [reference], ratio, 3, False).accept(draft, output, STATE).accepted[0])
        for ratio in (0.0, 0.2, 0.5, 0.8, 1.0)
    ]
    assert counts == sorted(counts) and counts[-1] == draft.tree.num_nodes - 1
    protected = LooseVerifier(lambda: [reference], 1.0, 3, True, protected_tokens=range(VOCAB))
    exact = ExactVerifier().accept(draft, output, STATE)
    assert torch.equal(protected.accept(draft, output, STATE).accepted, exact.accepted)


def test_drafts_it_cannot_judge_are_refused():
    reference = torch.randn(3, DIM)
    chain = TokenTree.chain(torch.tensor([[1, 2]]))
    output = TargetOutput(torch.zeros(1, 2, VOCAB), torch.zeros(1, 2, DIM))
    verifier = LooseVerifier(lambda: [reference])
    value_error("were drawn", verifier.accept, Draft(chain, torch.zeros(1, 2, VOCAB)), output, STATE)
    value_error("hidden states", verifier.accept, Draft(chain), TargetOutput(output.logits), STATE)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Draft, TargetOutput, Tensor]:
    """A tree whose siblings differ, what the target says of it, and the reference."""
    if draw(st.booleans()):
        shape = StaticTree.branches(draw(st.integers(2, 3)), draw(st.integers(1, 5)))
    else:
        shape = StaticTree.from_child_counts("3 / 2 1 / 1 0 2")
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    tokens = [draw(st.integers(0, VOCAB - 1))]
    first = torch.randint(VOCAB, (shape.num_nodes,), generator=generator).tolist()
    tokens += [(first[parent] + rank) % VOCAB for parent, rank in zip(shape.parents[1:], shape.ranks[1:], strict=True)]
    tree = TokenTree.from_parents(torch.tensor([tokens]), torch.tensor([shape.parents]), max_depth=shape.max_depth)
    # Mostly what one of the children is, so that branches go on.
    wanted = torch.tensor(
        [
            [
                (own + int(more)) % VOCAB
                for own, more in zip(first, torch.rand(shape.num_nodes, generator=generator) * 2.5, strict=True)
            ]
        ]
    )
    logits = torch.nn.functional.one_hot(wanted, VOCAB).float() * 9
    states = torch.randn(1, shape.num_nodes, DIM, generator=generator)
    tree = tree.clip(torch.tensor([draw(st.integers(1, shape.max_depth))]))
    return Draft(tree), TargetOutput(logits, states), torch.randn(4, DIM, generator=generator)


def slow_branches(
    draft: Draft, output: TargetOutput, reference: Tensor, ratio: float, first: int
) -> tuple[list[int], int]:
    """Every branch as a chain by `slow_rule`; the longest, and the first of them."""
    best: tuple[list[int], int] | None = None
    parents = draft.tree.parents[0].tolist()
    for leaf in draft.tree.leaves()[0].nonzero()[:, 0].tolist():
        path = way_to(parents, leaf)
        assert output.hidden_states is not None
        chain = Draft(TokenTree.chain(draft.tree.tokens[:, path]))
        told = TargetOutput(output.logits[:, path], output.hidden_states[:, path])
        found = slow_rule(chain, told, reference, ratio, 2, True, first)
        if best is None or len(found[0]) > len(best[0]):
            best = found
    assert best is not None
    return best


def judged(draft: Draft, output: TargetOutput, reference: Tensor, ratio: float, source: str) -> tuple[list[int], int]:
    verdict = LooseVerifier(lambda: [reference], ratio, 2, True, [END], source).accept(draft, output, STATE)
    count = int(verdict.accepted[0])
    path = verdict.path[0, : count + 1]
    assert path[0] == 0 and torch.equal(draft.tree.parents[0, path[1:]], path[:-1])
    assert verdict.relaxed is not None and verdict.relaxed.shape == (1, draft.tree.max_depth)
    wanted = output.logits[0].argmax(-1)
    assert torch.equal(verdict.relaxed[0, :count], draft.tree.tokens[0, path[1:]] != wanted[path[:-1]])
    return draft.tree.tokens[0, path[1:]].tolist(), int(verdict.next_tokens[0])


@settings(max_examples=100, deadline=None)
@given(trees(), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.sampled_from(["token", "prediction"]))
def test_of_a_tree_the_longest_branch_stays(window, ratio, source):
    expected = slow_branches(*window, ratio, 1 if source == "token" else 0)
    assert judged(*window, ratio, source) == expected


@settings(max_examples=100, deadline=None)
@given(windows() | trees(), st.sampled_from([0.0, 1.0]))
def test_lambda_zero_is_the_exact_walk(window, temperature):
    draft, output, reference = window
    output = replace(output, logits=output.logits / 9)  # so that draws differ from the likeliest
    state = replace(STATE, sampling=SamplingConfig(temperature=temperature))
    verifier = LooseVerifier(lambda: [reference], 0.0, position_shift=True)
    assert verifier.exact
    assert_same(verifier.accept(draft, output, state), ExactVerifier().accept(draft, output, state))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loose_ratio": 1.1}, "loose_ratio"),
        ({"loose_ratio": -0.1}, "loose_ratio"),
        ({"num_nearest": 0}, "num_nearest"),
        ({"relevance_from": "both"}, "relevance_from"),
        ({"loosened_by": "chance"}, "loosened_by"),
    ],
)
def test_settings_out_of_range_are_named(options, message):
    value_error(message, LooseVerifier, lambda: [torch.zeros(1, 1)], **options)


def test_a_reference_that_changes_is_read_anew():
    """It is normalised once for as long as it stays; another prompt has another."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 1, DIM, generator=generator)
    draft = Draft(TokenTree.chain(torch.tensor([[1, 2, 3]])))
    output = TargetOutput(torch.zeros(1, 3, VOCAB), torch.stack((first, second, first), 1))
    references = iter((first, first, second))
    verifier = LooseVerifier(lambda: [next(references)], 0.5, 1, position_shift=False, relevance_from="prediction")
    # The drafted tokens are 2 and 3, the target wants 0; relevance is read off the rows of 1 and 2.
    accepted = [int(verifier.accept(draft, output, STATE).accepted[0]) for _ in range(3)]
    assert accepted == [0, 0, 1], "the second token has least to do with the first reference, the first with the other"


def test_where_every_cosine_counts_nothing_centred_is_left_not_even_rounding():
    states, reference = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    assert relevance_to(states, reference, 6, centred=True).tolist() == [0.0] * 6
    assert relevance_to(states, reference, 5, centred=True).min() > 0
