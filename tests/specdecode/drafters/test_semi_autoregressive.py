"""Semi-autoregressive drafts over a head whose guesses are a table: every draft can be written down."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_chains import state_for, token_paths
from synthetic import GREEDY, FeatureTarget, TableHead, chain_of, decoded, random_table, sequence_p_value
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, TargetOutput
from specdecode.sampling import SamplingConfig

VOCAB, PLACES = 12, 3


class TablesHead(TableHead):
    """Guesses for all places are a table's, by a pair; its features are numbers of the row in that table."""

    def __init__(self, tables: Tensor) -> None:
        super().__init__(tables[0])
        self.tables, self.draft_length = tables, len(tables)  # [K, V, V, V]
        self.calls = 0

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        self.calls += 1
        before = features.argmax(-1)
        pair = torch.stack((before, tokens), dim=-1).float()
        return DraftHeadOutput(self.tables[0, before, tokens], pair)

    def later_logits(self, features: Tensor) -> Tensor:
        before, token = features.long().unbind(-1)
        return self.tables[1:, before, token].transpose(0, 1)


def tables(scale: float = 2.0) -> Tensor:
    return torch.stack([random_table(VOCAB, seed=seed, scale=scale) for seed in range(PLACES)])


def state_of(tokens: Tensor, sampling: SamplingConfig) -> DecodeState:
    return state_for(torch.ones_like(tokens), sampling, tokens[:, None], most=40)


def run(
    shape: Any, size: DraftSize, children: str, sampling: SamplingConfig
) -> tuple[DecodeResult, Tensor, TablesHead]:
    prompts = torch.randint(0, VOCAB, (4, 2), generator=torch.Generator().manual_seed(3))
    table = random_table(VOCAB, seed=8, scale=2.0)
    target, guess = FeatureTarget(table, prompts, 29), table + random_table(VOCAB, seed=9, scale=0.7)
    head = TablesHead(torch.cat((guess[None], tables()[1:])))
    drafter = SemiAutoregressiveDrafter(head, shape, FixedDraftSize(size), children)  # type: ignore[arg-type]
    plain, result = (decoded(target, 30, sampling, drafter=each) for each in (None, drafter))
    return result, plain.tokens, head


@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig()], ids=str)
@pytest.mark.parametrize(
    ("shape", "size"), [(StaticTree.chain(3), DraftSize(4, 3)), (DynamicTree(4), DraftSize(14, 3))], ids=str
)
def test_no_token_changes_and_the_head_is_asked_once_a_round(shape, size, sampling):
    result, plain, head = run(shape, size, "coupled", sampling)
    assert torch.equal(result.tokens, plain)
    assert result.trace.mean_accepted_length > 0.3
    assert head.calls == result.trace.target_passes - 1


def test_a_chain_takes_the_likeliest_of_every_place():
    head = TablesHead(tables())
    drafter = SemiAutoregressiveDrafter(head, StaticTree.chain(3), chain_of(3))
    state = state_of(torch.tensor([4, 9]), SamplingConfig(temperature=0.0))
    drafter.start(TargetOutput(torch.zeros(2, 1, VOCAB), F.one_hot(torch.tensor([[1], [2]]), VOCAB).float()), state)
    wanted = [[root, *(int(table[before, root].argmax()) for table in tables())] for before, root in ((1, 4), (2, 9))]
    assert drafter.propose(state).tree.tokens.tolist() == wanted


def test_a_dynamic_tree_holds_the_likeliest_combinations():
    head, top_k, total = TablesHead(tables()), 3, 13
    drafter = SemiAutoregressiveDrafter(head, DynamicTree(top_k), FixedDraftSize(DraftSize(total, 3)), "top")
    state = state_of(torch.tensor([4]), SamplingConfig(temperature=1.0))
    drafter.start(TargetOutput(torch.zeros(1, 1, VOCAB), F.one_hot(torch.tensor([[1]]), VOCAB).float()), state)
    tree = drafter.propose(state).tree
    best = [table[1, 4].log_softmax(-1).topk(top_k) for table in tables()]
    scored: dict[tuple[int, ...], float] = {}
    for depth in (1, 2, 3):
        for choice in itertools.product(range(top_k), repeat=depth):
            path = tuple(int(best[level].indices[rank]) for level, rank in enumerate(choice))
            scored[path] = sum(float(best[level].values[rank]) for level, rank in enumerate(choice))
    # EAGLE-2 expands only the best of a level, but those of a product contain the best of the next.
    wanted = set(sorted(scored, key=lambda path: -scored[path])[: total - 1])
    assert set(token_paths(tree, 0)) == wanted


def test_drawn_children_leave_the_distribution_exact():
    table, prompt, draws = random_table(4, seed=5, scale=1.2), torch.tensor([1, 3]), 20_000
    guesses = torch.stack([random_table(4, seed=seed, scale=0.8) for seed in (6, 7)])
    shape = StaticTree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0]])
    drafter = SemiAutoregressiveDrafter(TablesHead(guesses), shape, FixedDraftSize(DraftSize(6, 2)), "sampled")
    sampling = SamplingConfig(temperature=0.9)
    tokens = decoded(FeatureTarget(table, prompt.expand(draws, 2), 2), 3, sampling, drafter=drafter).tokens
    assert sequence_p_value(tokens, table, prompt, sampling) > 1e-3


def test_more_places_than_are_guessed_are_refused():
    with pytest.raises(ValueError, match="draft_length must be at most 3"):
        SemiAutoregressiveDrafter(TablesHead(tables()), StaticTree.chain(4), chain_of(4))
