"""The roles of speculative decoding, and what passes between them.

Belongs here: the protocols (who must answer which question, with which shapes) and the plain data they exchange.
Does not belong here: any implementation, and anything that knows what a token stands for.

One verified step of `specdecode.loop.decode`:

    draft = drafter.propose(state)                                  # which tokens may come next?
    output = target.forward(tokens, mask, depths)                   # what does the large model say about them?
    verdict = verifier.accept(draft, output, state)                 # which of them stay, and what follows?
    target.commit(nodes, counts)                                    # keep their cache entries
    drafter.observe(draft, output, verdict, state)                  # learn from it

A skipped step comes before a verified one:

    selection = schedule.select(draft, state)                       # which tokens are taken unverified?
    drafter.observe_skipped(draft, selection, state)
    draft = drafter.propose(state)                                  # go on drafting behind them

The tokens it took are *pending*: the target has not been fed them. The verified step feeds them as a chain before the
tree, in the same forward.

The last token of a row is always "drawn but not fed": it is the root of the next draft.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from specdecode.sampling import RandomStreams, SamplingConfig, logits_to_probabilities
from specdecode.tree import TokenTree


@dataclass
class TargetOutput:
    """What a target says after a forward.

    Args:
        logits: [B, n, V] float32: for each fed token, the raw logits of the token after it. Guidance is already
            applied; temperature and filters are not.
        hidden_states: [B, n, dim] final hidden states (the input of the output head) of the fed tokens, for drafters
            that read them; None where the target has none to give. After `prefill`, those of the prompt, n >= 1.
    """

    logits: Tensor
    hidden_states: Tensor | None = None

    def __post_init__(self) -> None:
        self._drawn_from: tuple[SamplingConfig, Tensor] | None = None

    def probabilities(self, sampling: SamplingConfig) -> Tensor:
        """[B, n, V] float32: the distributions that tokens are drawn from. Computed once for all who ask; not to be
        written to."""
        if self._drawn_from is None or self._drawn_from[0] != sampling:
            self._drawn_from = sampling, logits_to_probabilities(self.logits, sampling)
        return self._drawn_from[1]

    def after(self, count: int) -> Self:
        """The output of the fed tokens from number `count` on."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        later: dict[str, Any] = {name: None if value is None else value[:, count:] for name, value in parts.items()}
        return replace(self, **later)


@dataclass
class DecodeState:
    """Where every row stands. The loop writes it, everyone else reads it.

    Args:
        tokens: [B, max_new_tokens] int64; of row b the first `lengths[b]` entries are decoded.
        lengths: [B] int64, tokens decoded so far.
        active: [B] bool, False once a row is finished.
        max_new_tokens: Tokens of a complete row.
        sampling: How tokens are drawn.
        streams: One random stream per row. The draw for output position i uses counter i.
    """

    tokens: Tensor
    lengths: Tensor
    active: Tensor
    max_new_tokens: int
    sampling: SamplingConfig
    streams: RandomStreams

    def last_tokens(self) -> Tensor:
        """[B] int64: the newest token of each row, drawn but not yet fed to the target."""
        return self.tokens.gather(1, self.lengths[:, None] - 1)[:, 0]


@dataclass
class Draft:
    """What a drafter proposes.

    Args:
        tree: The root (each row's newest token) and the drafted tokens after it.
        probabilities: None where the children of a node are a deterministic choice, e.g. the k most likely tokens:
            a confidence is then *not* a probability of having been drawn. Where children are drawn at random,
            [B, n, V] float32: the distribution each node was actually drawn from, given its earlier siblings (without
            replacement: those zeroed and the rest renormalised). The root's row is not read.
        confidence: [B, n] float32, how sure the drafter is of the path to each node, as a log-probability, for
            schedules; None where it does not say. No verifier may read it.
    """

    tree: TokenTree
    probabilities: Tensor | None = None
    confidence: Tensor | None = None


@dataclass
class Verdict:
    """What a verifier decides.

    Args:
        path: [B, max_depth + 1] int64 nodes of the accepted path, the root first; entries after the first
            `accepted + 1` are some node's index and mean nothing.
        accepted: [B] int64, drafted tokens accepted (neither the root nor the token below counts).
        next_tokens: [B] int64, the token after the accepted path, drawn from the target: the bonus token when
            everything was accepted, else the token that takes the place of the rejected ones.
        relaxed: [B, max_depth] bool, which tokens of the path below the root the exact rule would not have accepted
            at their node with the same random number; None: none. For reports, nothing depends on it.
    """

    path: Tensor
    accepted: Tensor
    next_tokens: Tensor
    relaxed: Tensor | None = None


@dataclass
class Selection:
    """What a schedule decides: drafted tokens that are taken without asking the target.

    Args:
        path: [B, k + 1] int64 nodes of the chosen path, the root first, as in `Verdict`; k, at most max_depth, is how
            many tokens any row may take. The target is fed k nodes for them.
        counts: [B] int64, drafted tokens taken; 0 in rows that do not skip.
    """

    path: Tensor
    counts: Tensor


class Target(Protocol):
    """The large model: what does it say about these tokens?

    It holds one sequence per row: the prompt, then the committed tokens. Guidance, where used, happens inside; a row is
    one sequence for everyone else.
    """

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def batch_size(self) -> int:
        """B."""
        ...

    @property
    def device(self) -> torch.device:
        """Where tokens and logits lie."""
        ...

    def prefill(self) -> TargetOutput:
        """Feed the prompt to an empty cache. Returns logits [B, 1, V] of the first token."""
        ...

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """Judge new tokens. They become part of the sequence only by `commit`.

        Args:
            tokens: [B, n] int64.
            mask: [B, n, n] bool: new token i sees new token j (always itself). It sees the whole committed sequence.
            depths: [B, n] int64: token i stands at sequence position (committed length of its row) + depths[., i].
                Padding has depth 0 and sees itself alone; the position of a complete row's padding is one past its
                last fed token, that of its last token.
        """
        ...

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """Append tokens of the last forward to the sequence, and forget the others.

        Args:
            node_indices: [B, k] int64 indices into the last forward's n tokens, in order of position; None: 0 to
                n - 1. So a chain is kept, whose cache entries lie where they belong: nothing has to move.
            counts: [B] int64 in [0, k]: the first `counts[b]` of row b are kept.
        """
        ...


class RowReplacing(Protocol):
    """A target, drafter or schedule whose rows can go to other requests while its other rows go on.

    Continuous batches ask for it (`specdecode.continuous`). A player that keeps nothing about rows between two steps
    has nothing to do; one that cannot leaves the method out and is refused by name.
    """

    def replace_rows(self, rows: Tensor, other: Any) -> None:
        """Rows `rows` [k] int64 become those of `other`: a player of the same kind and settings, of k rows, that has
        just been prefilled (a target) or started. Nothing of what they held before may be seen again."""
        ...


def replace_rows(player: object, rows: Tensor, other: object) -> None:
    """See `RowReplacing.replace_rows`. Raises ValueError for a player that cannot, by name."""
    check_can_replace_rows(player)
    player.replace_rows(rows, other)  # type: ignore[attr-defined]


def check_can_replace_rows(player: object) -> None:
    """Raises ValueError for a player that does not play `RowReplacing`, by name; None, which is no player, is fine."""
    if player is not None and not hasattr(player, "replace_rows"):
        raise ValueError(
            f"{type(player).__name__} cannot give a finished row to another request: it has no replace_rows; decode "
            f"in fixed batches"
        )


class Drafter(Protocol):
    """The cheap guesser: which tokens come next?

    Random drafts use `state.streams` under `Tag.DRAFT` (or a tag of their own), never a tag of the verifier.
    """

    @property
    def skipping(self) -> SkippingDrafter | None:
        """This drafter as one that can go on unverified; None where it cannot. Subclasses of `Drafter` inherit None."""
        return None

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """A new batch begins: the prompt's output, and the first token of each row in `state`."""
        ...

    def propose(self, state: DecodeState) -> Draft:
        """Draft a tree below each row's newest token. The loop clips what would lie past the end of a row."""
        ...

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """A step is over: the draft as it was fed, what the target said, what stayed; `state` includes the new tokens.

        Rows that were finished before the step have accepted nothing.
        """
        ...


class Verifier(Protocol):
    """The judge: which drafted tokens stay?"""

    @property
    def exact(self) -> bool:
        """Whether the emitted tokens are distributed exactly as in plain decoding (greedy: equal to it)."""
        ...

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Walk from the root along accepted children; `output` has logits for every node of `draft.tree`."""
        ...


class SkippingDrafter(Drafter, Protocol):
    """A drafter that can go on without hearing what the target says about its tokens."""

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """Tokens of the draft were taken unverified; `state` includes them. A new draft will be asked for at once.

        Rows with a count of 0 took nothing: what is drafted for them now is not used, and their draft stands.
        """
        ...

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """The target has been fed the pending tokens of the last skip: [B, m, ...], the first `counts[b]` of each row.

        Called before `observe`, which gets the output of the tree's nodes.
        """
        ...


class Schedule(Protocol):
    """Is the target asked at all this time?"""

    def start(self, state: DecodeState) -> None:
        """A new batch begins, with the first token of each row in `state`; what was counted before is forgotten."""
        ...

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Which tokens of a draft to take without asking; None where the host knows that no row skips.

        Asked once before every target pass, so no row can skip twice in a row. The draft is clipped so that a skip
        never completes a row.
        """
        ...
