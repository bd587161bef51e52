"""EAGLE: a draft head that continues the target's own hidden states.

Belongs here: the bookkeeping of an EAGLE drafter for any network that plays `DraftHead`: the pairs it has been fed,
which tree is grown, and the feedback to the sizer. Does not belong here: how a tree grows (`tree_growth.py`), the
network, guidance, positions, and verification.

The head reads pairs: a token, and the target's final hidden state (the *feature*) at the token before it. From a pair
it guesses the hidden state at the token itself. The target's output head turns the guess into logits, and the guess is
also the feature of the next pair, so drafting goes on without the target. A tree node's feature is its parent's
*guess*; only verified tokens have the target's features (Li et al. 2024, "EAGLE", section 4.1; arXiv 2401.15077).

Shapes. `DynamicTree` is EAGLE-2's (Li et al. 2024, "EAGLE-2", arXiv 2406.16858, section 4): at each level the `top_k`
nodes with the greatest product of probabilities from the root are expanded to `top_k` children each, and the best of
all nodes are verified. A fixed shape (`StaticTree`) drafts the same ranks below every node, which LANTERN++ found
better where distributions are flat. Children are "coupled" with the target's draws, which changes none of them; the
likeliest tokens, a deterministic choice; or, for fixed shapes, drawn without replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, get_args

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_counts
from specdecode.drafters.draft_size import DraftSize, DraftSizer
from specdecode.drafters.tree_growth import Children, DraftHeadOutput, dynamic_tree, static_tree
from specdecode.drafters.tree_plan import plan_of
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.kernels.in_graph import in_graph
from specdecode.ragged import take
from specdecode.roles import DecodeState, Draft, Drafter, Selection, TargetOutput, Verdict, replace_rows
from specdecode.tree import TokenTree, chain_layout

_MOST_WAITING = 16


class DraftHead(Protocol):
    """A network over pairs of token and feature, with a cache of one sequence per row.

    The head chooses the width F of a feature: with guidance it keeps the features of both halves side by side.
    """

    @property
    def vocab_size(self) -> int:
        """V."""

    def start(self, prompt: TargetOutput) -> Tensor:
        """Empty the cache and feed the prompt. Returns [B, 1, F], the feature of the pair of the first token."""

    def features(self, output: TargetOutput) -> Tensor:
        """[B, n, F]: the target's hidden states in this head's form."""

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """Guess what follows new pairs. They stay new until `advance`.

        Args:
            tokens: [B, q] int64.
            features: [B, q, F].
            mask: [B or 1, q, n] bool, n >= q: there are n new pairs since the last `advance`, and these q are the last
                of them. Says which of the n each of the q sees. Every pair also sees the whole sequence before.
            depths: [B or 1, q] int64, positions after the sequence.

        A head of chains may give the logits after the deepest pair of a row in the place of all.
        """

    def advance(self, counts: Tensor) -> None:
        """The first `counts[b]` new pairs of row b join the sequence; the others are forgotten."""


class FeatureReuse(Protocol):
    """Replaces the target's features in skipped steps. Positions count a row's tokens from 0."""

    def start(self, feature: Tensor) -> None:
        """Begin a new batch with the feature before the first token, [B, 1, F]."""

    def write(self, features: Tensor, first: Tensor, counts: Tensor) -> None:
        """Store the target's features [B, k, F] of the `counts[b]` tokens from position `first[b]` on."""

    def after_verified(self, features: Tensor, first: Tensor, counts: Tensor) -> Tensor:
        """Do what `write` does, after a verification step. Returns the features [B, k, F] to draft from, usually the
        same."""

    def read(self, first: Tensor, counts: Tensor, width: int) -> Tensor:
        """[B, width, F]: substitutes for the unknown features of the `counts[b]` tokens from position `first[b]` on."""


@dataclass(eq=False)
class EagleDrafter(Drafter):
    """The Drafter role over a `DraftHead`.

    Args:
        head: the network.
        shape: a dynamic tree, or a fixed one; the sizer chooses its number of levels.
        sizer: how much to draft.
        children: "coupled" for tokens chosen with the target's own random number of their place, which only exact
            verifiers may be given; "top" for the likeliest tokens; "sampled" for tokens drawn without replacement from
            the head's distribution, which the verifier then gets. That needs a fixed shape.
        feature_reuse: the source of features in skipped steps; None: steps cannot be skipped.
        refresh: feed the head skipped tokens again, with the target's features, once the target has been fed them.
            Otherwise its cache keeps the entries made from substitutes.
        depth_behind_skip: the most levels drafted behind a skipped step, 1 or more; None for as many as before it. That
            draft is verified next, and few of its later levels are accepted.
        most_waiting: the most pairs that wait while this drafter stands aside.

    Raises:
        ValueError: sampled children of a dynamic tree, a tree wider than the vocabulary, or nothing behind a skip.
    """

    graph_state = ("head", "feature_reuse", "sizer", "_features", "_counts", "_skipped_first", "_skipped_counts")

    head: DraftHead
    shape: DynamicTree | StaticTree
    sizer: DraftSizer
    children: Children = "coupled"
    feature_reuse: FeatureReuse | None = None
    refresh: bool = False
    depth_behind_skip: int | None = None
    most_waiting: int = _MOST_WAITING

    def __post_init__(self) -> None:
        size = self.head.vocab_size
        width = self.shape.top_k if isinstance(self.shape, DynamicTree) else self.shape.max_children
        if width > size:
            raise ValueError(f"tree must not be wider than the vocabulary of {size} tokens, got {width}")
        if self.children not in get_args(Children):
            raise ValueError(f"children must be one of {', '.join(get_args(Children))}, got {self.children!r}")
        if self.children == "sampled" and isinstance(self.shape, DynamicTree):
            raise ValueError('children="sampled" needs a tree of fixed shape: a dynamic one prefers likely tokens')
        if self.depth_behind_skip is not None:
            check_counts(depth_behind_skip=self.depth_behind_skip)
        self._fixed = StaticTree.chain(self.sizer.largest.depth) if isinstance(self.shape, DynamicTree) else self.shape
        self._size = DraftSize(1, 0)
        self._draft_behind_a_skip = False

    @staticmethod
    def most_new_pairs(
        shape: DynamicTree | StaticTree, largest: DraftSize, beside: int = 0, waiting: int = _MOST_WAITING
    ) -> int:
        """The most pairs a head has to hold beyond its sequence: waiting ones, or the expanded nodes of a tree.

        Args:
            beside: columns of the longest draft that is verified while this drafter stands aside.
            waiting: `most_waiting`.
        """
        if isinstance(shape, DynamicTree):
            expanded = shape.top_k * max(largest.depth - 1, 0)
        else:
            expanded = len(set(shape.parents)) - 2  # neither the root nor its missing parent
        # With `refresh`, the pairs of a skipped step wait before those of the next accepted draft.
        return max(2 * largest.depth + 1, waiting + beside) + max(expanded, 1)

    @property
    def skipping(self) -> EagleDrafter | None:
        """Itself, if there is a source of features for skipped steps."""
        return None if self.feature_reuse is None else self

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Feed the prompt. The first token waits as the first pair."""
        self._wait(self.head.start(prompt), state.active.long())  # [B, 1, F]
        self._skipped_length = 0
        self._skipped_features: Tensor | None = None
        self._seen: Tensor | None = None  # features of the tree behind skipped tokens
        self._skipped_first, self._skipped_counts = torch.zeros_like(self._counts), torch.zeros_like(self._counts)
        if self.feature_reuse is not None:
            self.feature_reuse.start(self._features)

    def observe_given(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """Feed the given tokens, each with the target's feature before it."""
        features = self.head.features(output)
        if self.feature_reuse is not None:
            self.feature_reuse.write(features, torch.zeros_like(counts), counts)
        self._wait(*ragged.append(self._features, self._counts, features, counts))
        self._feed_all_but_last(state)

    def propose(self, state: DecodeState) -> Draft:
        """A tree below each row's newest token."""
        if not self._draft_behind_a_skip:  # else the second draft has the size of the first, or is shallower
            self._size = self.sizer.choose()
        elif self.depth_behind_skip is not None:
            depth = min(self._size.depth, self.depth_behind_skip)
            self._size = DraftSize(self._size.total_tokens, depth)
        self._draft_behind_a_skip = False
        size = self._size
        root = state.last_tokens()
        if size.depth < 1:
            self.stand_aside(state)
            return Draft(TokenTree.chain(root[:, None]))
        logits, feature = self._feed_waiting(state)
        # Of coupled nodes the first of each race are accepted most often, so where there are few they are a chain.
        is_chain = self.children == "coupled" and size.total_tokens == size.depth + 1
        if isinstance(self.shape, DynamicTree) and not is_chain:
            return dynamic_tree(root, logits, feature, state, self.shape.top_k, size, self._guess, self.children)
        plan = plan_of(self._fixed, root.device)
        return static_tree(root, logits, feature, state, plan, size.depth, self._guess, self.children)

    def stand_aside(self, state: DecodeState) -> None:
        """Draft nothing in this step: what is verified comes from elsewhere, and its tokens wait."""
        self._size = DraftSize(1, 0)
        if self._features.shape[1] >= self.most_waiting:
            self._feed_all_but_last(state)

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """The accepted tokens and the newest one become waiting pairs, with the target's features."""
        features = self.head.features(output) if self._seen is None else self._seen  # [B, n, F]
        path, tree = verdict.path, draft.tree  # [B, depth + 1]
        # Pair i: the token after path node i, and the feature at path node i.
        whole_chain = tree.is_chain and tree.num_nodes == tree.max_depth + 1  # and then it is the path
        along = features if whole_chain else take(features, path)  # [B, depth + 1, F]
        took_part = draft.tree.valid[:, 0]
        counts = (verdict.accepted + 1) * took_part
        if self.feature_reuse is not None:
            # The newest token is not fed yet; the one fed first, the root, stands `counts` before it.
            along = self.feature_reuse.after_verified(along, (state.lengths - 1 - counts).clamp(min=0), counts)
        if self._size.depth < 1:
            # Nothing was drafted: the new pairs wait behind the old ones.
            self._wait(*ragged.append(self._features, self._counts, along, counts))
        elif self.refresh and self._skipped_features is not None:
            # The pairs of the skipped step are taken back; they wait again, with the target's features.
            skipped = self._skipped_counts
            self.head.advance(-skipped)
            self._wait(*ragged.append(self._skipped_features, skipped, along, counts))
        else:
            self._wait(along, counts)
        self._skipped_features, self._seen, self._skipped_length = None, None, 0
        self.sizer.observe(self._size, verdict.accepted, took_part)

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """The taken tokens wait with substitutes for the target's features."""
        assert self.feature_reuse is not None
        self._skipped_first.copy_(state.lengths - 1 - selection.counts)  # position of the old root
        self._skipped_length, counts = selection.path.shape[1] - 1, selection.counts
        self._wait(self.feature_reuse.read(self._skipped_first, counts, self._skipped_length), counts)
        self._draft_behind_a_skip = True

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """Store the target's features of the pending tokens."""
        assert self.feature_reuse is not None
        features, length = self.head.features(output), self._skipped_length
        self._skipped_features, self._seen = features[:, :length], features[:, length:]  # [B, m, F] and [B, n, F]
        self._skipped_counts.copy_(counts)
        self.feature_reuse.write(self._skipped_features, self._skipped_first, counts)

    def replace_rows(self, rows: Tensor, other: EagleDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        replace_rows(self.head, rows, other.head)
        if self.feature_reuse is not None:
            replace_rows(self.feature_reuse, rows, other.feature_reuse)
        for name in ("_features", "_counts"):
            setattr(self, name, ragged.put_rows(getattr(self, name), rows, getattr(other, name)))
        self._even = False

    def _wait(self, features: Tensor, counts: Tensor) -> None:
        """The first `counts` [B] of features [B, k, F] wait, with as many newest tokens of each row."""
        on_host = ragged.on_host(counts)
        width = features.shape[1] if on_host is None else max(1, *on_host)  # rejected tokens are not read
        self._features, self._counts = ragged.first(features, width), counts
        self._even = on_host is not None and min(on_host) == width  # the host knows that as many pairs of each row wait

    def _feed_waiting(self, state: DecodeState) -> tuple[Tensor, Tensor]:
        """Feed the waiting pairs. Returns logits [B, 1, V] and the feature [B, 1, F] after the last one."""
        if self._even and not in_graph():
            output = self._feed(state, self._counts, None)
            return output.logits[:, -1:], output.hidden_states[:, -1:]
        last = (self._counts[:, None] - 1).clamp(min=0)  # [B, 1]
        output = self._feed(state, self._counts, last)
        return take(output.logits, last), take(output.hidden_states, last)

    def _feed_all_but_last(self, state: DecodeState) -> None:
        """Feed all waiting pairs but the last, whose output drafting starts from."""
        last = (self._counts[:, None] - 1).clamp(min=0)  # [B, 1]
        self._feed(state, last[:, 0], last)
        self._wait(take(self._features, last), self._counts.clamp(max=1))

    def _feed(self, state: DecodeState, counts: Tensor, last: Tensor | None) -> DraftHeadOutput:
        """Feed the waiting pairs, the last of each row at `last` [B, 1] (None: at the end), as a chain; the first
        `counts[b]` join the sequence."""
        num_pairs = self._features.shape[1]
        tokens = ragged.newest(state.tokens, state.lengths, self._counts, num_pairs)
        layout = chain_layout(1, num_pairs, self._features.device)
        depths = layout.depth
        if last is not None:  # slots past a row's count repeat the position of the last pair; no pair sees them
            depths = torch.minimum(depths, last)
        output = self.head.forward(tokens, self._features, layout.mask, depths)
        self.head.advance(counts)
        return output

    def _guess(self, depth: int, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """The head's guess after nodes `depth` >= 1 levels below the root; see `DraftHead.forward`."""
        return self.head.forward(tokens, features, mask, depths)
