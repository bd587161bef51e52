"""LANTERN: the budget holds, zero relaxation is exact, and the released rule is what it is said to be.

Distributions are enumerated, not sampled: the verifier runs once for every token the target could draw.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_chains import assert_same, clipped_tree, outcomes, random_parents, repeated, state_for, way_to
from refusals import value_error
from synthetic import MarkovDrafter, MarkovTarget, decoded, random_table, total_variation
from torch import Tensor

from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Draft, TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, draw_tokens, logits_to_probabilities
from specdecode.trace import TokenOrigin
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.lantern import LanternVerifier
from specdecode.verifiers.neighbours import nearest_neighbours

VOCAB_SIZE = 12
SAMPLING = SamplingConfig(temperature=0.9)
FILTERED = SamplingConfig(temperature=1.2, top_k=7, top_p=0.9)
TABLE = random_table(VOCAB_SIZE, seed=3, scale=1.2)
VECTORS = torch.randn(VOCAB_SIZE, 2, generator=torch.Generator().manual_seed(8))
NEIGHBOURS = nearest_neighbours(VECTORS, 5)


def random_tree(seed: int, batch_size: int, num_nodes: int, distinct: bool) -> TokenTree:
    """A random shape for every row, clipped somewhere; the tokens of siblings are distinct or not."""
    generator = torch.Generator().manual_seed(seed)
    parents = random_parents(generator, batch_size, num_nodes)
    tokens = torch.randint(0, VOCAB_SIZE, (batch_size, num_nodes), generator=generator)
    for row in range(batch_size if distinct else 0):
        for node in range(1, num_nodes):
            taken = {int(tokens[row, other]) for other in range(1, node) if parents[row][other] == parents[row][node]}
            choices = [token for token in range(VOCAB_SIZE) if token not in taken]
            tokens[row, node] = choices[int(torch.randint(0, len(choices), (), generator=generator))]
    return clipped_tree(generator, tokens, parents)


def random_logits(seed: int, tree: TokenTree) -> TargetOutput:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*tree.tokens.shape, VOCAB_SIZE, generator=generator)
    # A drafted token is often a probable one.
    rows = torch.arange(tree.batch_size)[:, None]
    logits[rows, tree.parents.clamp(min=0), tree.tokens] += 1.0
    return TargetOutput(logits)


# ---- zero relaxation takes the exact path ----

NO_RELAXATION: list[Callable[[], LanternVerifier]] = [
    lambda: LanternVerifier(NEIGHBOURS, delta=0),
    lambda: LanternVerifier(NEIGHBOURS, multiplier=1),
    lambda: LanternVerifier(NEIGHBOURS[:, :0], delta=0.5),
]
# Not zero, so the relaxed walk is taken; but too little for any token of positive probability.
HARDLY_ANY: list[Callable[[], LanternVerifier]] = [
    lambda: LanternVerifier(NEIGHBOURS, delta=1e-30),
    lambda: LanternVerifier(NEIGHBOURS, multiplier=1 + 1e-12),
]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 10), st.sampled_from([SAMPLING, FILTERED, None]))
def test_zero_relaxation_has_the_tokens_of_exact_verification(seed, batch_size, num_nodes, sampling):
    tree = random_tree(seed, batch_size, num_nodes, distinct=seed % 2 == 0)
    output = random_logits(seed, tree)
    state = state_for(torch.arange(batch_size) + 1, sampling or SamplingConfig(0, 7, 0.9))
    expected = ExactVerifier().accept(Draft(tree), output, state)
    for make in NO_RELAXATION + HARDLY_ANY:
        assert_same(make().accept(Draft(tree), output, state), expected)
    probabilities = torch.full_like(output.logits, 1 / VOCAB_SIZE)
    expected = ExactVerifier().accept(Draft(tree, probabilities), output, state)
    for make in NO_RELAXATION:
        assert_same(make().accept(Draft(tree, probabilities), output, state), expected)


def test_it_says_whether_it_is_exact():
    assert all(make().exact for make in NO_RELAXATION)
    assert not any(make().exact for make in HARDLY_ANY)
    assert not LanternVerifier(NEIGHBOURS, delta=0, mode="release").exact


PROMPTS = torch.randint(0, VOCAB_SIZE, (40, 2), generator=torch.Generator().manual_seed(4))


def run(sampling: SamplingConfig, verifier: LanternVerifier) -> DecodeResult:
    """32 tokens of 40 rows, drafted by trees of a table that is a little like the target's."""
    drafter = MarkovDrafter(TABLE + random_table(VOCAB_SIZE, 77), PROMPTS, [-1, 0, 0, 1, 1, 2])
    return decoded(MarkovTarget(TABLE, PROMPTS, 31), 32, sampling, drafter=drafter, verifier=verifier)


def test_pictures_do_not_change_at_zero_and_drafts_go_further_above():
    rules = [*({"delta": delta} for delta in (0, 0.1, 0.3, 0.8)), {"multiplier": 3.0}]
    results = [run(SAMPLING, LanternVerifier(NEIGHBOURS, **rule)) for rule in rules]
    assert torch.equal(results[0].tokens, decoded(MarkovTarget(TABLE, PROMPTS, 31), 32, SAMPLING).tokens)
    *lengths, multiplied = [result.trace.mean_accepted_length for result in results]
    assert lengths == sorted(lengths) and lengths[-1] > lengths[0] + 0.2 and multiplied > lengths[0] + 0.05


@pytest.mark.parametrize("temperature", [0.9, 0.0])
@pytest.mark.parametrize("mode", ["exact_at_zero", "release"])
def test_relaxed_tokens_are_those_the_target_would_not_have_drawn(mode, temperature):
    """What plain decoding draws after the same two tokens, with the same number, tells which tokens were relaxed."""
    sampling = replace(SAMPLING, temperature=temperature)
    result = run(sampling, LanternVerifier(NEIGHBOURS, delta=0.3, mode=mode))
    origins = torch.tensor(result.trace.token_origins)
    assert origins.shape == result.tokens.shape
    relaxed = origins == TokenOrigin.RELAXED
    assert result.trace.relaxed_tokens == int(relaxed.sum()) > 20
    assert int((origins == TokenOrigin.UNVERIFIED).sum()) == 0
    assert int((origins == TokenOrigin.ACCEPTED).sum()) > 20
    if mode == "release" and temperature > 0:
        return  # its tests of siblings draw other numbers than plain decoding
    context = torch.cat([PROMPTS, result.tokens], dim=1)
    logits = TABLE[context[:, :-2], context[:, 1:-1]]  # [B, 32, V]
    own = draw_tokens(
        logits, sampling, RandomStreams.from_seeds(range(40)), torch.arange(32).expand(40, -1), Tag.TARGET
    )
    drafted = origins != TokenOrigin.TARGET
    assert torch.equal(relaxed, (own != result.tokens) & drafted)


# ---- the emitted distribution at a node, enumerated ----


@dataclass
class ForcedStreams:
    """Row j draws token j wherever its probability is not 0."""

    vocab_size: int

    def exponential(self, tag: int, counters: Tensor, size: int) -> Tensor:
        assert tag == Tag.TARGET
        return torch.ones(self.vocab_size, size).fill_diagonal_(1e-30)


def emitted_tokens(verifier: LanternVerifier, logits: Tensor, children: list[int], sampling: SamplingConfig) -> Tensor:
    """[V]: what comes out at a node of logits [V] with these children, for every token the target might draw."""
    vocab_size = len(logits)
    tokens = torch.tensor([[0, *children]]).expand(vocab_size, -1)
    parents = torch.tensor([[-1, *[0] * len(children)]]).expand(vocab_size, -1)
    tree = TokenTree.from_parents(tokens, parents, max_depth=1)
    state = state_for(torch.ones(vocab_size, dtype=torch.int64), sampling)
    state.streams = ForcedStreams(vocab_size)  # type: ignore[assignment]
    output = TargetOutput(logits.expand(vocab_size, tokens.shape[1], vocab_size))
    verdict = verifier.accept(Draft(tree), output, state)
    drafted = tokens.gather(1, verdict.path[:, 1:])[:, 0]
    return torch.where(verdict.accepted > 0, drafted, verdict.next_tokens)


def emitted_distribution(
    verifier: LanternVerifier, logits: Tensor, children: list[int], sampling: SamplingConfig
) -> tuple[Tensor, Tensor]:
    """The emitted and the target's distribution at a node, [V] each."""
    target = logits_to_probabilities(logits, sampling)
    emitted = torch.zeros_like(target).scatter_add_(0, emitted_tokens(verifier, logits, children, sampling), target)
    return emitted, target


def slow_takers(
    target: list[float], children: list[int], table: list[list[int]], delta: float | None, multiplier: float | None
) -> dict[int, int]:
    """Which child takes which token, by the words of the module's description."""
    taker: dict[int, int] = {}
    remaining = delta
    for child in children:
        bound = remaining if multiplier is None else (multiplier - 1) * target[child]
        assert bound is not None
        weight = 0.0
        for other in table[child]:
            new_weight = weight + (0.0 if other in children else target[other])
            if new_weight > bound:
                break
            weight = new_weight
            if other not in children:
                taker.setdefault(other, child)
        if remaining is not None:
            remaining -= weight
    return taker


@pytest.mark.parametrize("sampling", [SAMPLING, FILTERED], ids=["all tokens", "filtered"])
@pytest.mark.parametrize("delta", [0.05, 0.2, 0.6, 1.0])
def test_total_variation_stays_within_delta(delta, sampling):
    """At every node of the synthetic target, for likely children and for random ones."""
    verifier, distances, generator = LanternVerifier(NEIGHBOURS, delta=delta), [], torch.Generator().manual_seed(0)
    for logits in TABLE.view(-1, VOCAB_SIZE)[::3]:
        for children in (logits.topk(3).indices, torch.randint(0, VOCAB_SIZE, (4,), generator=generator)):
            distances.append(total_variation(*emitted_distribution(verifier, logits, children.tolist(), sampling)))
    assert max(distances) <= delta + 1e-6
    assert max(distances) > 0.5 * delta if delta < 1 else max(distances) > 0.3


@pytest.mark.parametrize("multiplier", [1.5, 3.0, 20.0])
def test_no_child_becomes_more_than_the_multiplier_times_as_probable(multiplier):
    verifier, largest = LanternVerifier(NEIGHBOURS, multiplier=multiplier), 0.0
    for logits in TABLE.view(-1, VOCAB_SIZE)[::5]:
        emitted, target = emitted_distribution(verifier, logits, logits.topk(5).indices[::2].tolist(), SAMPLING)
        assert bool((emitted <= multiplier * target + 1e-6).all())
        largest = max(largest, float((emitted / target).max()))
    assert largest > 1.2


def test_greedy_gives_a_shared_neighbour_to_the_first_child_that_reaches_it():
    """Tokens 0 and 1 are children, 2 is near both; whoever gets it beats token 3."""
    near = torch.tensor([[2, 3], [2, 3], [0, 1], [0, 1]])
    logits = torch.tensor([0.2, 0.25, 0.25, 0.3]).log()
    for children in ([0, 1], [1, 0], [0, 1, 0]):
        for how in ({"delta": 0.26}, {"multiplier": 2.3}):
            emitted = emitted_tokens(LanternVerifier(near, **how), logits, children, SamplingConfig(0))
            assert emitted.tolist() == [children[0]] * 4


def test_greedy_takes_from_a_neighbour_what_a_child_without_mass_of_its_own_gets():
    """The filter leaves tokens 0 and 1. Token 3 takes all that 0 has, which must not be there twice."""
    near = torch.tensor([[1], [0], [0], [0]])
    logits = torch.tensor([0.6, 0.2, 0.15, 0.05]).log()
    verifier = LanternVerifier(near, delta=0.8)
    assert emitted_tokens(verifier, logits, [3], SamplingConfig(0, 2)).tolist() == [3] * 4


def slow_walk(
    tree: TokenTree, logits: Tensor, delta: float | None, multiplier: float | None, state: DecodeState
) -> list[tuple[list[int], int]]:
    """The whole walk, one row and one node at a time; (path, next token) per row."""
    found, greedy, table = [], state.sampling.is_greedy, NEIGHBOURS.tolist()
    softened = replace(state.sampling, temperature=1.0) if greedy else state.sampling
    for row in range(tree.batch_size):
        parents, tokens, path = tree.parents[row].tolist(), tree.tokens[row].tolist(), [0]
        while True:
            p = logits_to_probabilities(logits[row, path[-1]], softened)
            below = {tokens[node]: node for node in reversed(range(tree.num_nodes)) if parents[node] == path[-1]}
            children = [tokens[node] for node in range(tree.num_nodes) if parents[node] == path[-1]]
            taker = slow_takers(p.tolist(), children, table, delta, multiplier)
            if greedy:
                moved = p.tolist()
                for token, child in taker.items():
                    moved[child], moved[token] = moved[child] + moved[token], 0.0
                y = moved.index(max(moved))
            else:
                counters = (state.lengths[row] + len(path) - 1).expand(tree.batch_size)
                drawn = int((p / state.streams.exponential(Tag.TARGET, counters, VOCAB_SIZE)[row]).argmax())
                y = taker.get(drawn, drawn)
            if y not in below:
                found.append((path, y))
                break
            path.append(below[y])
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 10),
    st.sampled_from([0.1, 0.4, 0.9]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([SAMPLING, FILTERED, SamplingConfig(0), SamplingConfig(0, 7, 0.9)]),
)
def test_walks_like_the_slow_form(seed, num_nodes, relaxation, additive, distinct, sampling):
    """Whole trees, with nodes of many children, few and none, clipped rows and finished ones."""
    tree = random_tree(seed, 12, num_nodes, distinct)
    output, state = random_logits(seed, tree), state_for(torch.arange(12) + 1, sampling)
    how = {"delta": relaxation} if additive else {"multiplier": 1 + 4 * relaxation}
    slow = slow_walk(tree, output.logits, how.get("delta"), how.get("multiplier"), state)
    assert outcomes(LanternVerifier(NEIGHBOURS, **how).accept(Draft(tree), output, state)) == slow


# ---- the released rule ----


def slow_release(
    tree: TokenTree, logits: Tensor, table: list[list[int]], delta: float, state: DecodeState
) -> list[tuple[list[int], int]]:
    """One row at a time, one child at a time, in double precision; (path, next token) per row."""
    found = []
    for row in range(tree.batch_size):
        parents, tokens = tree.parents[row].tolist(), tree.tokens[row].tolist()
        node, path = 0, [0]
        while True:
            counter = state.lengths[row] + len(path) - 1
            counters = counter.expand(tree.batch_size)
            p = logits_to_probabilities(logits[row, node], state.sampling).double().tolist()
            children = [child for child in range(tree.num_nodes) if parents[child] == node]
            descended, seen = False, set()
            for rank, child in enumerate(children):
                x = tokens[child]
                if x in seen:
                    continue
                seen.add(x)
                threshold = float(state.streams.uniform(Tag.ACCEPT, counters, tree.max_children)[row, rank])
                near, farther = table[x][:-1], table[x]
                merged, weight, cumulative = 0, 0.0, 0.0
                for other in near:
                    cumulative += p[other]
                    if cumulative <= delta:
                        merged, weight = merged + 1, cumulative
                if threshold <= p[x] + weight:
                    node, descended = child, True
                    path.append(child)
                    break
                p[x] = 0.0
                for other in farther if merged else []:
                    p[other] = 0.0
                if sum(p) == 0:
                    p = [1.0] * len(p)
                p = [value / sum(p) for value in p]
            if not descended:
                noise = state.streams.exponential(Tag.TARGET, counters, len(p))[row].tolist()
                arrivals = [value / e for value, e in zip(p, noise, strict=True)]
                found.append((path, arrivals.index(max(arrivals))))
                break
    return found


def release_case(
    seed: int, delta: float, sampling: SamplingConfig
) -> tuple[LanternVerifier, TokenTree, TargetOutput, DecodeState]:
    tree = random_tree(seed, 12, 8, distinct=seed % 3 > 0)
    verifier = LanternVerifier(NEIGHBOURS.to(torch.uint8), mode="release", delta=delta)
    return verifier, tree, random_logits(seed, tree), state_for(torch.arange(12) + 1, sampling)


@example(seed=18, delta=0.11, sampling=SAMPLING)  # a child twice, and what lies between is merged with it
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.11, 0.3, 0.77]), st.sampled_from([SAMPLING, FILTERED]))
def test_release_equals_its_slow_form(seed, delta, sampling):
    verifier, tree, output, state = release_case(seed, delta, sampling)
    slow = slow_release(tree, output.logits, NEIGHBOURS.tolist(), delta, state)
    assert outcomes(verifier.accept(Draft(tree), output, state)) == slow


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.11, 0.3, 0.77]))
def test_greedy_release_equals_its_slow_form(seed, delta):
    greedy = SamplingConfig(0, 5)  # the released greedy rule reads unfiltered logits
    verifier, tree, output, state = release_case(seed, delta, greedy)
    table, expected = NEIGHBOURS.tolist(), []
    for row in range(tree.batch_size):
        parents, tokens = tree.parents[row].tolist(), tree.tokens[row].tolist()
        passes = [True]
        for node in range(1, tree.num_nodes):
            p = output.logits[row, parents[node]].double().softmax(0).tolist()
            x, weight, cumulative = tokens[node], 0.0, 0.0
            for other in table[x][:-1]:
                cumulative += p[other]
                weight = cumulative if cumulative <= delta else weight
            p[x] += weight
            passes.append(parents[node] >= 0 and passes[parents[node]] and p.index(max(p)) == x)
        best = [0]
        for node in range(tree.num_nodes):
            path = way_to(parents, node)
            if passes[node] and len(path) > len(best):
                best = path
        expected.append((best, int(output.logits[row, best[-1]].argmax())))
    assert outcomes(verifier.accept(Draft(tree), output, state)) == expected


def release_distance(delta: float, sampling: SamplingConfig, draws: int = 20_000) -> Tensor:
    """Measured total variation of the first emitted token, at one node with two deterministic children."""
    logits = torch.tensor([3.0, 2.0, 2.5, 2.4, -9.0, -9.0])
    near = nearest_neighbours(torch.tensor([[0.0], [0.1], [0.3], [9.0], [0.05], [0.02]]), 4)
    tree = TokenTree.from_parents(torch.tensor([[5, 0, 1]]), torch.tensor([[-1, 0, 0]]), max_depth=1)
    rows = repeated(tree, draws)
    state = state_for(torch.ones(draws, dtype=torch.int64), sampling)
    verdict = LanternVerifier(near, delta=delta, mode="release").accept(
        Draft(rows), TargetOutput(logits.expand(draws, 3, 6)), state
    )
    drafted = rows.tokens.gather(1, verdict.path[:, 1:])[:, 0]
    emitted = torch.where(verdict.accepted > 0, drafted, verdict.next_tokens).bincount(minlength=6) / draws
    return total_variation(emitted, logits_to_probabilities(logits, sampling))


def test_release_is_not_exact_at_zero():
    """With top-k, look-alikes of probability 0 count as merged, and a rejection takes real ones away with them."""
    assert release_distance(0.0, SamplingConfig(top_k=4)) > 0.1
    # Without a filter nothing has probability 0, nothing is merged, and the sequential rule is exact.
    assert release_distance(0.0, SamplingConfig()) < 0.02


def test_release_judges_no_children_that_were_drawn():
    verifier, tree, output, state = release_case(4, 0.3, SAMPLING)
    with pytest.raises(ValueError, match='mode "release" judges children that are a deterministic choice'):
        verifier.accept(Draft(tree, torch.full_like(output.logits, 1 / VOCAB_SIZE)), output, state)


# ---- bad arguments ----


@pytest.mark.parametrize(
    ("neighbours", "arguments", "message"),
    [
        (NEIGHBOURS, {}, "exactly one of delta .* and multiplier .* got neither"),
        (NEIGHBOURS, {"delta": 0.1, "multiplier": 2.0}, "got both"),
        (NEIGHBOURS, {"delta": 1.5}, r"delta must be a finite number in \[0, 1\]"),
        (NEIGHBOURS, {"delta": float("nan")}, "delta must be"),
        (NEIGHBOURS, {"multiplier": 0.5}, "multiplier must be a finite number >= 1"),
        (NEIGHBOURS, {"delta": 0.1, "mode": "fast"}, "mode must be one of"),
        (NEIGHBOURS.float(), {"delta": 0.1}, "neighbours must be int64"),
        (NEIGHBOURS[0], {"delta": 0.1}, r"neighbours must be int64 of shape \[tokens, k\]"),
        (NEIGHBOURS + 8, {"delta": 0.1}, r"neighbours must hold tokens in \[0, 12\)"),
        (torch.zeros(3, 1, dtype=torch.int64), {"delta": 0.1}, "its own neighbour"),
        (NEIGHBOURS[:, :0], {"delta": 0.1, "mode": "release"}, 'mode "release" needs delta, and a column'),
        (NEIGHBOURS, {"multiplier": 2.0, "mode": "release"}, 'mode "release" needs delta'),
    ],
)
def test_bad_arguments(neighbours, arguments, message):
    value_error(message, LanternVerifier, neighbours, **arguments)
