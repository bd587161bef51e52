"""EAGLE drafting over a head that is a table: every guess can be written down, and every misalignment shows."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_chains import state_for, token_paths
from refusals import value_error
from synthetic import GREEDY, FeatureTarget, TableHead, TakingTurns, decoded, random_table, sequence_p_value
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.roles import DecodeState, TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, logits_to_probabilities
from specdecode.trace import DecodeTrace

DRAWN = SamplingConfig()


class CheckedHead(TableHead):
    """It keeps a real sequence of the pairs that joined, and which pairs each forward could see, so that tests can ask
    whether a tree node saw exactly its ancestors."""

    most_new = 0

    def start(self, prompt: TargetOutput) -> Tensor:
        self.sequence: list[list[tuple[int, int]]] = [[] for _ in prompt.logits]
        self.new: list[tuple[Tensor, Tensor]] = []
        return super().start(prompt)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        self.most_new = max(self.most_new, mask.shape[2])
        before = features.argmax(-1)
        if mask.shape[2] == tokens.shape[1]:
            self.new, self.places = [], depths.expand(len(tokens), -1).tolist()
        self.new.append((before, tokens))
        assert mask.shape[2] == sum(pair[1].shape[1] for pair in self.new)
        offset = mask.shape[2] - tokens.shape[1]
        if offset > 0:
            self._check_ancestors(mask.expand(len(tokens), -1, -1), depths.expand(len(tokens), -1), offset)
        return super().forward(tokens, features, mask, depths)

    def _check_ancestors(self, mask: Tensor, depths: Tensor, offset: int) -> None:
        """A node at depth d sees d + 1 new pairs, each of which has the token that the next one's feature names."""
        before, tokens = (torch.cat(parts, 1) for parts in zip(*self.new, strict=True))
        for row in range(min(len(mask), 2)):
            for query in range(mask.shape[1]):
                path = mask[row, query].nonzero()[:, 0]
                assert len(path) == int(depths[row, query]) + 1
                assert int(path[-1]) == query + offset, "a pair must see itself, and none after it"
                assert torch.equal(tokens[row, path[:-1]], before[row, path[1:]])

    def advance(self, counts: Tensor) -> None:
        before, tokens = (torch.cat(parts, 1) for parts in zip(*self.new, strict=True))
        for row, count in enumerate(counts.tolist()):
            assert self.places[row][:count] == list(range(count)), "pairs that join stand one behind the other"
            self.sequence[row] += list(zip(before[row, :count].tolist(), tokens[row, :count].tolist(), strict=True))


def run(
    shape: DynamicTree | StaticTree,
    sizer: Any,
    *,
    children: str = "top",
    batch_size: int = 5,
    length: int = 40,
    vocab_size: int = 30,
    scale: float = 2.5,
    noise: float = 0.8,
    sampling: SamplingConfig = GREEDY,
) -> tuple[Tensor, Tensor, DecodeTrace, CheckedHead]:
    """Plain tokens, tokens with EAGLE, its trace and its head."""
    table = random_table(vocab_size, seed=1, scale=scale)
    prompts = torch.randint(0, vocab_size, (batch_size, 2), generator=torch.Generator().manual_seed(9))
    target = FeatureTarget(table, prompts, length - 1)
    head = CheckedHead(table + random_table(vocab_size, seed=2, scale=noise))
    drafter = EagleDrafter(head, shape, sizer, children)  # type: ignore[arg-type]
    plain, fast = (decoded(target, length, sampling, drafter=each) for each in (None, drafter))
    return plain.tokens, fast.tokens, fast.trace, head


SHAPES: list[tuple[DynamicTree | StaticTree, DraftSize]] = [
    (DynamicTree(4), DraftSize(12, 3)),
    (DynamicTree(10), DraftSize(60, 5)),
    (DynamicTree(3), DraftSize(2, 1)),
    (StaticTree.published("naive_extend_57"), DraftSize(58, 5)),
    (StaticTree.published("mc_sim_7b_63_balanced"), DraftSize(12, 2)),
    (StaticTree.chain(4), DraftSize(5, 4)),
]


@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingConfig(), SamplingConfig(0.8, 10, 0.9), SamplingConfig(3.0), SamplingConfig(0.1)],
    ids=str,
)
def test_likeliest_and_coupled_children_change_no_token(shape, size, sampling):
    accepted = []
    for children in ("top", "coupled"):
        plain, fast, trace, head = run(shape, FixedDraftSize(size), children=children, sampling=sampling)
        assert torch.equal(plain, fast)
        accepted.append(trace.mean_accepted_length)
        assert head.most_new <= EagleDrafter.most_new_pairs(shape, size)
    assert accepted[0] > 0.2 or not sampling.is_greedy
    assert accepted[0] <= accepted[1] + 0.1, "a race knows the target's numbers"


@pytest.mark.parametrize(
    "shape", [DynamicTree(4), StaticTree.chain(3), StaticTree.from_child_counts("2 / 2 2 / 1 1 1 1")]
)
def test_children_of_a_head_that_knows_the_target_are_its_very_draws(shape):
    """A head that says what the target says has its first child accepted at every level."""
    size = DraftSize(shape.num_nodes if isinstance(shape, StaticTree) else 13, 3)
    plain, fast, trace, _ = run(shape, FixedDraftSize(size), children="coupled", noise=0.0, sampling=DRAWN)
    assert torch.equal(plain, fast) and all(lengths[:9] == [3] * 9 for lengths in trace.accepted_lengths)


@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=lambda value: type(value).__name__)
def test_a_head_that_knows_the_target_is_always_right(shape, size):
    """One misplaced feature or token, and some draft would fail."""
    plain, fast, trace, _ = run(shape, FixedDraftSize(size), scale=15.0, noise=0.0, batch_size=3)
    assert torch.equal(plain, fast)
    best = min(size.depth, shape.max_depth if isinstance(shape, StaticTree) else size.total_tokens - 1)
    full_steps = (40 - 1) // (best + 1)
    for lengths in trace.accepted_lengths:
        assert lengths[:full_steps] == [best] * full_steps


def test_the_head_has_read_every_token_once_with_the_feature_before_it():
    _, fast, _, head = run(DynamicTree(4), FixedDraftSize(DraftSize(12, 3)))
    prompts = torch.randint(0, 30, (5, 2), generator=torch.Generator().manual_seed(9))
    for row, pairs in enumerate(head.sequence):
        tokens = fast[row].tolist()
        before = [int(prompts[row, 1]), *tokens]
        assert pairs == list(zip(before, tokens, strict=False))[: len(pairs)]
        assert len(pairs) >= len(tokens) - 4


@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig()], ids=str)
def test_steps_without_a_draft_lose_nothing(sampling):
    sizer = TakingTurns(*[DraftSize(1, 0)] * 20, DraftSize(12, 3), DraftSize(1, 0), DraftSize(6, 2))
    plain, fast, trace, head = run(DynamicTree(4), sizer, sampling=sampling, length=80)
    assert torch.equal(plain, fast)
    assert trace.drafted > 0
    assert head.most_new <= EagleDrafter.most_new_pairs(DynamicTree(4), sizer.largest)
    for row, pairs in enumerate(head.sequence):
        assert [token for _, token in pairs] == fast[row, : len(pairs)].tolist()


def begun(
    head: TableHead,
    shape: DynamicTree | StaticTree,
    sizer: Any,
    children: Any,
    prompts: Tensor,
    first: Tensor,
    sampling: SamplingConfig = DRAWN,
) -> tuple[EagleDrafter, DecodeState]:
    """A drafter behind prompts [B, 2] and the first tokens [B], and their state."""
    drafter = EagleDrafter(head, shape, sizer, children)
    state = state_for(torch.ones(len(first), dtype=torch.int64), sampling, first[:, None], most=40)
    logits = head.table[prompts[:, 0], prompts[:, 1]][:, None]
    drafter.start(TargetOutput(logits, F.one_hot(prompts, head.vocab_size).float()), state)
    return drafter, state


def slow_dynamic_tree(
    table: Tensor, before: int, root: int, top_k: int, depth: int, total_tokens: int, noise: Tensor | None = None
) -> dict[tuple[int, ...], float]:
    """EAGLE-2 in words: expand the best k of each level, keep the best of all; paths of tokens and their scores. With
    the noise [depth, V] of races, what is best is what arrives first by them, twice as sharp."""

    def children(above: int, token: int, level: int) -> list[tuple[int, float]]:
        logits = table[above, token] if noise is None else 2 * (table[above, token] - noise[level].log())
        values, tokens = logits.log_softmax(-1).topk(top_k)
        return list(zip(tokens.tolist(), values.tolist(), strict=True))

    nodes: dict[tuple[int, ...], float] = {(token,): score for token, score in children(before, root, 0)}
    frontier = dict(nodes)
    for level in range(1, depth):
        grown = {}
        for path, score in frontier.items():
            above = path[-2] if len(path) > 1 else root
            for token, more in children(above, path[-1], level):
                grown[(*path, token)] = score + more
        nodes |= grown
        frontier = dict(sorted(grown.items(), key=lambda item: -item[1])[:top_k])
    return dict(sorted(nodes.items(), key=lambda item: -item[1])[: total_tokens - 1])


@pytest.mark.parametrize("children", ["top", "coupled"])
@pytest.mark.parametrize(("top_k", "depth", "total_tokens"), [(4, 3, 12), (2, 4, 9), (10, 5, 60), (3, 1, 10)])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_dynamic_trees_are_those_of_the_slow_algorithm(top_k, depth, total_tokens, children, temperature):
    table = random_table(25, seed=4, scale=2.0)
    prompts = torch.tensor([[1, 2], [7, 0], [3, 3]])
    first, size = torch.tensor([5, 11, 24]), FixedDraftSize(DraftSize(total_tokens, depth))
    sampling = SamplingConfig(temperature)
    drafter, state = begun(CheckedHead(table), DynamicTree(top_k), size, children, prompts, first, sampling)
    tree = drafter.propose(state).tree
    tree.check()
    for row in range(3):
        places = torch.arange(1, depth + 1).expand(3, -1)  # one token is decoded
        noise = state.streams.exponential(Tag.TARGET, places, 25)[row] if children == "coupled" else None
        said, root = table / temperature, int(first[row])
        wanted = slow_dynamic_tree(said, int(prompts[row, 1]), root, top_k, depth, total_tokens, noise)
        assert set(token_paths(tree, row)) == set(wanted)


def test_as_many_coupled_nodes_as_levels_are_the_first_of_each_race():
    table, prompts, first = random_table(25, seed=4, scale=2.0), torch.tensor([[1, 2]]), torch.tensor([5])
    sizer = TakingTurns(DraftSize(12, 3), DraftSize(4, 3))
    drafter, state = begun(CheckedHead(table), DynamicTree(4), sizer, "coupled", prompts, first)
    tree = drafter.propose(state).tree
    noise = state.streams.exponential(Tag.TARGET, torch.arange(1, 4)[None], 25)[0]
    assert tree.is_chain and set(token_paths(tree, 0)) == set(slow_dynamic_tree(table, 2, 5, 1, 3, 4, noise))


VOCAB_SIZE, LENGTH, DRAWS = 5, 4, 30_000


EAGLE_TABLE, PROMPT = random_table(VOCAB_SIZE, seed=5, scale=1.2), torch.tensor([1, 3])


def sampled_tokens(shape: StaticTree, sampling: SamplingConfig, sure: float = 1.0) -> Tensor:
    """Many rows of one prompt, decoded with sampled children of a head that is so many times as sure."""
    head = TableHead(sure * (0.5 * EAGLE_TABLE + random_table(VOCAB_SIZE, seed=6, scale=0.8)))
    size = FixedDraftSize(DraftSize(shape.num_nodes, shape.max_depth))
    target = FeatureTarget(EAGLE_TABLE, PROMPT.expand(DRAWS, 2), LENGTH - 1)
    return decoded(target, LENGTH, sampling, drafter=EagleDrafter(head, shape, size, "sampled")).tokens


TREE = StaticTree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(0.9), SamplingConfig(1.3, 4, 0.8), SamplingConfig(1.0, 2)], ids=str
)
@pytest.mark.parametrize("shape", [StaticTree.chain(3), TREE], ids=["chain", "tree"])
def test_sampled_children_leave_the_distribution_exact(shape, sampling):
    """With top_k=2 the third sibling is no draw at all, which the verifier must be told."""
    assert sequence_p_value(sampled_tokens(shape, sampling), EAGLE_TABLE, PROMPT, sampling) > 1e-3


@pytest.mark.parametrize(
    ("sure", "temperature"), [(20.0, 0.9), (50.0, 0.9), (80.0, 1.0), (100.0, 3.0), (4.0, 0.05), (10.0, 0.1)]
)
def test_sampled_children_of_a_very_sure_head_leave_it_exact(sure, temperature):
    """What earlier siblings leave may be 1e-40, and later ones claim all of it, or be nothing that float32 can tell."""
    sampling = SamplingConfig(temperature)
    assert sequence_p_value(sampled_tokens(TREE, sampling, sure), EAGLE_TABLE, PROMPT, sampling) > 1e-3


@pytest.mark.parametrize("kernels", ["torch_lines", "own_kernels"])
def test_drawn_children_say_what_they_were_drawn_from(kernels, request):
    """Earlier siblings zeroed and the rest renormalised; a third of two that filters left is a guess, and says so."""
    request.getfixturevalue(kernels)
    sampling, prompts, first = SamplingConfig(1.0, 2), torch.tensor([[1, 2], [0, 4], [3, 3]]), torch.tensor([3, 1, 4])
    size = FixedDraftSize(DraftSize(TREE.num_nodes, TREE.max_depth))
    drafter, state = begun(CheckedHead(EAGLE_TABLE), TREE, size, "sampled", prompts, first, sampling)
    draft = drafter.propose(state)
    assert draft.probabilities is not None
    tokens, parents = draft.tree.tokens.tolist(), draft.tree.parents.tolist()
    for row in range(3):
        for node in range(1, draft.tree.num_nodes):
            parent = parents[row][node]
            above = int(prompts[row, 1]) if parent == 0 else tokens[row][parents[row][parent]]
            left = logits_to_probabilities(EAGLE_TABLE[above, tokens[row][parent]], sampling)
            for other in range(1, node):
                left[tokens[row][other]] *= parents[row][other] != parent
            wanted = left / left.sum() if left.sum() > 0 else F.one_hot(torch.tensor(tokens[row][node]), VOCAB_SIZE)
            torch.testing.assert_close(draft.probabilities[row, node], wanted.float())
            assert wanted[tokens[row][node]] > 0


def test_what_cannot_be_drafted_is_refused():
    head = TableHead(random_table(6, seed=0))
    size = FixedDraftSize(DraftSize(8, 2))
    value_error("wider than the vocabulary of 6", EagleDrafter, head, DynamicTree(7), size)
    value_error("wider than the vocabulary", EagleDrafter, head, StaticTree.published("medusa_2_7b_63"), size)
    value_error("children", EagleDrafter, head, DynamicTree(3), size, "sampled")
    value_error("children", EagleDrafter, head, StaticTree.chain(2), size, "drawn")
    value_error("top_k", DynamicTree, 0)


@pytest.mark.parametrize(
    ("root", "size", "children"), [(2, DraftSize(5, 4), "coupled"), (1, DraftSize(3, 2), "top")], ids=str
)
def test_ties_do_not_tear_a_tree(root, size, children):
    """Certain guesses give children the score of their parents; the parents must still be kept first."""
    table = torch.full((6, 6, 6), -math.inf)
    table[..., 2] = 0.0
    table[..., 3] = 0.0
    table[2, 2] = table[1] = torch.tensor([-math.inf, -math.inf, 0.0, -math.inf, -math.inf, -math.inf])
    prompts, head = torch.tensor([[2, 2]]), CheckedHead(table.clamp(min=-1e4))
    drafter, state = begun(head, DynamicTree(2), FixedDraftSize(size), children, prompts, torch.tensor([root]))
    drafter.propose(state).tree.check()


def test_no_number_of_a_draft_is_drawn_twice(monkeypatch):
    """Steps advance by one place at least, and a draft reaches further: its nodes must not share numbers with them."""
    drawn: list[list[int]] = []
    exponential = RandomStreams.exponential

    def watched(self: RandomStreams, tag: Tag, counters: Tensor, *size_and_more: Any) -> Tensor:
        if tag is Tag.DRAFT:
            drawn.append(counters[0].tolist())
        return exponential(self, tag, counters, *size_and_more)

    monkeypatch.setattr(RandomStreams, "exponential", watched)
    shape = StaticTree.from_child_counts("2 / 1 1")
    sizer = FixedDraftSize(DraftSize(5, 2))
    run(shape, sizer, children="sampled", batch_size=1, noise=3.0, sampling=SamplingConfig(temperature=1.0))
    every = [each for step in drawn for each in step]
    assert len(drawn) > 10 and len(set(every)) == len(every)


def test_a_head_has_room_for_what_waits_and_what_is_drafted():
    shape, size = StaticTree.chain(9), DraftSize(10, 9)
    room = EagleDrafter.most_new_pairs(shape, size)
    assert room == (2 * 9 + 1) + 8, "a skipped and an accepted draft, and the nodes of the next that are expanded"
    assert EagleDrafter.most_new_pairs(shape, size, beside=17) == (16 + 17) + 8
