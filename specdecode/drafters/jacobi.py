"""Speculative Jacobi decoding: a window of guesses, drawn anew from what the target says about the last ones.

Belongs here: the window as a chain whose guesses know what they were drawn from. Does not belong here: acceptance,
which is the exact verifier's rule for chains with known distributions.

After a pass, the distribution at the chain's node i is the target's opinion of position i + 1 after the guesses before
it. Behind the new root these opinions are stale, where a guess before them was rejected, but they are distributions,
and the next guesses are drawn from them: that is all the drafting there is (SJD: Teng et al., "Accelerating
auto-regressive text-to-image generation with training-free speculative Jacobi decoding", arXiv 2410.01699). Positions
of which nothing is known yet are guessed at random.

Couplings (SCD: arXiv 2510.24211). Independent draws change most guesses at every pass, even where the distribution
hardly moved, and a changed guess makes all opinions behind it stale. Coupled draws keep a guess where they can:

* "gumbel": every position keeps its random numbers, so the same token wins the race unless the distribution moves.
* "maximal": the old guess x stays with probability min(1, p(x) / q(x)), else the new one is drawn from max(p - q, 0).

Why all of them are lossless. The verifier needs each guess to be distributed as it claims, given the tokens before it.
Both p and q at a position depend on guesses before it only (causality), and given those, a coupled guess has exactly
the new distribution, whatever the old guess was; that the two are alike changes neither. The random numbers of a
position are consumed once: a rejected guess's position is settled by the verifier, with numbers of its own.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specdecode.draft_size import DraftSize, DraftSizer
from specdecode.ragged import take
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.sampling import Tag, logits_to_probabilities, sample
from specdecode.tree import TokenTree

COUPLINGS = ("independent", "gumbel", "maximal")
INITIAL_GUESSES = ("random", "repeat")


class JacobiDrafter(Drafter):
    """The Drafter role without a drafter.

    Args:
        vocab_size: V.
        sizer: the window is its depth; drafting costs nothing.
        initial_guess: for positions of which nothing is known: "random", any token alike; "repeat", a draw from the
            distribution furthest ahead.
        coupling: "independent" (SJD), "gumbel" or "maximal" (SCD).

    Raises:
        ValueError: an unknown word.
    """

    def __init__(
        self,
        vocab_size: int,
        sizer: DraftSizer,
        initial_guess: Literal["random", "repeat"] | str = "random",
        coupling: Literal["independent", "gumbel", "maximal"] | str = "independent",
    ) -> None:
        if initial_guess not in INITIAL_GUESSES:
            raise ValueError(f"initial_guess must be one of {', '.join(INITIAL_GUESSES)}, got {initial_guess!r}")
        if coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(COUPLINGS)}, got {coupling!r}")
        self.vocab_size = vocab_size
        self.sizer = sizer
        self.initial_guess = initial_guess
        self.coupling = coupling
        self._size = DraftSize(1, 0)

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Nothing is known but what the prompt says of the first token."""
        if prompt.logits.shape[-1] != self.vocab_size:
            raise ValueError(f"vocab_size must be the target's {prompt.logits.shape[-1]} tokens, got {self.vocab_size}")
        # The last chain's nodes: what the target said after each, the tokens, and what those were drawn from.
        self._opinions = logits_to_probabilities(prompt.logits[:, -1:], state.sampling)  # [B, n, V]
        self._tokens = state.last_tokens()[:, None]  # [B, n]
        self._drawn_from = torch.zeros_like(self._opinions)  # [B, n, V]
        self._accepted = torch.zeros_like(state.lengths)  # [B]
        self._iteration = 0

    def propose(self, state: DecodeState) -> Draft:
        """A chain of guesses behind each row's newest token."""
        self._size = self.sizer.choose()
        self._iteration += 1
        root = state.last_tokens()[:, None]
        window = self._size.depth
        if window < 1:
            return Draft(TokenTree.chain(root))
        place = torch.arange(1, window + 1, device=root.device)
        last_node = self._opinions.shape[1] - 1
        # Guess k stands k positions behind the root; one position earlier stood node `accepted + k` of the last chain.
        node = self._accepted[:, None] + place  # [B, window]
        wanted = take(self._opinions, node.clamp(max=last_node))  # [B, window, V]; beyond the last node, its own
        if self.initial_guess == "random":
            wanted = torch.where((node <= last_node)[..., None], wanted, 1.0 / self.vocab_size)
        positions = state.lengths[:, None] + place - 1
        tokens = self._draw(wanted, node, last_node, positions, state)
        nothing = wanted.new_zeros(len(root), 1, self.vocab_size)
        return Draft(TokenTree.chain(torch.cat([root, tokens], 1)), torch.cat([nothing, wanted], 1))

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Keep what the target said after every node."""
        self._opinions = logits_to_probabilities(output.logits, state.sampling)
        self._tokens = draft.tree.tokens
        self._drawn_from = torch.zeros_like(self._opinions) if draft.probabilities is None else draft.probabilities
        self._accepted = verdict.accepted
        self.sizer.observe(self._size, verdict.accepted, draft.tree.valid[:, 0])

    def _draw(self, wanted: Tensor, node: Tensor, last_node: int, positions: Tensor, state: DecodeState) -> Tensor:
        """Guesses [B, window] distributed as `wanted` [B, window, V], coupled with the last ones.

        Args:
            node: [B, window] the last chain's node one position before each guess. positions: [B, window].
        """
        if self.coupling == "gumbel":
            return sample(wanted, state.streams.exponential(Tag.DRAFT, positions, self.vocab_size))
        # Fresh numbers at every pass: positions lie below the stride.
        stride = state.max_new_tokens + self.sizer.largest.depth + 1
        counters = positions + self._iteration * stride
        noise = state.streams.exponential(Tag.DRAFT, counters, self.vocab_size)
        if self.coupling == "independent":
            return sample(wanted, noise)
        before = (node + 1).clamp(max=last_node)
        old = self._tokens.gather(1, before)[..., None]  # [B, window, 1]
        old_from = take(self._drawn_from, before)  # [B, window, V]
        there = node + 1 <= last_node
        threshold = state.streams.uniform(Tag.COUPLE, counters)
        stays = threshold * old_from.gather(2, old)[..., 0] < wanted.gather(2, old)[..., 0]
        left = (wanted - old_from).clamp(min=0)
        # Where nothing is left, old and new distribution agree and the old guess stays anyway.
        left = torch.where(there[..., None] & (left.sum(-1, keepdim=True) > 0), left, wanted)
        return torch.where(there & stays, old[..., 0], sample(left, noise))
