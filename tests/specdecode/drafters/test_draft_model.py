"""A smaller model as a drafter: exact, in step with the accepted tokens, and never past the end of a row."""

from typing import Any

import pytest
import torch
from random_chains import check_in_step
from refusals import value_error
from synthetic import GREEDY, MarkovTarget, TakingTurns, chain_of, decoded, random_table, sequence_p_value
from torch import Tensor

from specdecode import DecodeState, Draft, DraftModelDrafter, DraftSize, SamplingConfig, Tag, TargetOutput, Verdict
from specdecode.sampling import sample

VOCAB, LENGTH, DRAWS = 5, 4, 30_000
TABLE = random_table(VOCAB, seed=5, scale=1.2)
DRAFT_TABLE = 0.5 * TABLE + random_table(VOCAB, seed=6, scale=0.8)
PROMPT = torch.tensor([1, 3])
SAMPLING = SamplingConfig(temperature=0.9)


class InStep(DraftModelDrafter):
    """After every step the model holds the decoded tokens but those that wait, which come next."""

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        super().observe(draft, output, verdict, state)
        check_in_step(self.model, self._counts, state)


def sizes() -> TakingTurns:
    """They change from step to step, with long stretches without a draft."""
    return TakingTurns(*(DraftSize(length + 1, length) for length in (3, 1, 5, *[0] * 12, 2, 0, 4)))


def run(
    sizer: Any,
    children: str,
    *,
    prompts: Tensor,
    sampling: SamplingConfig,
    table: Tensor = TABLE,
    draft_table: Tensor = DRAFT_TABLE,
    length: int = LENGTH,
    drafting: bool = True,
) -> Tensor:
    drafter = InStep(MarkovTarget(draft_table, prompts, length + 8), sizer, children) if drafting else None
    return decoded(MarkovTarget(table, prompts, length - 1), length, sampling, drafter=drafter).tokens


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("sampling", [SAMPLING, SamplingConfig(1.3, 4, 0.8)], ids=str)
def test_the_distribution_is_the_targets(length, sampling):
    tokens = run(chain_of(length), "sampled", prompts=PROMPT.expand(DRAWS, 2), sampling=sampling)
    assert sequence_p_value(tokens, TABLE, PROMPT, sampling) > 1e-3


class _DrawsAnew(DraftModelDrafter):
    """Draws every token of its chains a second time."""

    steps = 0

    def propose(self, state: DecodeState) -> Draft:
        draft = super().propose(state)
        assert draft.probabilities is not None
        for level in range(1, draft.tree.num_nodes):
            noise = state.streams.exponential(Tag.DRAFT, state.lengths + level - 1, VOCAB)
            drawn = sample(draft.probabilities[:, level], noise)
            assert torch.equal(drawn[state.active], draft.tree.tokens[:, level][state.active])
        self.steps += 1
        return draft


def test_a_drafted_token_is_the_draw_of_its_place():
    """The counter of its random numbers is its output position, wherever in a chain it stands."""
    model = MarkovTarget(DRAFT_TABLE, PROMPT.expand(9, 2), 20)
    drafter = _DrawsAnew(model, chain_of(3), "sampled")
    decoded(MarkovTarget(TABLE, PROMPT.expand(9, 2), 11), 12, SAMPLING, drafter=drafter)
    assert drafter.steps >= 3


def test_a_coupled_token_is_the_targets_draw_of_its_place():
    """A model that says what the target says is always right, since it uses the target's number of the place."""
    model, target = (MarkovTarget(TABLE, PROMPT.expand(40, 2), capacity) for capacity in (24, 12))
    for children in ("coupled", "sampled"):
        drafter = DraftModelDrafter(model, chain_of(3), children)
        result = decoded(target, 13, SAMPLING, drafter=drafter)
        assert result.trace.accepted_lengths == [[3, 3, 3]] * 40


@pytest.mark.parametrize("children", ["sampled", "coupled"])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(), SamplingConfig(2.5, 9)], ids=str)
@pytest.mark.parametrize("sizer", [lambda: chain_of(4), sizes], ids=["fixed", "changing"])
def test_greedy_and_coupled_drafts_change_no_token(children, sampling, sizer):
    table = random_table(30, seed=7, scale=2.0)
    same: dict[str, Any] = {
        "prompts": torch.randint(0, 30, (6, 2), generator=torch.Generator().manual_seed(1)),
        "sampling": sampling,
        "table": table,
        "draft_table": table + random_table(30, seed=8, scale=1.0),
        "length": 70,
    }
    fast = run(sizer(), children, **same)
    if sampling.is_greedy or children == "coupled":
        assert torch.equal(fast, run(sizer(), children, drafting=False, **same))
    alone = run(sizer(), children, **{**same, "prompts": same["prompts"][:1]})
    assert torch.equal(alone[0], fast[0])


def test_what_cannot_be_used_is_named():
    prompts = PROMPT.expand(2, 2)
    value_error("children", DraftModelDrafter, MarkovTarget(TABLE, prompts, 4), chain_of(2), "drawn")
    with pytest.raises(ValueError, match="draft_model must have the target's vocabulary of 5 tokens, it has 6"):
        run(chain_of(2), "coupled", prompts=prompts, sampling=SAMPLING, draft_table=random_table(6, seed=0))
