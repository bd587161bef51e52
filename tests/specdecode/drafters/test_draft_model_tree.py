"""Trees drafted by a smaller model: exact, the tree that the model means, and in step with what is accepted."""

from typing import Any

import pytest
import torch
from random_chains import check_in_step
from synthetic import GREEDY, MarkovTarget, chain_of, decoded, random_table
from torch import Tensor

from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.sampling import SamplingConfig, Tag

VOCAB, LENGTH, ROWS = 30, 60, 5
TABLE = random_table(VOCAB, seed=7, scale=2.0)
DRAFT_TABLE = TABLE + random_table(VOCAB, seed=8, scale=1.0)
PROMPTS = torch.randint(0, VOCAB, (ROWS, 2), generator=torch.Generator().manual_seed(1))
DRAWN = SamplingConfig()
SHAPES = {
    "published": StaticTree.published("mc_sim_7b_63"),
    "bushy": StaticTree.from_paths([[0], [1], [2], [0, 0], [1, 0], [1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    "flat": StaticTree.from_paths([[0], [1], [2]]),
    "chain": StaticTree.chain(4),
}


class Counting(MarkovTarget):
    """A model that counts, and that refuses places past the end of a row."""

    def __init__(self, table: Tensor, prompts: Tensor, length: int) -> None:
        super().__init__(table, prompts, length + 8)
        self.length, self.forwards, self.widest = length, 0, 0

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        self.forwards += 1
        self.widest = max(self.widest, tokens.shape[1])
        assert bool((self.lengths[:, None] + depths < self.length).all()), "a token past a row's last place"
        return super().forward(tokens, mask, depths)


class Checked(DraftModelTreeDrafter):
    """Compares every tree with the model's table, and the model's sequence with what was decoded."""

    wrong = 0

    def propose(self, state: DecodeState) -> Draft:
        draft = super().propose(state)
        model: Any = self.model
        history = torch.cat([model.prompts, state.tokens], 1)
        for row in range(len(state.lengths)):
            if state.active[row]:
                room = state.max_new_tokens - 1 - int(state.lengths[row])
                noise = torch.ones(9, VOCAB)
                if not state.sampling.is_greedy:
                    places = state.lengths[:, None] + torch.arange(9)
                    noise = state.streams.exponential(Tag.TARGET, places, VOCAB)[row]
                before = int(history[row, int(state.lengths[row])])
                self.wrong += wrong_nodes(draft, model.table - noise.log()[:, None, None], before, row, room)
        return draft

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        super().observe(draft, output, verdict, state)
        assert set(self._counts[state.active].tolist()) <= {1, 2}
        check_in_step(self.model, self._counts, state)


def wrong_nodes(draft: Draft, races: Tensor, before_root: int, row: int, room: int) -> int:
    """How many nodes are not the children that races [level, V, V, V] give their parent, in order; node by node."""
    tokens, parents = draft.tree.tokens[row].tolist(), draft.tree.parents[row].tolist()
    wrong = 0
    for node in range(1, len(tokens)):
        if int(draft.tree.depth[row, node]) > room:
            continue  # the loop clips it
        parent = parents[node]
        above = tokens[parents[parent]] if parent > 0 else before_root
        rank = sum(parents[other] == parent for other in range(1, node))
        race = races[int(draft.tree.depth[row, node]) - 1, above, tokens[parent]]
        wrong += tokens[node] != int(race.argsort(descending=True)[rank])
    return wrong


def run(
    drafter: Drafter | None, sampling: SamplingConfig = GREEDY, prompts: Tensor = PROMPTS, length: int = LENGTH
) -> DecodeResult:
    return decoded(MarkovTarget(TABLE, prompts, length + 40), length, sampling, drafter=drafter)


def over(shape: StaticTree, table: Tensor = DRAFT_TABLE, prompts: Tensor = PROMPTS, length: int = LENGTH) -> Checked:
    return Checked(Counting(table, prompts, length), shape)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_token_changes(shape, sampling):
    drafter = over(shape)
    fast = run(drafter, sampling)
    assert torch.equal(fast.tokens, run(None, sampling).tokens)
    assert drafter.wrong == 0
    alone = run(over(shape, prompts=PROMPTS[:1]), sampling, PROMPTS[:1])
    assert torch.equal(alone.tokens[0], fast.tokens[0])


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7])
def test_rows_end_where_they_should(length):
    drafter = over(SHAPES["published"], length=length)
    assert torch.equal(run(drafter, length=length).tokens, run(None, length=length).tokens)


def test_a_model_that_is_right_has_its_likeliest_path_accepted_by_one_forward_a_level():
    """Of the nodes with children."""
    drafter = over(SHAPES["published"], table=TABLE)
    result = run(drafter)
    assert result.trace.target_passes == 1 + -(-(LENGTH - 1) // 6)  # five levels and the bonus
    assert drafter.wrong == 0
    model: Any = drafter.model
    assert model.forwards == (result.trace.target_passes - 1) * 5
    assert model.widest == 10


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_tree_needs_no_more_passes_than_its_own_chain(sampling):
    """Wherever a row stands, the tree holds the chain, and reaching further never reaches less far later."""
    for row in range(ROWS):
        prompts = PROMPTS[row : row + 1]
        tree = run(over(SHAPES["published"], prompts=prompts), sampling, prompts)
        chain = run(DraftModelDrafter(Counting(DRAFT_TABLE, prompts, LENGTH), chain_of(5)), sampling, prompts)
        assert tree.trace.target_passes <= chain.trace.target_passes
    assert tree.trace.target_passes < chain.trace.target_passes


def test_what_cannot_be_used_is_named():
    with pytest.raises(ValueError, match="tree must not be wider than the vocabulary of 3 tokens, got 4"):
        DraftModelTreeDrafter(MarkovTarget(random_table(3, seed=0), PROMPTS % 3, 4), SHAPES["published"])
    with pytest.raises(ValueError, match="draft_model must have the target's vocabulary of 30 tokens, it has 6"):
        run(over(SHAPES["bushy"], table=random_table(6, seed=0), prompts=PROMPTS % 6))
