"""LANTERN on drawn children: what moves, that this is what is emitted, and how much more is accepted for it."""

import itertools

import pytest
import synthetic
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_chains import clipped_tree, outcomes, random_parents, state_for
from synthetic import MarkovDrafter, MarkovTarget, decoded, goodness_of_fit, random_table, total_variation
from torch import Tensor

from specdecode.roles import DecodeState, Draft, TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, logits_to_probabilities
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.lantern import LanternVerifier
from specdecode.verifiers.lantern_drawn import NeighbourSums, relaxed_target
from specdecode.verifiers.neighbours import nearest_neighbours

VOCAB = 12
NEIGHBOURS = nearest_neighbours(torch.randn(VOCAB, 2, generator=torch.Generator().manual_seed(8)), 5)
SUMS = NeighbourSums(NEIGHBOURS)
TABLE = random_table(VOCAB, seed=3, scale=1.2)
SAMPLING, FILTERED = SamplingConfig(0.9), SamplingConfig(1.2, 7, 0.9)


def distributions(seed: int, rows: int = 4, zeros: bool = False) -> tuple[Tensor, Tensor]:
    """p and q, alike to some degree; with zeros, filters have cut some tokens off."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(rows, VOCAB, generator=generator)
    others = logits + torch.randn(rows, VOCAB, generator=generator)
    sampling = SamplingConfig(top_k=6 if zeros else 0)
    return logits_to_probabilities(logits, sampling), logits_to_probabilities(others, sampling)


# ---- what moves ----


def slow_relaxed(p: list[float], q: list[float], delta: float | None, multiplier: float | None) -> list[float]:
    """The module's words, token by token."""
    near, relaxed, left = NEIGHBOURS.tolist(), list(p), float("inf") if delta is None else delta
    wanted = q if multiplier is None else [min(b, multiplier * a) for a, b in zip(p, q, strict=True)]
    for width in (1, 5):
        spare = [max(a - b, 0.0) for a, b in zip(relaxed, q, strict=True)]
        lacking = [max(b - a, 0.0) for a, b in zip(relaxed, wanted, strict=True)]
        asks: dict[tuple[int, int], float] = {}
        for x in range(VOCAB):
            offered = sum(spare[y] for y in near[x][:width])
            for y in near[x][:width] if offered > 0 else []:
                asks[x, y] = lacking[x] * spare[y] / offered
        for y in range(VOCAB):
            asked = sum(amount for (_, giver), amount in asks.items() if giver == y)
            for pair in [pair for pair in asks if pair[1] == y and asked > spare[y]]:
                asks[pair] *= spare[y] / asked
        total = sum(asks.values())
        share = min(1.0, left / total) if total else 1.0
        for (x, y), amount in asks.items():
            relaxed[x] += share * amount
            relaxed[y] -= share * amount
        left -= share * total
    return relaxed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 1.0), st.booleans(), st.booleans())
def test_moves_what_the_slow_form_moves(seed, relaxation, additive, zeros):
    p, q = distributions(seed, zeros=zeros)
    how = {"delta": relaxation} if additive else {"multiplier": 1 + 4 * relaxation}
    relaxed = relaxed_target(p, q, SUMS, **how)
    for row in range(len(p)):
        slow = slow_relaxed(p[row].tolist(), q[row].tolist(), how.get("delta"), how.get("multiplier"))
        assert relaxed[row].tolist() == pytest.approx(slow, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_it_lies_between_p_and_q_and_moves_as_much_as_delta_says(seed, zeros):
    p, q = distributions(seed, zeros=zeros)
    most = total_variation(relaxed_target(p, q, SUMS, delta=1.0), p)
    before = total_variation(p, q)
    for delta in (0.0, 1e-9, 0.01, 0.1, 0.3, 1.0):
        relaxed = relaxed_target(p, q, SUMS, delta=delta)
        assert relaxed.sum(-1).tolist() == pytest.approx([1.0] * len(p), abs=1e-5)
        low, high = torch.minimum(p, q), torch.maximum(p, q)
        assert bool(((relaxed >= low - 1e-6) & (relaxed <= high + 1e-6)).all())
        moved = total_variation(relaxed, p)
        assert moved.tolist() == pytest.approx(most.clamp(max=delta).tolist(), abs=1e-5)
        # What the first child's test accepts, one minus the distance to q, gains just that.
        assert total_variation(relaxed, q).tolist() == pytest.approx((before - moved).tolist(), abs=1e-5)
    assert torch.equal(relaxed_target(p, q, SUMS, delta=0.0), p)
    assert torch.equal(relaxed_target(p, q, SUMS, multiplier=1.0), p)
    for multiplier in (1.3, 4.0):
        assert bool((relaxed_target(p, q, SUMS, multiplier=multiplier) <= multiplier * p + 1e-6).all())


def test_only_look_alikes_give():
    """Tokens 0 and 1 are alike, 2 and 3 are alike; 0 lacks .3, and what 2 has to spare is none of its business."""
    pairs = NeighbourSums(torch.tensor([[1], [0], [3], [2]]))
    p, q = torch.tensor([[0.1, 0.3, 0.5, 0.1]]), torch.tensor([[0.4, 0.2, 0.3, 0.1]])
    assert relaxed_target(p, q, pairs, delta=1.0).tolist()[0] == pytest.approx([0.2, 0.2, 0.5, 0.1])


def test_the_nearest_give_first():
    """Token 0 lacks .4; its nearest neighbour can spare .3, two others .05 each."""
    table = torch.tensor([[1, 2, 3, 4], [0, 2, 3, 4], [3, 4, 5, 0], [2, 4, 5, 0], [2, 3, 5, 0], [2, 3, 4, 0]])
    p, q = torch.tensor([[0.0, 0.4, 0.2, 0.2, 0.1, 0.1]]), torch.tensor([[0.4, 0.1, 0.15, 0.15, 0.1, 0.1]])
    nearest_only = relaxed_target(p, q, NeighbourSums(table), delta=0.3)
    assert nearest_only.tolist()[0] == pytest.approx([0.3, 0.1, 0.2, 0.2, 0.1, 0.1])
    assert relaxed_target(p, q, NeighbourSums(table), delta=0.4).tolist()[0] == pytest.approx(q[0].tolist())


def test_sums_over_neighbours_and_over_admirers():
    values = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    assert SUMS.widths == (1, 5) and NeighbourSums(NEIGHBOURS[:, :4]).widths == (1, 4)
    for width in SUMS.widths:
        near = torch.zeros(VOCAB, VOCAB).scatter_(1, NEIGHBOURS[:, :width], 1.0)
        assert torch.allclose(SUMS.over_neighbours(values, width), values @ near.T, atol=1e-6)
        assert torch.allclose(SUMS.over_admirers(values, width), values @ near, atol=1e-6)


# ---- what is emitted ----

SHAPES = {"chain": [-1, 0], "siblings": [-1, 0, 0, 0]}
DRAWS = 50_000


def one_node(
    shape: str, how: dict[str, float], p: Tensor, q: Tensor, children: str = "without replacement"
) -> tuple[Tensor, Tensor]:
    """The first token emitted in many rows with the target p and children drawn from q, and whether it was drafted."""
    parents, draws = SHAPES[shape], DRAWS
    generator = torch.Generator().manual_seed(5)
    tokens, drawn_from, given = [torch.zeros(draws, dtype=torch.int64)], [q.expand(draws, -1)], q.expand(draws, -1)
    for _ in parents[1:]:
        tokens.append(torch.multinomial(given, 1, generator=generator)[:, 0])
        drawn_from.append(given)
        if children == "without replacement":
            given = given.scatter(1, tokens[-1][:, None], 0.0)
            given = given / given.sum(1, keepdim=True)
    shape_of_rows = torch.tensor(parents).expand(draws, -1)
    tree = TokenTree.from_parents(torch.stack(tokens, 1), shape_of_rows, max_depth=1, max_children=len(parents) - 1)
    state = state_for(torch.ones(draws, dtype=torch.int64), SamplingConfig())
    output = TargetOutput(p.log().expand(draws, len(parents), -1))
    verdict = LanternVerifier(NEIGHBOURS, **how).accept(Draft(tree, torch.stack(drawn_from, 1)), output, state)
    drafted = tree.tokens.gather(1, verdict.path[:, 1:])[:, 0]
    return torch.where(verdict.accepted > 0, drafted, verdict.next_tokens), verdict.accepted > 0


P, Q = (each[0] for each in distributions(21, 1))
CASES: list[tuple[str, str]] = [("chain", "sampled"), ("siblings", "sampled"), ("siblings", "without replacement")]


@pytest.mark.parametrize(("shape", "children"), CASES)
@pytest.mark.parametrize("how", [{"delta": 0.0}, {"delta": 0.15}, {"delta": 1.0}, {"multiplier": 1.5}], ids=str)
def test_the_relaxed_target_is_what_is_emitted(shape, children, how):
    tokens, drafted = one_node(shape, how, P, Q, children)
    relaxed = relaxed_target(P[None], Q[None], SUMS, **how)[0]
    assert goodness_of_fit(tokens, relaxed) > 1e-3
    if shape == "chain":
        rate = float(torch.minimum(relaxed, Q).sum())
        assert float(drafted.double().mean()) == pytest.approx(rate, abs=0.008)
    if how.get("delta", 1.0) > 0:
        assert goodness_of_fit(tokens, P) < 1e-6, "the relaxed target is another one here"
    # Measured total variations are too large by what chance adds, here at most .006.
    assert float(total_variation(tokens.bincount(minlength=VOCAB) / DRAWS, P)) <= how.get("delta", 1.0) + 0.01


# ---- whole walks ----


def random_draft(seed: int, batch_size: int = 12) -> tuple[Draft, TargetOutput, DecodeState]:
    """Trees of random shape whose children were drawn without replacement; clipped somewhere, some rows finished."""
    generator = torch.Generator().manual_seed(seed)
    num_nodes = 1 + seed % 8
    parents = random_parents(generator, batch_size, num_nodes)
    logits = 2 * torch.randn(batch_size, num_nodes, VOCAB, generator=generator)
    said = (logits + torch.randn(logits.shape, generator=generator)).softmax(-1)
    tokens = torch.zeros(batch_size, num_nodes, dtype=torch.int64)
    drawn_from = said.roll(1, dims=0)  # the root's row is not to be read, so it holds something
    for row, node in itertools.product(range(batch_size), range(1, num_nodes)):
        above = parents[row][node]
        given = said[row, above].clone()
        given[[int(tokens[row, other]) for other in range(1, node) if parents[row][other] == above]] = 0
        drawn_from[row, node] = given / given.sum()
        tokens[row, node] = torch.multinomial(drawn_from[row, node], 1, generator=generator)
    state = state_for(torch.arange(batch_size) + 1, (SAMPLING, FILTERED)[seed % 2])
    return Draft(clipped_tree(generator, tokens, parents), drawn_from), TargetOutput(logits), state


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_zero_relaxation_decides_like_the_exact_rule_and_next_to_none_almost_always(seed):
    draft, output, state = random_draft(seed)
    exact = outcomes(ExactVerifier().accept(draft, output, state))
    for how in ({"delta": 0.0}, {"multiplier": 1.0}, {"delta": 1e-30}, {"multiplier": 1 + 1e-12}):
        assert outcomes(LanternVerifier(NEIGHBOURS, **how).accept(draft, output, state)) == exact, how


def slow_walk(draft: Draft, output: TargetOutput, state: DecodeState, how: dict[str, float]) -> list:
    """One row and one child at a time: (path, next token, relaxed flags)."""
    tree, found = draft.tree, []
    for row in range(tree.batch_size):
        parents, tokens = tree.parents[row].tolist(), tree.tokens[row].tolist()
        path, lent = [0], []
        while True:
            own = logits_to_probabilities(output.logits[row, path[-1]], state.sampling)
            children = [node for node in range(tree.num_nodes) if parents[node] == path[-1]]
            p = own
            if children:
                assert draft.probabilities is not None
                p = relaxed_target(own[None], draft.probabilities[row, children[0]][None], SUMS, **how)[0]
            counters = (state.lengths[row] + len(path) - 1).expand(tree.batch_size)
            numbers = state.streams.uniform(Tag.ACCEPT, counters, tree.max_children)[row]
            chosen = None
            for number, child in zip(numbers, children, strict=False):
                q, x = draft.probabilities[row, child], tokens[child]  # type: ignore[index]
                by_itself = bool(number * q[x] < own[x])
                if bool(number * q[x] < p[x]) or (by_itself and child == children[0]):
                    chosen = child
                    lent.append(not by_itself)
                    break
                p, own = ((each - q).clamp(min=0) / (each - q).clamp(min=0).sum() for each in (p, own))
            if chosen is None:
                noise = state.streams.exponential(Tag.TARGET, counters, VOCAB)[row]
                found.append((path, int((p / noise).argmax()), lent))
                break
            path.append(chosen)
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([{"delta": 0.1}, {"delta": 0.6}, {"multiplier": 2.0}]))
def test_walks_like_the_slow_form(seed, how):
    draft, output, state = random_draft(seed)
    verdict = LanternVerifier(NEIGHBOURS, **how).accept(draft, output, state)
    slow = slow_walk(draft, output, state, how)
    assert outcomes(verdict) == [(path, token) for path, token, _ in slow]
    for row, (_, _, lent) in enumerate(slow):
        flags = [] if verdict.relaxed is None else verdict.relaxed[row, : len(lent)].tolist()
        assert flags == lent


def test_a_row_does_not_depend_on_the_others():
    draft, output, state = random_draft(7)
    verifier = LanternVerifier(NEIGHBOURS, delta=0.2)
    together = outcomes(verifier.accept(draft, output, state))
    for row in range(12):
        alone = DecodeState(
            state.tokens[row : row + 1], state.lengths[row : row + 1], state.active[row : row + 1], 99,
            state.sampling, RandomStreams.from_seeds([row]),
        )  # fmt: skip
        tree = draft.tree
        parts = (getattr(tree, name)[row : row + 1] for name in ("tokens", "parents", "depth", "valid"))
        assert draft.probabilities is not None
        one = Draft(TokenTree(*parts, tree.max_depth, tree.max_children), draft.probabilities[row : row + 1])
        assert outcomes(verifier.accept(one, TargetOutput(output.logits[row : row + 1]), alone)) == [together[row]]


# ---- whole sequences ----


@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, 0, 0, 1]], ids=["chain", "tree"])
def test_zero_delta_keeps_the_distribution_of_sequences(parents):
    small, draws = random_table(5, seed=5, scale=1.2), 20_000
    near, prompt = nearest_neighbours(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), 3), (1, 3)

    def run(how: dict[str, float]) -> float:
        prompts = torch.tensor(prompt).expand(draws, 2)
        drafter = MarkovDrafter(small + random_table(5, 6), prompts, parents, "without replacement")
        target, verifier = MarkovTarget(small, prompts, 3), LanternVerifier(near, **how)
        tokens = decoded(target, 4, SAMPLING, drafter=drafter, verifier=verifier).tokens
        return synthetic.sequence_p_value(tokens, small, torch.tensor(prompt), SAMPLING)

    assert run({"delta": 0.0}) > 1e-3 and run({"delta": 1e-30}) > 1e-3
    assert run({"delta": 0.2}) < 1e-6


def test_there_is_no_cliff_behind_zero():
    """The rule for any children lost half of a good drafter's tokens as soon as delta was not 0."""
    prompts = torch.randint(0, VOCAB, (80, 2), generator=torch.Generator().manual_seed(4))
    drafter = MarkovDrafter(TABLE + random_table(VOCAB, 77, scale=0.7), prompts, [-1, 0, 1, 2], "sampled")
    target, lengths = MarkovTarget(TABLE, prompts, 63), []
    for delta in (0.0, 0.01, 0.1, 0.3):
        verifier = LanternVerifier(NEIGHBOURS, delta=delta)
        lengths.append(decoded(target, 64, SAMPLING, drafter=drafter, verifier=verifier).trace.mean_accepted_length)
    assert lengths[1] > 0.97 * lengths[0]
    assert lengths[2] > lengths[0] + 0.1 and lengths[3] > lengths[2] + 0.1
