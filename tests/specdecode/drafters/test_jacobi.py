"""Jacobi windows: exact for every coupling, and coupled guesses survive more often."""

from typing import Any

import pytest
import torch
from random_chains import state_for
from refusals import value_error
from synthetic import GREEDY, MarkovTarget, TakingTurns, decoded, random_table, sequence_p_value
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import COUPLINGS, INITIAL_GUESSES, JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter, _layout, branch_nodes
from specdecode.loop import DecodeResult
from specdecode.roles import Draft
from specdecode.sampling import SamplingConfig
from specdecode.verifiers.exact import ExactVerifier

VOCAB, LENGTH, DRAWS = 5, 4, 30_000
TABLE = random_table(VOCAB, seed=5, scale=1.2)
PROMPT = torch.tensor([1, 3])
ROWS = PROMPT.expand(DRAWS, 2)
SAMPLING = SamplingConfig(temperature=0.9)


def sized(window: int, branches: int = 1, depth: int = 0) -> DraftSize:
    return DraftSize(window + 1 + branch_nodes(window, branches, depth), window)


def window(length: int, branches: int = 1, depth: int = 0) -> FixedDraftSize:
    return FixedDraftSize(sized(length, branches, depth))


def changing(*lengths: int, branches: int = 1, depth: int = 0) -> TakingTurns:
    """A window that changes from step to step, also to nothing."""
    return TakingTurns(*(sized(length, branches, depth) for length in lengths or (3, 0, 5, 1)))


def decode_rows(
    drafter: JacobiDrafter | None,
    sampling: SamplingConfig = SAMPLING,
    table: Tensor = TABLE,
    length: int = LENGTH,
    prompts: Tensor = ROWS,
    **more: Any,
) -> DecodeResult:
    return decoded(MarkovTarget(table, prompts, length - 1), length, sampling, drafter=drafter, **more)


def is_exact(drafter: JacobiDrafter, sampling: SamplingConfig = SAMPLING, table: Tensor = TABLE) -> bool:
    """Whether sequences come as often as the target says."""
    return sequence_p_value(decode_rows(drafter, sampling, table).tokens, table, PROMPT, sampling) > 1e-3


def test_a_window_of_one_drafts_a_token_and_branches_have_the_nodes_that_are_kept_for_them():
    assert decode_rows(JacobiDrafter(VOCAB, window(1)), prompts=ROWS[:50]).trace.mean_accepted_length > 0
    for size, branches, depth in ((1, 2, 3), (5, 2, 3), (5, 4, 1)):
        parents, _ = _layout(size, branches, depth, torch.device("cpu"))
        assert parents.numel() == 1 + size + branch_nodes(size, branches, depth)


DRAWN = [coupling for coupling in COUPLINGS if coupling != "target"]
"""With the target's own numbers a window changes no token at all, which other tests say."""


@pytest.mark.parametrize("initial_guess", INITIAL_GUESSES)
@pytest.mark.parametrize("coupling", DRAWN)
@pytest.mark.parametrize("length", [1, 5])
def test_the_distribution_is_the_targets(length, coupling, initial_guess):
    assert is_exact(JacobiDrafter(VOCAB, window(length), initial_guess, coupling))


@pytest.mark.parametrize("coupling", DRAWN)
@pytest.mark.parametrize(("lengths", "sampling"), [((3, 0, 5, 1), SamplingConfig(1.3, 4, 0.8)), ((2, 3), SAMPLING)])
def test_filters_and_changing_windows_stay_exact(coupling, lengths, sampling):
    """(2, 3): a guess that is taken from the wrong place of a window that was resized shows there alone."""
    assert is_exact(JacobiDrafter(VOCAB, changing(*lengths), "repeat", coupling), sampling)


@pytest.mark.parametrize("coupling", DRAWN)
@pytest.mark.parametrize("least", [0.0, 0.4])
def test_survivors_with_their_draws_are_exact(coupling, least):
    assert is_exact(JacobiDrafter(VOCAB, window(3), "repeat", coupling, least))
    assert is_exact(JacobiDrafter(VOCAB, changing(), "random", coupling, least))


WIDE: dict[str, Any] = {
    "table": random_table(30, seed=7, scale=2.0), "length": 50,
    "prompts": torch.randint(0, 30, (7, 2), generator=torch.Generator().manual_seed(1)),
}  # fmt: skip
"""Rows that are not alike, of many tokens."""


@pytest.mark.parametrize("initial_guess", INITIAL_GUESSES)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_greedy_tokens_equal_plain_decoding(coupling, initial_guess):
    fast = decode_rows(JacobiDrafter(30, changing(), initial_guess, coupling), GREEDY, **WIDE)
    assert torch.equal(decode_rows(None, GREEDY, **WIDE).tokens, fast.tokens)


@pytest.mark.parametrize("initial_guess", INITIAL_GUESSES)
def test_with_the_targets_numbers_a_seed_draws_what_plain_decoding_draws(initial_guess):
    sampling = SamplingConfig(0.9, 20, 0.95)
    fast = decode_rows(JacobiDrafter(30, changing(), initial_guess, "target"), sampling, **WIDE)
    assert torch.equal(decode_rows(None, sampling, **WIDE).tokens, fast.tokens)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_a_row_does_not_depend_on_the_others(coupling):
    together = decode_rows(JacobiDrafter(30, window(6), "random", coupling), SamplingConfig(), **WIDE)
    for row in range(4):
        own = {**WIDE, "prompts": WIDE["prompts"][row : row + 1], "seeds": [row]}
        alone = decode_rows(JacobiDrafter(30, window(6), "random", coupling), SamplingConfig(), **own)
        assert torch.equal(alone.tokens[0], together.tokens[row])
        assert alone.trace.accepted_lengths[0] == together.trace.accepted_lengths[row]


def test_coupled_guesses_are_accepted_more_often():
    """Where what stands far before matters little, opinions settle, and coupled guesses with them."""
    base = torch.randn(20, generator=torch.Generator().manual_seed(3)) * 1.5
    table = base + random_table(20, seed=4, scale=0.4)
    prompts = torch.randint(0, 20, (64, 2), generator=torch.Generator().manual_seed(2))
    accepted = {}
    for coupling in COUPLINGS:
        drafter = JacobiDrafter(20, window(8), "repeat", coupling)
        accepted[coupling] = decode_rows(drafter, SamplingConfig(), table, 60, prompts).trace.mean_accepted_length
    assert accepted["gumbel"] > 1.1 * accepted["independent"]
    assert accepted["maximal"] > 1.1 * accepted["independent"]
    assert accepted["independent"] > 0.5 and accepted["target"] > 0.5


def test_what_cannot_be_used_is_named():
    value_error("initial_guess", JacobiDrafter, 5, window(2), "zero")
    value_error("coupling", JacobiDrafter, 5, window(2), coupling="tight")
    value_error("keep_overlap must lie", JacobiDrafter, 5, window(2), keep_overlap=1.5)
    value_error("keep_overlap must be None", JacobiDrafter, 5, window(2), coupling="target", keep_overlap=0.5)
    value_error("vocab_size", decode_rows, JacobiDrafter(6, window(2)), prompts=ROWS[:2], verifier=ExactVerifier())


def _alone(drafter: JacobiDrafter, lengths: list[int], opinions: Tensor, accepted: int) -> Draft:
    """The draft after one chain with these opinions [n, V] in every row, of which `accepted` guesses were right."""
    batch = len(lengths)
    state = state_for(torch.tensor(lengths), SamplingConfig(), torch.zeros(batch, 32, dtype=torch.long), most=32)
    drafter._opinions = opinions.expand(batch, -1, -1)
    drafter._tokens = torch.zeros(batch, len(opinions), dtype=torch.long)
    drafter._drawn_from = torch.zeros_like(drafter._opinions)
    drafter._accepted = torch.full((batch,), accepted)
    drafter._last_node, drafter._iteration, drafter._behind_skip = len(opinions) - 1, torch.zeros(batch).long(), False
    return drafter.propose(state)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("confident", [False, True])
def test_the_last_opinion_is_used_before_anything_is_guessed(coupling, confident):
    """Certain opinions leave no choice, and the place behind them is guessed at random."""
    if confident and coupling == "target":
        return
    drafter = JacobiDrafter(VOCAB, window(3), "random", coupling, confident=confident)
    draft = _alone(drafter, [4] * 64, torch.eye(VOCAB)[[3, 1, 2]], accepted=0)
    guesses = draft.tree.tokens[:, 1:]
    assert bool((guesses[:, :2] == torch.tensor([1, 2])).all())
    assert len(guesses[:, 2].unique()) > 1


@pytest.mark.parametrize("coupling", ["independent", "maximal"])
def test_no_pass_draws_with_numbers_that_another_place_had_before(coupling):
    """Else a guess would hang together with a verdict that was passed on its neighbour."""
    drafter = JacobiDrafter(VOCAB, window(3), coupling=coupling)
    state = state_for(torch.tensor([1]), SamplingConfig(), most=32)
    seen: set[int] = set()
    for iteration in range(40):
        drafter._iteration = torch.tensor([iteration])
        counters = drafter._counters(torch.arange(32 + 3)[None], state)[0].tolist()
        assert not seen & set(counters)
        seen |= set(counters)


# ---------------------------------------------------------------------------------------------------------------------
# Branches at a window's front: exact, drawn or compared, and a pass adds more.


def branching(vocab_size: int, size: int | None, branches: int, depth: int, **options: Any) -> BranchingJacobiDrafter:
    """Of a window of this size; None: of one that changes."""
    sizer: Any = changing(branches=branches, depth=depth) if size is None else window(size, branches, depth)
    return BranchingJacobiDrafter(vocab_size, sizer, branches, depth, **{"initial_guess": "repeat", **options})


@pytest.mark.parametrize("coupling", DRAWN)
@pytest.mark.parametrize(("branches", "depth"), [(2, 1), (3, 2), (5, 8)])
def test_branches_leave_the_distribution_as_it_is(branches, depth, coupling):
    assert is_exact(branching(VOCAB, 3, branches, depth, coupling=coupling))


@pytest.mark.parametrize(
    "options",
    [
        {"keep_overlap": 0.5, "initial_guess": "random"},
        {"coupling": "gumbel", "keep_overlap": 0.5},
        {"coupling": "maximal", "initial_guess": "random"},
    ],
    ids=str,
)
def test_filters_survivors_and_changing_windows_stay_exact(options):
    """Of five tokens the filters leave fewer than there are branches: the others are claimed to be choices."""
    assert is_exact(branching(VOCAB, None, 4, 2, **options), SamplingConfig(1.3, 3, 0.8))


@pytest.mark.parametrize(("scale", "temperature"), [(30.0, 1.0), (1.0, 0.03), (2.0, 0.2)])
def test_branches_of_a_very_sure_target_stay_exact(scale, temperature):
    """Most sequences have no probability at all; what a first guess leaves may be 1e-40."""
    assert is_exact(branching(VOCAB, 3, 3, 2), SamplingConfig(temperature), scale * TABLE)


@pytest.mark.parametrize(
    ("coupling", "sampling"),
    [
        *((coupling, GREEDY) for coupling in COUPLINGS),
        ("target", SamplingConfig()),
        ("target", SamplingConfig(0.9, 20, 0.95)),
    ],
    ids=str,
)
def test_tokens_are_plain_decodings(coupling, sampling):
    fast = decode_rows(branching(30, None, 4, 2, coupling=coupling), sampling, **WIDE)
    assert torch.equal(decode_rows(None, sampling, **WIDE).tokens, fast.tokens)


@pytest.mark.parametrize("coupling", ["independent", "gumbel", "target"])
def test_branches_save_passes(coupling):
    base = torch.randn(20, generator=torch.Generator().manual_seed(3)) * 1.5
    table = base + random_table(20, seed=4, scale=0.8)
    prompts = torch.randint(0, 20, (64, 2), generator=torch.Generator().manual_seed(2))
    drafters = JacobiDrafter(20, window(8), "repeat", coupling), branching(20, 8, 4, 3, coupling=coupling)
    without, with_branches = (
        decode_rows(drafter, SamplingConfig(), table, 60, prompts).trace.mean_accepted_length for drafter in drafters
    )
    assert with_branches > 1.1 * without


def test_branches_that_cannot_be_used_are_named():
    sizer = window(3, 2, 2)
    value_error("branches must lie between 2 and the vocabulary's 5, got 1", BranchingJacobiDrafter, VOCAB, sizer, 1, 2)
    value_error("branch_depth", BranchingJacobiDrafter, VOCAB, sizer, 2, 0)
    assert BranchingJacobiDrafter(VOCAB, sizer, 2, 2).skipping is None
