"""Speculative Jacobi decoding: a window of guesses that is redrawn from the target's output at every step.

Belongs here: the window as a chain whose guesses know the distributions they were drawn from. Does not belong here:
verification, and branches at the front of a window (`jacobi_front.py`).

After a forward pass, the distribution at node i of the chain is the target's opinion of position i + 1, given the
guesses before it. Behind a rejected guess these opinions are stale, but they are distributions, and the next guesses
are drawn from them: there is no other drafter (SJD: Teng et al., "Accelerating auto-regressive text-to-image
generation with training-free speculative Jacobi decoding", arXiv 2410.01699). Positions without an opinion are guessed
at random.

Couplings (SCD: arXiv 2510.24211). Independent draws change most guesses at every step, even where the distribution
hardly changed, and a changed guess makes all opinions behind it stale. Coupled draws keep a guess where they can:

* "gumbel": every position keeps its random numbers, so the same token wins unless the distribution changes.
* "maximal": the old guess x stays with probability min(1, p(x) / q(x)), else the new one is drawn from max(p - q, 0).
* "target": a position has the random numbers with which plain decoding draws its token. So the guess is that very token
  wherever the opinion is close enough (predictive sampling: Wiggers and Hoogeboom, arXiv 2002.09928).

Why they are exact. The verifier needs each guess to be distributed as it claims, given the tokens before it. Opinions
depend on earlier guesses only, and given those, a coupled guess has exactly the new distribution, whatever the old
guess was. A rejected guess's position is settled by the verifier with numbers of its own. "target" uses the verifier's
numbers, so its guesses are no draws: they have no probabilities, and the verifier compares tokens.

Survivors. `keep_overlap` keeps a guess behind a rejection, with the distribution it was drawn from, where that and the
new opinion overlap enough (the sum of the lesser probabilities). This stays exact, since the decision depends on
distributions alone. Published methods (SJD++, arXiv 2512.07503; SJD2, arXiv 2510.08994) decide by the *tokens*, and the
tokens that they keep are no draws any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.drafters.draft_size import DraftSize, DraftSizer
from specdecode.kernels import fused_ops
from specdecode.ragged import take
from specdecode.roles import DecodeState, Draft, Drafter, Selection, SkippingDrafter, TargetOutput, Verdict
from specdecode.sampling import Tag, largest, logits_to_probabilities, sample
from specdecode.tree import TokenTree

COUPLINGS = ("independent", "gumbel", "maximal", "target")
INITIAL_GUESSES = ("random", "repeat")
_FRESH = ("independent", "maximal")  # couplings with new random numbers at every step


@dataclass(eq=False)
class JacobiDrafter(Drafter):
    """The Drafter role by a Jacobi window, without training.

    Args:
        vocab_size: V.
        sizer: its depth is the window.
        initial_guess: at positions without an opinion: "random", any token; "repeat", a draw from the last opinion.
        coupling: "independent" (SJD), "gumbel" or "maximal" (SCD), "target".
        keep_overlap: the least overlap, in [0, 1], at which a guess survives; None: every guess is redrawn.
        confident: give a confidence: the overlap of a position's last two opinions, multiplied along the window; 0
            where a position has had one opinion only. Not with coupling "target".

    Raises:
        ValueError: an unknown word, or an overlap out of range or for guesses that are no draws.
    """

    _of_rows = ("_opinions", "_tokens", "_drawn_from", "_accepted", "_iteration")
    graph_state: ClassVar[tuple[str, ...]] = ("sizer", "_last_node", *_of_rows)

    vocab_size: int
    sizer: DraftSizer
    initial_guess: Literal["random", "repeat"] | str = "random"
    coupling: Literal["independent", "gumbel", "maximal", "target"] | str = "independent"
    keep_overlap: float | None = None
    confident: bool = False

    def __post_init__(self) -> None:
        if self.initial_guess not in INITIAL_GUESSES:
            raise ValueError(f"initial_guess must be one of {', '.join(INITIAL_GUESSES)}, got {self.initial_guess!r}")
        if self.coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(COUPLINGS)}, got {self.coupling!r}")
        if self.keep_overlap is not None and not 0 <= self.keep_overlap <= 1:
            raise ValueError(f"keep_overlap must lie between 0 and 1, got {self.keep_overlap}")
        if self.keep_overlap is not None and self.coupling == "target":
            raise ValueError('keep_overlap must be None with coupling "target", whose guesses are no draws')
        self._size = DraftSize(1, 0)

    @property
    def skipping(self) -> SkippingDrafter | None:
        """Itself: a window consists of guesses behind unverified guesses."""
        return self

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Begin with the prompt's opinion of the first token."""
        if prompt.logits.shape[-1] != self.vocab_size:
            raise ValueError(f"vocab_size must be the target's {prompt.logits.shape[-1]} tokens, got {self.vocab_size}")
        # For each node of the last chain: the opinion after it, its token, and what that was drawn from.
        self._opinions = logits_to_probabilities(prompt.logits[:, -1:], state.sampling)  # [B, n, V]
        self._tokens = state.last_tokens()[:, None]  # [B, n]
        self._drawn_from = torch.zeros_like(self._opinions)  # [B, n, V]
        self._accepted = torch.zeros_like(state.lengths)  # [B]
        self._last_node: int | Tensor = 0  # [B, 1] where rows' chains are of several lengths
        self._iteration = torch.zeros_like(state.lengths)  # [B]
        self._behind_skip = False

    def propose(self, state: DecodeState) -> Draft:
        """A chain of guesses behind each row's newest token."""
        if not self._behind_skip:
            # Behind a skip the window stays: the same numbers at the same positions give the same guesses.
            self._size = self.sizer.choose()
            self._iteration = self._iteration + 1
        self._behind_skip = False
        window = self._size.depth
        # One call of the kernels draws a window that needs no sums over the vocabulary.
        asks_more = self.keep_overlap is not None or self.confident
        if window > 0 and not asks_more and (draft := self._drawn_at_once(window, state)) is not None:
            return draft
        root = state.last_tokens()[:, None]
        if window < 1:
            return Draft(TokenTree.chain(root))
        place = torch.arange(1, window + 1, device=root.device)
        last_node = self._last_node
        # Guess k is k positions behind the root; one position earlier was node `accepted + k` of the last chain.
        node = self._accepted[:, None] + place  # [B, window]
        wanted = take(self._opinions, node.clamp(max=last_node))  # [B, window, V]; beyond the last node, its own
        if self.initial_guess == "random":
            wanted = torch.where((node <= last_node)[..., None], wanted, 1.0 / self.vocab_size)
        positions = state.lengths[:, None] + place - 1
        if self.coupling == "target":
            noise = state.streams.exponential(Tag.TARGET, positions, self.vocab_size)
            return self._raced(root, wanted / noise)
        tokens = self._draw(wanted, node, last_node, positions, state)
        if self.keep_overlap is not None:
            tokens, wanted = self._surviving(tokens, wanted, node, last_node, self.keep_overlap)
        nothing = wanted.new_zeros(len(root), 1, self.vocab_size)
        draft = self._drawn(torch.cat([root, tokens], 1), torch.cat([nothing, wanted], 1), state)
        if self.confident:
            _, old_from, there = self._before(node, last_node)
            settled = (torch.minimum(wanted, old_from).sum(-1) * there).log().cumsum(1)  # [B, window]
            draft.confidence = torch.nn.functional.pad(settled, (1, 0))
        return draft

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Keep the target's opinion after every node."""
        self._opinions = output.probabilities(state.sampling)
        self._last_node = self._opinions.shape[1] - 1
        self._tokens = draft.tree.tokens
        if draft.probabilities is not None:
            self._drawn_from = draft.probabilities
        elif self.coupling != "target":
            self._drawn_from = torch.zeros_like(self._opinions)
        self._accepted = verdict.accepted
        self.sizer.observe(self._size, verdict.accepted, draft.tree.valid[:, 0])

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """The window's first guesses were taken; the others follow the new root."""
        self._accepted = self._accepted + selection.counts
        self._behind_skip = True

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """Nothing to learn: pending tokens are settled."""

    def replace_rows(self, rows: Tensor, other: JacobiDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        mine, theirs = (
            torch.zeros_like(each._accepted)[:, None] + each._last_node for each in (self, other)
        )  # [B, 1], [k, 1]
        self._last_node = ragged.put_rows(mine, rows, theirs)
        for name in self._of_rows:
            setattr(self, name, ragged.put_rows(getattr(self, name), rows, getattr(other, name)))

    def _drawn_at_once(self, window: int, state: DecodeState) -> Draft | None:
        """`propose` in one call, or None where no kernel serves."""
        counters = self._counters(state.lengths, state) if self.coupling in _FRESH else state.lengths
        last = self._opinions, self._tokens, self._drawn_from, self._accepted, self._last_node
        asked = self.initial_guess == "random", window, self.coupling != "target"
        tag = Tag.TARGET if self.coupling == "target" else Tag.DRAFT
        tags, revisited = (tag, Tag.COUPLE if self.coupling == "maximal" else None), self.coupling == "gumbel"
        numbers = state.streams, tags, counters, revisited
        at_once = fused_ops.window(last, state.last_tokens(), *numbers, *asked)
        if at_once is None:
            return None
        tokens, drawn_from = at_once
        return Draft(TokenTree.chain(tokens)) if drawn_from is None else self._drawn(tokens, drawn_from, state)

    def _raced(self, root: Tensor, arrival: Tensor) -> Draft:
        """The chain of the winners (greatest entries) of races [B, window, V] behind `root` [B, 1]."""
        return Draft(TokenTree.chain(torch.cat([root, largest(arrival)], 1)))

    def _drawn(self, tokens: Tensor, drawn_from: Tensor, state: DecodeState) -> Draft:
        """The chain of drawn tokens [B, window + 1], the root first, with their distributions [B, window + 1, V]."""
        return Draft(TokenTree.chain(tokens), drawn_from)

    def _counters(self, positions: Tensor, state: DecodeState) -> Tensor:
        """Counters of random numbers that are new at every step; positions lie below the stride."""
        strides = self._iteration * (state.ends + self.sizer.largest.depth + 1)
        return positions + strides.view(-1, *[1] * (positions.ndim - 1))

    def _before(self, node: Tensor, last_node: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The last guess at each position [B, window, 1], its distribution [B, window, V], and whether there was one,
        [B, window]; arguments as for `_draw`."""
        before = (node + 1).clamp(max=last_node)
        return self._tokens.gather(1, before)[..., None], take(self._drawn_from, before), node + 1 <= last_node

    def _surviving(
        self, tokens: Tensor, wanted: Tensor, node: Tensor, last_node: int | Tensor, least: float
    ) -> tuple[Tensor, Tensor]:
        """Guesses [B, window] and their distributions; the last guess where the overlap is large enough."""
        old, old_from, there = self._before(node, last_node)
        stays = there & (torch.minimum(wanted, old_from).sum(-1) >= least)
        return torch.where(stays, old[..., 0], tokens), torch.where(stays[..., None], old_from, wanted)

    def _draw(
        self, wanted: Tensor, node: Tensor, last_node: int | Tensor, positions: Tensor, state: DecodeState
    ) -> Tensor:
        """Guesses [B, window] distributed as `wanted` [B, window, V], coupled with the last ones.

        Args:
            node: [B, window] the last chain's node one position before each guess. positions: [B, window].
        """
        if self.coupling == "gumbel":
            noise = state.streams.exponential(Tag.DRAFT, positions, self.vocab_size, revisited=True)
            return sample(wanted, noise)
        counters = self._counters(positions, state)
        noise = state.streams.exponential(Tag.DRAFT, counters, self.vocab_size)
        if self.coupling == "independent":
            return sample(wanted, noise)
        old, old_from, there = self._before(node, last_node)
        threshold = state.streams.uniform(Tag.COUPLE, counters)
        stays = threshold * old_from.gather(2, old)[..., 0] < wanted.gather(2, old)[..., 0]
        left = (wanted - old_from).clamp(min=0)
        # Where nothing is left, the distributions are equal and the old guess stays anyway.
        left = torch.where(there[..., None] & (left.sum(-1, keepdim=True) > 0), left, wanted)
        return torch.where(there & stays, old[..., 0], sample(left, noise))
