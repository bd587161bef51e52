"""Branches at a window's front: exact, drawn or compared, and a pass adds more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from synthetic import MarkovTarget, random_table
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import COUPLINGS, JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter, branch_nodes
from specdecode.loop import DecodeResult, decode
from specdecode.roles import DecodeState, Draft
from specdecode.sampling import RandomStreams, SamplingConfig

VOCAB, LENGTH, DRAWS = 5, 4, 60_000
TABLE = random_table(VOCAB, seed=5, scale=1.2)
PROMPT = torch.tensor([1, 3])
SAMPLING = SamplingConfig(temperature=0.9)
PValue = Callable[[Tensor, Tensor, Tensor, SamplingConfig], float]


def sized(window: int, branches: int, depth: int) -> DraftSize:
    return DraftSize(window + 1 + branch_nodes(window, branches, depth), window)


class Changing:
    """A window that changes from step to step, also to nothing."""

    def __init__(self, branches: int, depth: int) -> None:
        self.sizes = [sized(window, branches, depth) if window else DraftSize(1, 0) for window in (3, 0, 5, 1)]
        self.largest = self.sizes[2]
        self.turn = 0

    def choose(self) -> DraftSize:
        self.turn += 1
        return self.sizes[self.turn % 4]

    def observe(self, *_: object) -> None:
        pass


def decode_rows(
    drafter: JacobiDrafter | None,
    draws: int = DRAWS,
    sampling: SamplingConfig = SAMPLING,
    table: Tensor = TABLE,
    length: int = LENGTH,
    prompts: Tensor | None = None,
) -> DecodeResult:
    return decode(
        MarkovTarget(table, PROMPT.expand(draws, 2) if prompts is None else prompts, length - 1),
        max_new_tokens=length,
        sampling=sampling,
        streams=RandomStreams.from_seeds(range(draws)),
        drafter=drafter,
    )


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize(("branches", "depth"), [(2, 1), (3, 2), (5, 8)])
def test_the_distribution_is_the_targets(p_value, branches, depth, coupling):
    sizer = FixedDraftSize(sized(3, branches, depth))
    drafter = BranchingJacobiDrafter(VOCAB, sizer, branches, depth, initial_guess="repeat", coupling=coupling)
    assert p_value(decode_rows(drafter).tokens, TABLE, PROMPT, SAMPLING) > 1e-3


@pytest.mark.parametrize(
    "options", [{}, {"keep_overlap": 0.5}, {"coupling": "maximal"}, {"coupling": "target"}], ids=str
)
def test_filters_survivors_and_changing_windows_stay_exact(p_value, options):
    """Of five tokens the filters leave fewer than there are branches: the others are claimed to be choices."""
    sampling = SamplingConfig(1.3, 3, 0.8)
    drafter = BranchingJacobiDrafter(VOCAB, Changing(4, 2), 4, 2, **options)
    assert p_value(decode_rows(drafter, sampling=sampling).tokens, TABLE, PROMPT, sampling) > 1e-3


@pytest.mark.parametrize(("scale", "temperature"), [(30.0, 1.0), (1.0, 0.03), (2.0, 0.2)])
def test_branches_of_a_very_sure_target_stay_exact(p_value, scale, temperature):
    """Most sequences have no probability at all; what a first guess leaves may be 1e-40."""
    sampling = SamplingConfig(temperature)
    drafter = BranchingJacobiDrafter(VOCAB, FixedDraftSize(sized(3, 3, 2)), 3, 2, initial_guess="repeat")
    tokens = decode_rows(drafter, sampling=sampling, table=scale * TABLE).tokens
    assert p_value(tokens, scale * TABLE, PROMPT, sampling) > 1e-3


class _ForgetsSiblings(BranchingJacobiDrafter):
    """Planted fault: a branch claims to be drawn from the whole distribution, its earlier siblings included."""

    def _drawn(self, tokens: Tensor, drawn_from: Tensor, state: DecodeState) -> Draft:
        draft = super()._drawn(tokens, drawn_from, state)
        assert draft.probabilities is not None
        beside = draft.probabilities.clone()
        beside[:, tokens.shape[1] :: 2] = drawn_from[:, 1:2]  # branches are two deep
        return replace(draft, probabilities=beside)


class _ReadsTheMainChain(BranchingJacobiDrafter):
    """Planted fault: guesses of a branch that was taken are kept with what the main chain's were drawn from."""

    def _surviving(
        self, tokens: Tensor, wanted: Tensor, node: Tensor, last_node: int, least: float
    ) -> tuple[Tensor, Tensor]:
        tokens, _ = super()._surviving(tokens, wanted, node, last_node, least)
        return tokens, wanted


@pytest.mark.parametrize(("fault", "options"), [(_ForgetsSiblings, {}), (_ReadsTheMainChain, {"keep_overlap": 0.0})])
def test_faults_are_noticed(p_value, fault, options):
    drafter = fault(VOCAB, FixedDraftSize(sized(3, 3, 2)), 3, 2, initial_guess="repeat", **options)
    assert p_value(decode_rows(drafter).tokens, TABLE, PROMPT, SAMPLING) < 1e-6


@pytest.mark.parametrize(
    ("coupling", "sampling"),
    [
        *((coupling, SamplingConfig(temperature=0)) for coupling in COUPLINGS),
        ("target", SamplingConfig()),
        ("target", SamplingConfig(0.9, 20, 0.95)),
    ],
    ids=str,
)
def test_tokens_are_plain_decodings(coupling, sampling):
    table = random_table(30, seed=7, scale=2.0)
    prompts = torch.randint(0, 30, (7, 2), generator=torch.Generator().manual_seed(1))
    same: dict[str, Any] = {"sampling": sampling, "table": table, "length": 50, "prompts": prompts, "draws": 7}
    drafter = BranchingJacobiDrafter(30, Changing(4, 2), 4, 2, initial_guess="repeat", coupling=coupling)
    assert torch.equal(decode_rows(None, **same).tokens, decode_rows(drafter, **same).tokens)


@pytest.mark.parametrize("coupling", ["independent", "gumbel", "target"])
def test_branches_save_passes(coupling):
    base = torch.randn(20, generator=torch.Generator().manual_seed(3)) * 1.5
    table = base + random_table(20, seed=4, scale=0.8)
    same: dict[str, Any] = {"draws": 64, "sampling": SamplingConfig(), "table": table, "length": 60}
    same["prompts"] = torch.randint(0, 20, (64, 2), generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = {"initial_guess": "repeat", "coupling": coupling}
    chain = JacobiDrafter(20, FixedDraftSize(DraftSize(9, 8)), **options)
    tree = BranchingJacobiDrafter(20, FixedDraftSize(sized(8, 4, 3)), 4, 3, **options)
    without, with_branches = (decode_rows(drafter, **same).trace.mean_accepted_length for drafter in (chain, tree))
    assert with_branches > 1.1 * without


def test_what_cannot_be_used_is_named():
    sizer = FixedDraftSize(sized(3, 2, 2))
    with pytest.raises(ValueError, match="branches must lie between 2 and the vocabulary's 5, got 1"):
        BranchingJacobiDrafter(VOCAB, sizer, 1, 2)
    with pytest.raises(ValueError, match="branch_depth"):
        BranchingJacobiDrafter(VOCAB, sizer, 2, 0)
    assert BranchingJacobiDrafter(VOCAB, sizer, 2, 2).skipping is None
