"""Windows corrected by a drafter's change of mind: exact, the ratio that was meant, and worth its pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from synthetic import FeatureTarget, MarkovTarget, random_table
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.jacobi_correction import CorrectedJacobiDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.loop import DecodeResult, decode
from specdecode.roles import DecodeState, Draft, TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, logits_to_probabilities

VOCAB, LENGTH, DRAWS = 5, 4, 60_000
TABLE = random_table(VOCAB, seed=5, scale=1.2)
GUESSES = 0.7 * TABLE + random_table(VOCAB, seed=6, scale=0.6)
PROMPT = torch.tensor([1, 3])
SAMPLING = SamplingConfig(temperature=0.9)
PValue = Callable[[Tensor, Tensor, Tensor, SamplingConfig], float]


class TableHead:
    """Plays `DraftHead`: behind a pair it says what a table does at the token that the feature names, and its own."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.vocab_size = table, len(table)
        self.joined: list[list[tuple[int, int]]] = []

    def start(self, prompt: TargetOutput) -> Tensor:
        assert prompt.hidden_states is not None
        self.joined = [[] for _ in prompt.logits]
        return prompt.hidden_states[:, -1:]

    def features(self, output: TargetOutput) -> Tensor:
        assert output.hidden_states is not None
        return output.hidden_states

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


def window(length: int) -> FixedDraftSize:
    return FixedDraftSize(DraftSize(length + 1, length))


def run(
    coupling: str,
    by: str | None,
    prompts: Tensor,
    sampling: SamplingConfig = SAMPLING,
    tables: tuple[Tensor, Tensor] = (TABLE, GUESSES),
    length: int = LENGTH,
    size: int = 3,
    kind: type[CorrectedJacobiDrafter] = CorrectedJacobiDrafter,
) -> tuple[DecodeResult, Any]:
    vocab = len(tables[0])
    network: Any = TableHead(tables[1]) if by == "head" else MarkovTarget(tables[1], prompts, length + 2 * size + 2)
    options: dict[str, Any] = {"initial_guess": "repeat", "coupling": coupling}
    drafter = (
        JacobiDrafter(vocab, window(size), **options) if by is None else kind(vocab, window(size), network, **options)
    )
    target = FeatureTarget(tables[0], prompts, length - 1)
    streams = RandomStreams.from_seeds(range(len(prompts)))
    return decode(target, max_new_tokens=length, sampling=sampling, streams=streams, drafter=drafter), network


BOTH = pytest.mark.parametrize("by", ["head", "draft_model"])
WIDE = random_table(30, seed=7, scale=2.0), random_table(30, seed=7, scale=2.0) + random_table(30, seed=8, scale=0.7)
PROMPTS = torch.randint(0, 30, (7, 2), generator=torch.Generator().manual_seed(1))


@BOTH
@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize(
    ("coupling", "sampling"),
    [
        ("gumbel", SamplingConfig(temperature=0)),
        *(("target", each) for each in (SamplingConfig(0), SamplingConfig(), SamplingConfig(0.9, 20, 0.95))),
    ],
    ids=str,
)
def test_tokens_are_plain_decodings(by, size, coupling, sampling):
    plain = decode(
        MarkovTarget(WIDE[0], PROMPTS, 49), max_new_tokens=50, sampling=sampling,
        streams=RandomStreams.from_seeds(range(7)),
    ).tokens  # fmt: skip
    fast, network = run(coupling, by, PROMPTS, sampling, WIDE, 50, size)
    assert torch.equal(plain, fast.tokens)
    if by == "head":
        for row, pairs in enumerate(network.joined[:5]):
            tokens = plain[row].tolist()
            assert pairs == list(zip([int(PROMPTS[row, 1]), *tokens], tokens, strict=False))[: len(pairs)]
            assert len(pairs) >= 50 - 2 * size - 2
    alone, _ = run(coupling, by, PROMPTS[:1], sampling, WIDE, 50, size)
    assert torch.equal(alone.tokens[0], plain[0])
    assert alone.trace.accepted_lengths[0] == fast.trace.accepted_lengths[0]


@BOTH
@pytest.mark.parametrize("coupling", ["gumbel", "target"])
@pytest.mark.parametrize("sampling", [SAMPLING, SamplingConfig(1.3, 4, 0.8)], ids=str)
def test_the_distribution_is_the_targets(p_value, by, coupling, sampling):
    tokens = run(coupling, by, PROMPT.expand(DRAWS, 2), sampling)[0].tokens
    assert p_value(tokens, TABLE, PROMPT, sampling) > 1e-3


class _ClaimsTheStaleOpinion(CorrectedJacobiDrafter):
    """Planted fault: a guess claims to be drawn from the target's opinion before it was corrected."""

    def propose(self, state: DecodeState) -> Draft:
        stale, last, accepted = self._opinions, self._last_node, self._accepted
        draft = super().propose(state)
        assert draft.probabilities is not None
        node = (accepted[:, None] + torch.arange(1, draft.tree.num_nodes)).clamp(max=int(last))
        rows = torch.arange(len(node))[:, None]
        return replace(draft, probabilities=torch.cat([draft.probabilities[:, :1], stale[rows, node]], 1))


class _CorrectsWhatItDislikes(CorrectedJacobiDrafter):
    """Planted fault: whether a row is corrected depends on the token that its first place would get."""

    def _correct(self, state: DecodeState) -> None:
        stale, last = self._opinions, int(self._last_node)
        place = state.lengths[:, None]
        node = (self._accepted[:, None] + 1).clamp(max=last)
        rows = torch.arange(len(node))[:, None]
        guess = state.streams.race(stale[rows, node], Tag.DRAFT, place, revisited=True)
        super()._correct(state)
        kept = torch.cat([stale, stale[:, -1:]], 1)
        self._opinions = torch.where((guess < 2)[..., None], kept[:, : self._opinions.shape[1]], self._opinions)


@pytest.mark.parametrize("fault", [_ClaimsTheStaleOpinion, _CorrectsWhatItDislikes])
def test_faults_are_noticed(p_value, fault):
    tokens = run("gumbel", "head", PROMPT.expand(DRAWS, 2), kind=fault)[0].tokens
    assert p_value(tokens, TABLE, PROMPT, SAMPLING) < 1e-6


class _Compared(CorrectedJacobiDrafter):
    """Compares every opinion with what it is by definition, place by place."""

    compared = 0

    def propose(self, state: DecodeState) -> Draft:
        last, chain, stale = self._logits.shape[1] - 1, self._tokens.tolist(), self._logits
        accepted, raw = self._accepted.tolist(), self._opinions
        draft = super().propose(state)
        assert draft.probabilities is not None
        for row in range(len(chain)):
            done, old = int(state.lengths[row]), chain[row]
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


@BOTH
@pytest.mark.parametrize("sampling", [SamplingConfig(0.8), SamplingConfig(1.2, 9, 0.9)], ids=str)
def test_opinions_are_multiplied_by_the_change_of_mind(by, sampling):
    drafters: list[_Compared] = []

    class Kept(_Compared):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            drafters.append(self)

    run("gumbel", by, PROMPTS, sampling, WIDE, 50, 6, Kept)
    assert drafters[0].compared > 200


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


def test_what_cannot_be_corrected_is_named():
    for options in ({"coupling": "independent"}, {"coupling": "gumbel", "keep_overlap": 0.5}):
        with pytest.raises(ValueError, match="corrected windows need coupling"):
            CorrectedJacobiDrafter(VOCAB, window(3), TableHead(GUESSES), **options)  # type: ignore[arg-type]
    drafter = CorrectedJacobiDrafter(VOCAB, window(3), TableHead(GUESSES), coupling="gumbel")  # type: ignore[arg-type]
    assert drafter.skipping is None
    assert CorrectedJacobiDrafter.most_new_pairs(3) == 4 + 4 + 1
