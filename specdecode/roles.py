"""The roles of speculative decoding, and the tensors that pass between them.

Belongs here: the protocols, with their shapes, and the plain data they exchange. Does not belong here: implementations,
and anything that knows what a token stands for.

A verification step of `specdecode.loop`:

    draft = drafter.propose(state)                                  # which tokens may come next?
    output = target.forward(tokens, mask, depths)                   # what does the target say about them?
    verdict = verifier.accept(draft, output, state)                 # which of them stay, and what follows?
    target.commit(nodes, counts)                                    # keep their cache entries
    drafter.observe(draft, output, verdict, state)                  # learn from it

A skipped step (`specdecode.runs.skipping`) comes before a verification step:

    selection = schedule.select(draft, state)                       # which tokens are taken unverified?
    drafter.observe_skipped(draft, selection, state)
    draft = drafter.propose(state)                                  # go on drafting behind them

The tokens it takes are *pending* until the verification step feeds them, as a chain before the tree, in the same
forward pass. The newest token of a row is always "drawn but not fed": it is the root of the next draft.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.sampling import RandomStreams, SamplingConfig, logits_to_probabilities
from specdecode.tree import TokenTree


@dataclass
class TargetOutput:
    """The result of a forward pass of the target.

    Args:
        logits: [B, n, V] float32: for each fed token, the raw logits of the token after it. Guidance is already
            applied; temperature and filters are not.
        hidden_states: [B, n, dim] final hidden states (the input of the output head) of the fed tokens, for draft
            heads; None where the target has none. After `prefill`, those of the prompt, n >= 1.
    """

    logits: Tensor
    hidden_states: Tensor | None = None

    def __post_init__(self) -> None:
        self._drawn_from: tuple[SamplingConfig, Tensor] | None = None

    def probabilities(self, sampling: SamplingConfig) -> Tensor:
        """[B, n, V] float32: the distributions that tokens are drawn from. Computed once; do not write to it."""
        if self._drawn_from is None or self._drawn_from[0] is not sampling:
            self._drawn_from = sampling, logits_to_probabilities(self.logits, sampling)
        return self._drawn_from[1]

    def after(self, count: int) -> Self:
        """The output of the fed tokens from number `count` on."""
        return self._of(lambda part: part[:, count:])

    def at(self, nodes: Tensor) -> Self:
        """The output of fed tokens `nodes` [B, k] of each row."""
        return self._of(lambda part: ragged.take(part, nodes))

    def _of(self, choose: Callable[[Tensor], Tensor]) -> Self:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen: dict[str, Any] = {name: None if part is None else choose(part) for name, part in parts.items()}
        return replace(self, **chosen)


@dataclass
class DecodeState:
    """The state of every row. Only the loop writes it.

    Args:
        tokens: [B, max_new_tokens] int64; of row b the first `lengths[b]` entries are decoded.
        lengths: [B] int64, tokens decoded so far.
        active: [B] bool, False once a row is finished.
        max_new_tokens: Tokens of a complete row.
        sampling: How tokens are drawn.
        streams: One random stream per row. The draw for output position i uses counter i.
        newest: [B] int64, the newest token of each row; None: it is looked up.
        least_room: The least number of draft tokens that any row has room for, -1 where one has ended; None: the host
            does not know it.
        decided_places: [B, max_new_tokens] bool, where tokens are decided out of order; None: the first `lengths` are.
        row_tokens: [B] int64, tokens of each row, at most `max_new_tokens`; None: that many.
        tokens_left: int64 [], the tokens that the slowest unfinished row still needs, as a graph counts them; None: no
            graph does.
    """

    tokens: Tensor
    lengths: Tensor
    active: Tensor
    max_new_tokens: int
    sampling: SamplingConfig
    streams: RandomStreams
    newest: Tensor | None = None
    least_room: int | None = None
    decided_places: Tensor | None = None
    row_tokens: Tensor | None = None
    tokens_left: Tensor | None = None

    graph_state = (
        *("tokens", "lengths", "active", "sampling", "streams", "newest"),
        *("decided_places", "row_tokens", "tokens_left"),
    )

    @property
    def ends(self) -> Tensor | int:
        """Tokens of a complete row: [B] int64, or one number for all rows."""
        return self.max_new_tokens if self.row_tokens is None else self.row_tokens

    @property
    def decided(self) -> Tensor:
        """[B, max_new_tokens] bool: which tokens are decided."""
        if self.decided_places is not None:
            return self.decided_places
        return torch.arange(self.max_new_tokens, device=self.lengths.device) < self.lengths[:, None]

    def last_tokens(self) -> Tensor:
        """[B] int64: the newest token of each row, drawn but not yet fed to the target."""
        if self.newest is not None:
            return self.newest
        return self.tokens.gather(1, self.lengths[:, None] - 1)[:, 0]


@dataclass
class Draft:
    """The proposal of a drafter.

    Args:
        tree: The root (each row's newest token) and the draft tokens after it.
        probabilities: None where the children of a node are a deterministic choice, e.g. the k likeliest tokens, or are
            coupled with the target's draws. Where they are drawn at random, [B, n, V] float32: the distribution each
            node was drawn from, given its earlier siblings (without replacement: those zeroed and the rest
            renormalised). The root's row is not read.
        confidence: [B, n] float32, the drafter's log-probability of the path to each node, for schedules; None where it
            gives none. No verifier may read it.
    """

    tree: TokenTree
    probabilities: Tensor | None = None
    confidence: Tensor | None = None


@dataclass
class Verdict:
    """The decision of a verifier.

    Args:
        path: [B, max_depth + 1] int64 nodes of the accepted path, the root first; entries after the first
            `accepted + 1` are valid indices without meaning.
        accepted: [B] int64, the accepted length without bonus token: draft tokens accepted.
        next_tokens: [B] int64, the token after the accepted path, drawn from the target: the bonus token if everything
            was accepted, else the replacement of the rejected token.
        relaxed: [B, max_depth] bool, which tokens of the path below the root the exact rule would have rejected with
            the same random number; None: none. For reports only.
    """

    path: Tensor
    accepted: Tensor
    next_tokens: Tensor
    relaxed: Tensor | None = None


@dataclass
class Selection:
    """The decision of a schedule: draft tokens that are taken without verification.

    Args:
        path: [B, k + 1] int64 nodes of the chosen path, the root first, as in `Verdict`; k, at most max_depth, is the
            most tokens that any row takes. The target is fed k nodes for them.
        counts: [B] int64, tokens taken; 0 in rows that do not skip.
    """

    path: Tensor
    counts: Tensor

    def tokens(self, tree: TokenTree) -> Tensor:
        """[B, k + 1] int64: the root and the tokens of the path."""
        return ragged.first(tree.tokens, self.path.shape[1]) if tree.is_chain else tree.tokens.gather(1, self.path)


class Target(Protocol):
    """The model whose tokens are wanted: what does it say about these tokens?

    It holds one sequence per row: the prompt, then the committed tokens. Guidance, where used, happens inside; for all
    other roles a row is one sequence.
    """

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def batch_size(self) -> int:
        """B."""

    @property
    def device(self) -> torch.device:
        """The device of tokens and logits."""

    def prefill(self) -> TargetOutput:
        """Feed the prompt to an empty cache. Returns logits [B, 1, V] of the first token."""

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """Feed new tokens. They become part of the sequence only by `commit`.

        Args:
            tokens: [B, n] int64.
            mask: [B, n, n] bool: new token i sees new token j (always itself). It sees the whole committed sequence.
            depths: [B, n] int64: token i stands at sequence position (committed length of its row) + depths[., i].
                Padding has depth 0 and sees itself alone; in a complete row its position is that of the last token.
        """

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """Append tokens of the last forward pass to the sequence, and forget the others.

        Args:
            node_indices: [B, k] int64 indices into the last forward's n tokens, in order of position; None: 0 to
                n - 1, as for a chain, whose cache entries need not move.
            counts: [B] int64 in [0, k]: the first `counts[b]` of row b are kept.
        """


@dataclass(frozen=True)
class Positions:
    """Where the n tokens of a pass stand and what they see. The first dimension is 1 where all rows are alike, else B.

    Args:
        positions: [1 or B, n] int64, the place where the token stands.
        slots: [1 or B, n] int64, its slot behind the prompt. The same token may be fed twice to the same slot.
        visible: [1 or B, n, W] bool, which of the W slots behind the prompt each token sees, itself included. It sees
            the whole prompt.
    """

    positions: Tensor
    slots: Tensor
    visible: Tensor


class PlacedTarget(Target, Protocol):
    """A target that takes explicit places. Nothing is committed: a slot is visible or it is not."""

    def check_places(self, num_slots: int) -> None:
        """Raises ValueError where the cache has no room for so many slots behind the prompt."""

    def forward_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        """Feed tokens [B, n] int64 and keep each in its slot. Returns logits [B, n, V].

        Args:
            tokens: The tokens of every row.
            placed: Where they stand and what they see, on the target's device.
        """


class MakesGraphs(Protocol):
    """Makes steps into graphs: `specdecode.graphs.static_step.StepCompiler`."""

    def step_of(self, run: Any) -> Callable[[], int]:
        """The function that is called instead of `step` of a `DecodeRun` that has started."""

    def round_up(self, length: int) -> int:
        """The least number of slots, at least `length`, that a graph reads."""


class RowReplacing(Protocol):
    """A target, drafter or schedule that can give rows to other requests while its other rows go on.

    Continuous batches need it (`specdecode.runs.continuous`). In a player that keeps nothing about rows between two
    steps the method is empty. A player that cannot replace rows leaves it out and is refused by name.
    """

    def replace_rows(self, rows: Tensor, other: Any) -> None:
        """Replace rows `rows` [k] int64 by those of `other`: a player of the same kind and settings, with k rows, that
        has just been prefilled (a target) or started. Nothing of what the rows held before may be seen again."""


def replace_rows(player: object, rows: Tensor, other: object) -> None:
    """See `RowReplacing.replace_rows`. Raises ValueError for a player that cannot, by name."""
    check_can_replace_rows(player)
    player.replace_rows(rows, other)  # type: ignore[attr-defined]


def check_can_replace_rows(player: object) -> None:
    """Raises ValueError, with its name, for a player that is not `RowReplacing`; None is fine."""
    if player is not None and not hasattr(player, "replace_rows"):
        raise ValueError(
            f"{type(player).__name__} cannot give a finished row to another request: it has no replace_rows; decode "
            f"in fixed batches"
        )


class Drafter(Protocol):
    """The cheap guesser: which tokens may come next?

    Random drafts use `state.streams` under `Tag.DRAFT` (or a tag of their own). Coupled ones use the target's numbers;
    then they have no `probabilities`, and need a verifier that emits the target's own draws, whatever was drafted.
    """

    @property
    def skipping(self) -> SkippingDrafter | None:
        """This drafter as one that can skip verification; None (which subclasses inherit) where it cannot."""
        return None

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Begin a new batch, with the output of the prompts, and the first token of each row in `state`.

        Where tokens are given, the logits are those behind them, and `state` has them, too.
        """

    def observe_given(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """The first `counts[b]` tokens of each row were given. Called behind `start`, where any were.

        Args:
            output: the target's, of the given tokens, [B, P, ...]; its first `counts[b]` entries mean something.
            counts: [B] int64.
            state: has these tokens and the first one that was drawn behind them.
        """
        return None

    def propose(self, state: DecodeState) -> Draft:
        """Draft a tree below each row's newest token. The loop clips what lies past the end of a row."""

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Learn from a step: the draft as it was fed, the target's output, the verdict; `state` has the new tokens.

        Rows that were finished before the step have accepted nothing.
        """


class Verifier(Protocol):
    """The judge: which draft tokens stay?"""

    @property
    def exact(self) -> bool:
        """Whether emitted tokens are distributed exactly as in plain decoding (greedy: whether they are the same)."""

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Walk from the root along accepted children; `output` has logits for every node of `draft.tree`."""


class SkippingDrafter(Drafter, Protocol):
    """A drafter that can draft on behind tokens that the target has not verified."""

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """Tokens of the draft were taken unverified; `state` has them. `propose` is called next.

        Rows with a count of 0 took nothing: they keep their draft, and what is proposed for them is not used.
        """

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """The target has been fed the pending tokens: the first `counts[b]` of the first m of `output` [B, m + n, ...].

        Called before `observe`, which gets the output of the tree's nodes: the other n.
        """


class Schedule(Protocol):
    """Which tokens are taken without verification, and when?"""

    def start(self, state: DecodeState) -> None:
        """Begin a new batch, with the first token of each row in `state`, and forget what was counted before."""

    def prepare(self) -> Hashable:
        """What the host knows beforehand about the next step, which may then be another graph: here nothing."""
        return None

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Which tokens of a draft to take unverified; None where the host knows that no row skips.

        Called once before every verification step, so no row skips twice in a row. The draft is clipped so that a skip
        never completes a row.
        """
