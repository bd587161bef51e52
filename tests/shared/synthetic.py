"""A target and a drafter of which everything is known: Markov chains of order two.

Belongs here: the smallest players of the roles, for proving verifiers, drafters and schedules, and as an example of how
a role is played. Every statement about exactness rests on them: the distribution of whole sequences can be written
down, so decoded ones can be counted against it.
Does not belong here: anything learned, and anything used to make a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.loop import DecodeResult, OnStep
from specdecode.ragged import put_rows
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, logits_to_probabilities, sample
from specdecode.tree import TokenTree

GREEDY = SamplingConfig(temperature=0)


def decoded(
    target: Any,
    length: int,
    sampling: SamplingConfig = GREEDY,
    seeds: Iterable[int] | None = None,
    on_step: OnStep | None = None,
    **players: Any,
) -> DecodeResult:
    """So many tokens of every row. A row's seed is its number unless others are given; `players` are for `new_run`."""
    streams = RandomStreams.from_seeds(list(range(target.batch_size) if seeds is None else seeds))
    return new_run(target, max_new_tokens=length, sampling=sampling, streams=streams, **players).finish(on_step)


def random_table(vocab_size: int, seed: int, scale: float = 1.5) -> Tensor:
    """[V, V, V] float32 logits: entry (a, b) holds those of the token after "a b". `scale` is their deviation."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, vocab_size, vocab_size, generator=generator) * scale


def sequence_probabilities(table: Tensor, prompt: Tensor, length: int, sampling: SamplingConfig) -> Tensor:
    """The true distribution of decoded sequences.

    Args:
        table: [V, V, V] logits, see `random_table`.
        prompt: [2] int64.
        length: Tokens decoded.
        sampling: How each token is drawn.

    Returns:
        [V ** length] float64; sequences are ordered like numbers of base V, first token leading.
    """
    step = logits_to_probabilities(table, sampling).double()
    step = step / step.sum(-1, keepdim=True)  # float32 sums to one only up to rounding
    tokens = torch.arange(table.shape[0])
    sequences = torch.cartesian_prod(*[tokens] * length).view(-1, length)  # [V ** length, length]
    context = torch.cat([prompt.expand(sequences.shape[0], 2), sequences], dim=1)
    each = [step[context[:, i], context[:, i + 1], context[:, i + 2]] for i in range(length)]
    return torch.stack(each).prod(0)


def sequence_p_value(tokens: Tensor, table: Tensor, prompt: Tensor, sampling: SamplingConfig) -> float:
    """P-value of a chi-square test of many decoded rows of one prompt.

    Args:
        tokens: [draws, length]. table: [V, V, V] logits of a `MarkovTarget`. prompt: [2]. sampling: as decoded.
    """
    probabilities = sequence_probabilities(table, prompt, tokens.shape[1], sampling)
    return chi_square_p_value(tokens, probabilities, table.shape[0])


def chi_square_p_value(tokens: Tensor, probabilities: Tensor, vocab_size: int) -> float:
    """P-value of a chi-square test of many decoded rows.

    Args:
        tokens: [draws, length] int64. probabilities: [V ** length] float64, in the order of `sequence_probabilities`.
        vocab_size: V.
    """
    index = (tokens * vocab_size ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(1)
    return goodness_of_fit(index, probabilities)


def total_variation(one: Tensor, other: Tensor) -> Tensor:
    """[...] between distributions [..., V]."""
    return (one - other).abs().sum(-1) / 2


def goodness_of_fit(drawn: Tensor, expected: Tensor) -> float:
    """P-value of a chi-square test of drawn numbers [draws] against their distribution [n], known up to a factor."""
    observed = drawn.bincount(minlength=len(expected)).double()
    expected = expected.double() / expected.double().sum() * len(drawn)
    if bool((observed[expected == 0] > 0).any()):
        return 0.0  # what is impossible was drawn
    # Cells too small for the chi-square approximation are counted together.
    small = expected < 8
    observed = torch.cat([observed[~small], observed[small].sum()[None]])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    kept = expected > 0
    return float(stats.chisquare(observed[kept].numpy(), expected[kept].numpy()).pvalue)


class MarkovTarget:
    """A target whose logits depend on the last two tokens of the sequence.

    Args:
        table: [V, V, V] logits, see `random_table`.
        prompts: [B, 2] int64, the two tokens before the first decoded one.
        capacity: Tokens that can be committed per row.
    """

    graph_state = ("table", "prompts", "committed", "lengths")

    def __init__(self, table: Tensor, prompts: Tensor, capacity: int) -> None:
        self.table = table
        self.prompts = prompts
        self.vocab_size = table.shape[0]
        self.batch_size = prompts.shape[0]
        self.device = prompts.device
        self.capacity = capacity
        self.committed = prompts
        self.lengths = torch.zeros(self.batch_size, dtype=torch.int64, device=self.device)
        self._fed = prompts

    def prefill(self) -> TargetOutput:
        """Start again from the prompts. Returns logits [B, 1, V]."""
        # The prompt, the committed tokens, and a column for what is not kept.
        room = self.prompts.new_zeros(self.batch_size, self.capacity + 1)
        self.committed = torch.cat([self.prompts, room], dim=1)
        self.lengths = torch.zeros_like(self.lengths)
        return TargetOutput(self.table[self.prompts[:, 0], self.prompts[:, 1]][:, None])

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """Logits [B, n, V]: of the token before each one, found as the visible one a step less deep."""
        is_before = mask & (depths[:, None, :] == depths[:, :, None] - 1)  # [B, n, n]
        exists, index = is_before.max(dim=2)
        last_committed = self.committed.gather(1, self.lengths[:, None] + 1)  # the prompt takes two columns
        before = torch.where(exists, tokens.gather(1, index), last_committed)
        self._fed = tokens
        return TargetOutput(self.table[before, tokens])

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """Append the kept tokens."""
        kept = self._fed if node_indices is None else self._fed.gather(1, node_indices)
        offsets = torch.arange(kept.shape[1], device=self.device)
        columns = torch.where(offsets < counts[:, None], self.lengths[:, None] + offsets, self.capacity) + 2
        self.committed.scatter_(1, columns, kept)
        self.lengths = self.lengths + counts

    def replace_rows(self, rows: Tensor, other: MarkovTarget) -> None:
        """See `specdecode.roles.RowReplacing`."""
        for name in ("prompts", "committed", "lengths"):
            setattr(self, name, put_rows(getattr(self, name), rows, getattr(other, name)))

    def rewind(self, counts: Tensor) -> None:
        """Forget the last `counts[b]` committed tokens."""
        self.lengths = self.lengths - counts


class FeatureTarget(MarkovTarget):
    """A Markov target whose hidden state at a token is the token, one-hot: [B, n, V]. That and the token after it are
    all that its logits depend on, so it is what a drafter on features has to read."""

    def prefill(self) -> TargetOutput:
        """As `MarkovTarget`, with hidden states of the whole prompt."""
        output = super().prefill()
        return TargetOutput(output.logits, F.one_hot(self.prompts, self.vocab_size).float())

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """As `MarkovTarget`, with hidden states."""
        output = super().forward(tokens, mask, depths)
        return TargetOutput(output.logits, F.one_hot(tokens, self.vocab_size).float())


class TableHead:
    """Plays `DraftHead` for a `FeatureTarget`: the logits after a pair are a table's [V, V, V], at the token that its
    feature names and its own."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.vocab_size = table, len(table)

    def start(self, prompt: TargetOutput) -> Tensor:
        """The feature before the first pair."""
        return self.features(prompt)[:, -1:]

    def features(self, output: TargetOutput) -> Tensor:
        """The target's."""
        assert output.hidden_states is not None
        return output.hidden_states

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """The table's logits, and the feature of each token."""
        return DraftHeadOutput(self.table[features.argmax(-1), tokens], F.one_hot(tokens, self.vocab_size).float())

    def advance(self, counts: Tensor) -> None:
        """Nothing is kept."""


def chain_of(length: int) -> FixedDraftSize:
    """The size of a chain of so many draft tokens."""
    return FixedDraftSize(DraftSize(length + 1, length))


class TakingTurns:
    """A sizer that goes through these sizes, the second one first, and learns nothing."""

    def __init__(self, *sizes: DraftSize) -> None:
        self.sizes, self.turn = sizes, 0
        self.largest = DraftSize(max(each.total_tokens for each in sizes), max(each.depth for each in sizes))

    def choose(self) -> DraftSize:
        """The next one."""
        self.turn += 1
        return self.sizes[self.turn % len(self.sizes)]

    def observe(self, *_: object) -> None:
        """Nothing depends on it."""


@dataclass
class MarkovDrafter(Drafter):
    """Drafts a tree of fixed shape from a Markov table, usually another one than the target's.

    Args:
        table: [V, V, V] logits.
        prompts: [B, 2] int64.
        parents: The shape: the parent of each node, -1 for the root, parents before their children.
        children: How the children of a node are chosen: "top", its most likely tokens, deterministically; "sampled",
            independent draws; "without replacement", distinct draws.
        tag: The random numbers used.
    """

    table: Tensor
    prompts: Tensor
    parents: Sequence[int]
    children: Literal["top", "sampled", "without replacement"] = "top"
    tag: int = Tag.DRAFT

    def replace_rows(self, rows: Tensor, other: MarkovDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        self.prompts = put_rows(self.prompts, rows, other.prompts)

    def propose(self, state: DecodeState) -> Draft:
        """The tree, and what its nodes were drawn from unless the choice is deterministic."""
        batch_size, vocab_size = self.prompts.shape[0], self.table.shape[0]
        rows = torch.arange(batch_size, device=self.prompts.device)
        history = torch.cat([self.prompts, state.tokens], dim=1)
        tokens = [state.last_tokens()]
        drawn_from = [self.table.new_zeros(batch_size, vocab_size)]
        for node, parent in enumerate(self.parents):
            if parent < 0:
                continue
            above = self.parents[parent]
            before = history[rows, state.lengths] if above < 0 else tokens[above]  # two columns of prompt, one back
            probabilities = logits_to_probabilities(self.table[before, tokens[parent]], state.sampling)  # [B, V]
            siblings = [tokens[other] for other in range(1, node) if self.parents[other] == parent]
            if siblings and self.children != "sampled":
                probabilities = probabilities.scatter(1, torch.stack(siblings, 1), 0.0)
                # Filters may leave fewer tokens than siblings; any other token is then as good a guess.
                exhausted = probabilities.sum(1, keepdim=True) <= 0
                others = torch.ones_like(probabilities).scatter(1, torch.stack(siblings, 1), 0.0)
                probabilities = torch.where(exhausted, others, probabilities)
                probabilities = probabilities / probabilities.sum(1, keepdim=True)
            if self.children == "top":
                tokens.append(probabilities.argmax(1))
            else:
                counters = state.lengths * len(self.parents) + node
                tokens.append(sample(probabilities, state.streams.exponential(self.tag, counters, vocab_size)))
            drawn_from.append(probabilities)
        shape = torch.tensor(self.parents, device=self.prompts.device).expand(batch_size, -1)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        children = max(self.parents.count(node) for node in range(len(self.parents)))
        tree = TokenTree.from_parents(torch.stack(tokens, 1), shape, max_depth=max(depths), max_children=children)
        return Draft(tree, None if self.children == "top" else torch.stack(drawn_from, 1))
