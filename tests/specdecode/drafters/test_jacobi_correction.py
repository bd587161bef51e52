"""Windows corrected by a drafter's change of mind: exact, the ratio that was meant, and worth its pass."""

from typing import Any

import pytest
import torch
from synthetic import FeatureTarget, MarkovTarget, TableHead, decoded, random_table, sequence_p_value
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.jacobi_correction import CorrectedBranchingJacobiDrafter, CorrectedJacobiDrafter
from specdecode.drafters.jacobi_front import branch_nodes
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Draft, Schedule, Selection, TargetOutput
from specdecode.sampling import SamplingConfig, Tag, logits_to_probabilities

VOCAB, LENGTH, DRAWS = 5, 4, 30_000
TABLE = random_table(VOCAB, seed=5, scale=1.2)
GUESSES = 0.7 * TABLE + random_table(VOCAB, seed=6, scale=0.6)
PROMPT = torch.tensor([1, 3])
SAMPLING, FILTERED = SamplingConfig(temperature=0.9), SamplingConfig(1.3, 4, 0.8)


class JoiningHead(TableHead):
    """Keeps the pairs that joined; its features are those it was given."""

    def start(self, prompt: TargetOutput) -> Tensor:
        self.joined: list[list[tuple[int, int]]] = [[] for _ in prompt.logits]
        return super().start(prompt)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        self.pairs = features.argmax(-1), tokens
        seen = (mask & (depths[:, None] == depths[..., None] - 1)).sum(-1)
        assert bool((seen[depths > 0] == 1).all()) and not seen[depths == 0].any(), "a pair sees the one before it"
        return DraftHeadOutput(self.table[self.pairs], features)

    def advance(self, counts: Tensor) -> None:
        for row, count in enumerate(counts[:5].tolist()):
            self.joined[row] += [
                (int(each[0]), int(each[1])) for each in zip(*(p[row, :count] for p in self.pairs), strict=True)
            ]


def window(length: int, branches: int = 1) -> FixedDraftSize:
    return FixedDraftSize(DraftSize(length + 1 + branch_nodes(length, branches, 2), length))


class Takes(Schedule):
    """Row r takes so many guesses unverified in its turn as (turn + r) % 4 says, of a window as long."""

    def start(self, state: DecodeState) -> None:
        self.turn = 0

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        self.turn += 1
        wanted = (self.turn + torch.arange(len(state.lengths))) % 4
        counts = torch.minimum(wanted, draft.tree.valid.sum(1) - 1) * state.active
        return Selection(torch.arange(4).expand(len(counts), -1), counts) if draft.tree.max_depth > 3 else None


def run(
    coupling: str,
    by: str | None,
    prompts: Tensor,
    sampling: SamplingConfig = SAMPLING,
    tables: tuple[Tensor, Tensor] = (TABLE, GUESSES),
    length: int = LENGTH,
    size: int = 3,
    kind: type[CorrectedJacobiDrafter] = CorrectedJacobiDrafter,
    schedule: Schedule | None = None,
    initial_guess: str = "repeat",
) -> tuple[DecodeResult, Any]:
    vocab = len(tables[0])
    network: Any = JoiningHead(tables[1]) if by == "head" else MarkovTarget(tables[1], prompts, length + 2 * size + 9)
    options: dict[str, Any] = {"initial_guess": initial_guess, "coupling": coupling}
    branches = 3 if issubclass(kind, CorrectedBranchingJacobiDrafter) else 1
    if branches > 1:
        options |= {"branches": branches, "branch_depth": 2}
    made: Any = JacobiDrafter if by is None else kind
    drafter = made(vocab, window(size, branches), **options, **({} if by is None else {"network": network}))
    target = FeatureTarget(tables[0], prompts, length - 1)
    return decoded(target, length, sampling, drafter=drafter, schedule=schedule), network


BOTH = pytest.mark.parametrize("by", ["head", "draft_model"])
KINDS = pytest.mark.parametrize("kind", [CorrectedJacobiDrafter, CorrectedBranchingJacobiDrafter])
WIDE = random_table(30, seed=7, scale=2.0), random_table(30, seed=7, scale=2.0) + random_table(30, seed=8, scale=0.7)
PROMPTS = torch.randint(0, 30, (7, 2), generator=torch.Generator().manual_seed(1))


@BOTH
@KINDS
@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize(
    ("coupling", "sampling"),
    [
        ("gumbel", SamplingConfig(temperature=0)),
        *(("target", each) for each in (SamplingConfig(0), SamplingConfig(), SamplingConfig(0.9, 20, 0.95))),
    ],
    ids=str,
)
def test_tokens_are_plain_decodings(by, kind, size, coupling, sampling):
    plain = decoded(MarkovTarget(WIDE[0], PROMPTS, 49), 50, sampling).tokens
    fast, network = run(coupling, by, PROMPTS, sampling, WIDE, 50, size, kind)
    assert torch.equal(plain, fast.tokens)
    if by == "head":
        has_read_what_was_decoded(network, plain, 2 * size + 2)
    alone, _ = run(coupling, by, PROMPTS[:1], sampling, WIDE, 50, size, kind)
    assert torch.equal(alone.tokens[0], plain[0])
    assert alone.trace.accepted_lengths[0] == fast.trace.accepted_lengths[0]


def has_read_what_was_decoded(head: JoiningHead, tokens: Tensor, at_most_missing: int) -> None:
    """Every pair that joined the head's sequence is a token and the feature before it."""
    for row, pairs in enumerate(head.joined[:5]):
        decoded = tokens[row].tolist()
        assert pairs == list(zip([int(PROMPTS[row, 1]), *decoded], decoded, strict=False))[: len(pairs)]
        assert len(pairs) >= len(decoded) - at_most_missing


@BOTH
@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        (CorrectedJacobiDrafter, SAMPLING),
        (CorrectedJacobiDrafter, FILTERED),
        (CorrectedBranchingJacobiDrafter, FILTERED),
    ],
    ids=str,
)
def test_the_distribution_is_the_targets(by, kind, sampling):
    tokens = run("gumbel", by, PROMPT.expand(DRAWS, 2), sampling, kind=kind)[0].tokens
    assert sequence_p_value(tokens, TABLE, PROMPT, sampling) > 1e-3


class _Compared(CorrectedJacobiDrafter):
    """Compares every opinion with what it is by definition, place by place."""

    compared = 0

    def propose(self, state: DecodeState) -> Draft:
        lasts, chain, stale = torch.zeros_like(state.lengths)[:, None] + self._last_node, self._tokens, self._logits
        accepted, raw, behind_skip = self._accepted.tolist(), self._opinions, self._behind_skip
        draft = super().propose(state)
        if behind_skip:
            return draft
        assert draft.probabilities is not None
        for row in range(len(chain)):
            done, old, last = int(state.lengths[row]), chain[row].tolist(), int(lasts[row])
            if done + draft.tree.max_depth >= state.max_new_tokens or last < 0:
                continue
            root, guesses = int(state.tokens[row, done - 1]), []
            for place in range(1, draft.tree.num_nodes):
                node = accepted[row] + place  # of the last chain, one place before
                if node > last:
                    break
                before = old[node - 1]
                new = [root, *guesses]
                own = new[-2] if not self._is_head and len(new) > 1 else before  # a head reads stale features
                change = self._table[own, new[-1]].log_softmax(-1) - self._table[before, old[node]].log_softmax(-1)
                wanted = logits_to_probabilities(stale[row, node] + change, state.sampling)
                torch.testing.assert_close(draft.probabilities[row, place], wanted)
                self.compared += 1
                noise = state.streams.exponential(Tag.DRAFT, state.lengths + place - 1, len(wanted))[row]
                guesses.append(int((raw[row, node] / noise).argmax()))
        return draft

    @property
    def _table(self) -> Tensor:
        return self.network.table


class _ComparedWithBranches(_Compared, CorrectedBranchingJacobiDrafter):
    pass


@BOTH
@pytest.mark.parametrize("sampling", [SamplingConfig(0.8), SamplingConfig(1.2, 9, 0.9)], ids=str)
@pytest.mark.parametrize(
    ("kind", "schedule"),
    [(_Compared, None), (_ComparedWithBranches, None), (_Compared, Takes())],
    ids=["chain", "branches", "behind skips"],
)
def test_opinions_are_multiplied_by_the_change_of_mind(by, sampling, kind, schedule):
    """Also behind tokens that were taken unverified, which stand before the chain."""
    drafters: list[_Compared] = []

    class Kept(kind):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            drafters.append(self)

    result, network = run("gumbel", by, PROMPTS, sampling, WIDE, 50, 6, Kept, schedule)
    assert drafters[0].compared > 150
    assert (result.trace.skipped_tokens > 40) == (schedule is not None)
    if by == "head":
        has_read_what_was_decoded(network, result.tokens, 18)


@BOTH
@pytest.mark.parametrize("coupling", ["gumbel", "target"])
def test_corrections_save_passes(by, coupling):
    base = torch.randn(20, generator=torch.Generator().manual_seed(3)) * 1.5
    table = base + random_table(20, seed=4, scale=0.8)
    tables = table, table + random_table(20, seed=9, scale=0.3)
    prompts = torch.randint(0, 20, (64, 2), generator=torch.Generator().manual_seed(2))
    accepted = [
        run(coupling, each, prompts, SamplingConfig(), tables, 60, 8)[0].trace.mean_accepted_length
        for each in (None, by)
    ]
    assert accepted[1] > 1.1 * accepted[0]


@BOTH
def test_a_drafter_that_is_the_target_guesses_the_next_token_from_the_first_pass_on(by):
    same = WIDE[0], WIDE[0]  # where no opinion stands a guess is random
    drafted = run("target", by, PROMPTS, tables=same, length=9, size=1, initial_guess="random")[0]
    assert drafted.trace.accepted_lengths == [[1] * 4] * len(PROMPTS)


def test_what_cannot_be_corrected_is_named():
    for options in ({"coupling": "independent"}, {"coupling": "gumbel", "keep_overlap": 0.5}):
        with pytest.raises(ValueError, match="corrected windows need coupling"):
            CorrectedJacobiDrafter(VOCAB, window(3), TableHead(GUESSES), **options)  # type: ignore[arg-type]
    assert CorrectedJacobiDrafter.most_new_pairs(4) == 4 + 4 + 1
