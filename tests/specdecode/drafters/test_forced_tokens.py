"""Forced tokens: drafted where they stand and nowhere else, and nothing is lost by it."""

import pytest
import torch
from synthetic import MarkovTarget, chain_of, chi_square_p_value, decoded, random_table
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.forced_tokens import ForcedTokensDrafter
from specdecode.drafters.jacobi import COUPLINGS, INITIAL_GUESSES, JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter, branch_nodes
from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput
from specdecode.sampling import SamplingConfig, logits_to_probabilities
from specdecode.trace import TokenOrigin

VOCAB, ROW_END, DRAWS = 4, 3, 20_000
FORCED = torch.tensor([-1, -1, ROW_END, -1, ROW_END])
SAMPLING = SamplingConfig(temperature=0.9)
TABLE = random_table(VOCAB, seed=5, scale=1.2)


def allowed(logits: Tensor, places: Tensor) -> Tensor:
    """Logits [..., V] of output places [...]: the row's end where it is forced, all others elsewhere."""
    is_row_end = torch.arange(VOCAB) == ROW_END
    forced = FORCED[places.clamp(max=len(FORCED) - 1)][..., None] >= 0
    return logits.masked_fill(forced != is_row_end, -torch.inf)


class Target(MarkovTarget):
    """Says nothing but what may stand at a place."""

    def prefill(self) -> TargetOutput:
        return TargetOutput(allowed(super().prefill().logits, torch.zeros(self.batch_size, 1).long()))

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        places = self.lengths[:, None] + depths + 1
        return TargetOutput(allowed(super().forward(tokens, mask, depths).logits, places))


class Watched(ForcedTokensDrafter):
    """Keeps what it drafted, and for which places."""

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        self.drafts: list[tuple[Draft, Tensor]] = []
        super().start(prompt, state)

    def propose(self, state: DecodeState) -> Draft:
        draft = super().propose(state)
        self.drafts.append((draft, state.lengths[:, None] - 1 + draft.tree.depth))
        return draft


def window(length: int, coupling: str = "independent", guess: str = "random") -> JacobiDrafter:
    return JacobiDrafter(VOCAB, chain_of(length), guess, coupling)


def run(drafter: Drafter | None, draws: int = DRAWS) -> DecodeResult:
    target = Target(TABLE, torch.tensor([1, 2]).expand(draws, 2), len(FORCED) - 1)
    return decoded(target, len(FORCED), SAMPLING, drafter=drafter)


@pytest.fixture(scope="module")
def probabilities() -> Tensor:
    """[V ** 5] float64 of every sequence."""
    sequences = torch.cartesian_prod(*[torch.arange(VOCAB)] * len(FORCED))
    context = torch.cat([torch.tensor([1, 2]).expand(len(sequences), 2), sequences], 1)
    joint = torch.ones(len(sequences), dtype=torch.float64)
    for place in range(len(FORCED)):
        logits = allowed(TABLE[context[:, place], context[:, place + 1]], torch.tensor([place]))
        each = logits_to_probabilities(logits, SAMPLING).double()
        joint *= each[torch.arange(len(sequences)), context[:, place + 2]]
    return joint / joint.sum()  # float32 sums to one only up to rounding


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("guess", INITIAL_GUESSES)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_sequences_come_as_often_as_they_should(probabilities, coupling, guess, branches):
    drafter = window(3, coupling, guess)
    if branches > 1:
        size = FixedDraftSize(DraftSize(4 + branch_nodes(3, branches, 2), 3))
        drafter = BranchingJacobiDrafter(VOCAB, size, branches, 2, initial_guess=guess, coupling=coupling)
    result = run(ForcedTokensDrafter(drafter, FORCED, VOCAB))
    assert chi_square_p_value(result.tokens, probabilities, VOCAB) > 1e-3


def test_a_draft_of_the_targets_own_noise_gives_plain_decodings_tokens():
    assert torch.equal(run(ForcedTokensDrafter(window(3, "target"), FORCED, VOCAB), 500).tokens, run(None, 500).tokens)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_marks_are_drafted_where_they_stand_and_nowhere_else(length):
    drafter = Watched(window(length), FORCED, VOCAB)
    run(drafter, 50)
    for draft, places in drafter.drafts:
        drafted = draft.tree.depth > 0
        is_forced = FORCED[places.clamp(max=len(FORCED) - 1)] >= 0
        assert bool(((draft.tree.tokens == ROW_END) == is_forced)[drafted].all())
        assert draft.probabilities is not None
        claimed = draft.probabilities[drafted]
        torch.testing.assert_close(claimed.sum(-1), torch.ones(len(claimed)))
        assert torch.equal(claimed[:, ROW_END] == 1, is_forced[drafted]) and bool((claimed[:, ROW_END] % 1 == 0).all())


def test_fewer_passes_than_without():
    without, forced = run(window(4)), run(ForcedTokensDrafter(window(4), FORCED, VOCAB))
    assert sum(forced.trace.row_passes) < sum(without.trace.row_passes)


def test_some_token_must_be_left():
    with pytest.raises(ValueError, match="forced_tokens must leave some token that is forced nowhere"):
        ForcedTokensDrafter(window(1), torch.tensor([0, 1]), 2)


def test_a_row_that_joins_brings_its_own_known_tokens():
    """Into memory of the drafter's own: a target that shares it would hide that it was not written."""
    drafters = []
    for forced, rows in ((FORCED, 3), (FORCED.flip(0), 1)):
        drafters.append(ForcedTokensDrafter(window(2), forced.clone(), VOCAB))
        run(drafters[-1], rows)
    drafters[0].replace_rows(torch.tensor([1]), drafters[1])
    assert torch.equal(drafters[0].forced_tokens, torch.stack([FORCED, FORCED.flip(0), FORCED]))
    assert torch.equal(drafters[0].forced_places.places, drafters[0].forced_tokens >= 0)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_known_tokens_count_neither_as_drafted_nor_as_accepted(length):
    """By a count over the drafts as they were fed, and over the tokens that came of them."""
    drafter = Watched(window(length), FORCED, VOCAB)
    result = run(drafter, 50)
    trace, forced = result.trace, (FORCED >= 0).tolist()
    accepted = [0] * 50
    drafted = 0
    for row in range(50):
        at = 1  # the first token comes from the prefill
        for step in trace.steps:
            if not step["active"][row]:
                continue
            accepted[row] += forced[at : at + step["accepted"][row]].count(False)
            drafted += forced[at : at + step["drafted"][row]].count(False)
            at += step["emitted"][row]
        assert [sum(lengths) for lengths in trace.accepted_lengths][row] == accepted[row]
        origins = trace.token_origins[row]
        assert all(origin is TokenOrigin.TARGET for origin, is_forced in zip(origins, forced, strict=True) if is_forced)
        assert origins.count(TokenOrigin.ACCEPTED) == accepted[row]
    assert trace.drafted == drafted and sum(accepted) <= drafted
    fed = sum(len(each["active"]) and sum(each["drafted"]) for each in trace.steps)
    assert drafted < fed, "or no forced token was fed"
