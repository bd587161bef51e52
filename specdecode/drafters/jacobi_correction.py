"""A Jacobi window whose stale opinions are corrected by a draft head's or a draft model's change of mind.

Belongs here: the two branches that the network reads, and the corrected opinions. Does not belong here: how guesses are
drawn from opinions (`jacobi.py`), verification, and networks.

Behind a rejected guess the target's opinions are stale: p(x | old guesses). A small network judges the old guesses and
the new ones in one parallel pass, and each opinion is multiplied by the ratio of what it says behind both:

    opinion(x) ~ p(x | old guesses) * q(x | new guesses) / q(x | old guesses)

The new guesses that it reads are those of the uncorrected window. Behind the last opinion stands q alone. The ratio is
taken of unfiltered distributions; filters come behind it.

Why it is exact. With coupling "target" guesses are no draws, and the verifier compares tokens. With "gumbel" a guess
must be distributed as it claims, given the guesses before it. Masks are causal: a corrected opinion depends on guesses,
features and opinions of places before its own, and on what was accepted, which is settled before them. The noise of a
place enters the draw at that place alone, and the claim is the corrected opinion. Which branch of a front is continued
depends on accepted places alone, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.drafters.draft_model import DraftModel
from specdecode.drafters.draft_size import DraftSizer
from specdecode.drafters.eagle import DraftHead
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter
from specdecode.ragged import take
from specdecode.roles import DecodeState, Draft, Selection, TargetOutput, Verdict, replace_rows
from specdecode.sampling import Tag, logits_to_probabilities

_LEAST = -46.0  # nats, 1e-20: what a network finds less probable than this tells nothing


class CorrectedJacobiDrafter(JacobiDrafter):
    """A Jacobi window with corrected opinions.

    Args:
        vocab_size, sizer: as for `JacobiDrafter`.
        network: a draft head, with room for `most_new_pairs` pairs; or a draft model before its prefill, with the
            target's prompts, rows and vocabulary, and room for as many nodes.
        options: of `JacobiDrafter`.

    Raises:
        ValueError: a coupling with fresh random numbers, survivors or a confidence, or as `JacobiDrafter`.
    """

    graph_state = (*JacobiDrafter.graph_state, "network", "_logits", "_features", "_before_root")

    def __init__(self, vocab_size: int, sizer: DraftSizer, network: DraftHead | DraftModel, **options: Any) -> None:
        super().__init__(vocab_size, sizer, **options)
        if self.coupling not in ("target", "gumbel") or self.keep_overlap is not None or self.confident:
            raise ValueError(
                'corrected windows need coupling "target" or "gumbel", and neither keep_overlap nor a confidence'
            )
        self.network: Any = network
        self._is_head = hasattr(network, "features")
        # Within a step that skips: the tokens taken before the chain, [B, m], and what the target said about all.
        self._taken: Tensor | None = None
        self._pending: TargetOutput | None = None

    @staticmethod
    def most_new_pairs(fed: int) -> int:
        """The most pairs or nodes that a network is fed at once where the target is fed `fed` rows: those, and as many
        new ones, and one more where a row has just begun beside others."""
        return 2 * fed + 1

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """See `JacobiDrafter.start`; the network reads the prompt."""
        super().start(prompt, state)
        # There is no last chain: the root stands where its root would, and a place behind that its first opinion.
        self._accepted, self._last_node = self._accepted - 1, -1
        self._logits = prompt.logits[:, :0]  # [B, n, V] what the target said behind each node of the last chain
        # For heads: the target's features [B, n + 1, F] before the last chain's root and at its nodes.
        self._features: Tensor | None = None
        if self._is_head:
            self._features = self.network.start(prompt)
        else:
            self.network.prefill()

    def propose(self, state: DecodeState) -> Draft:
        """See `JacobiDrafter.propose`; opinions are corrected first, but not twice in a step that skips."""
        if not self._behind_skip:
            self._correct(state)
        return super().propose(state)

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """See `JacobiDrafter.observe`; what the target said is kept before filters."""
        super().observe(draft, output, verdict, state)
        self._logits = output.logits
        if self._is_head:
            self._features = torch.cat([self._before_root, self.network.features(output)], 1)
        if self._pending is not None:
            self._put_before(self._pending)

    def observe_skipped(self, draft: Draft, selection: Selection, state: DecodeState) -> None:
        """See `JacobiDrafter.observe_skipped`; the taken tokens are kept until the target is fed them."""
        super().observe_skipped(draft, selection, state)
        self._taken, self._counts = selection.tokens(draft.tree)[:, :-1], selection.counts

    def observe_pending(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """Taken tokens are to stand before the chain that is fed behind them; see `observe`."""
        self._pending = output

    def _put_before(self, pending: TargetOutput) -> None:
        """Make taken tokens the accepted guesses of one chain, which is what the network has to read."""
        assert self._taken is not None
        length, counts = self._taken.shape[1], self._counts
        nodes = torch.full_like(counts, self._logits.shape[1])

        def joined(taken: Tensor, chain: Tensor) -> Tensor:
            return ragged.append(taken[:, :length], counts, chain, nodes)[0]

        if self._features is not None:
            behind = joined(self.network.features(pending), self._features[:, 1:])
            self._features = torch.cat([self._before_root, behind], 1)
        self._tokens, self._logits = joined(self._taken, self._tokens), joined(pending.logits, self._logits)
        # Opinions behind accepted tokens are not read, and what guesses were drawn from is not, with fixed noise.
        self._opinions = joined(self._opinions[:, :1].expand(-1, length, -1), self._opinions)
        self._drawn_from = self._opinions
        self._accepted = self._accepted + counts
        self._last_node = counts[:, None] + self._last_node
        self._taken = self._pending = None

    def replace_rows(self, rows: Tensor, other: JacobiDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        assert isinstance(other, CorrectedJacobiDrafter)
        super().replace_rows(rows, other)
        replace_rows(self.network, rows, other.network)
        self._logits = ragged.put_rows(self._logits, rows, other._logits)
        if self._features is not None and other._features is not None:
            self._features = ragged.put_rows(self._features, rows, other._features)

    def _correct(self, state: DecodeState) -> None:
        """Replace the opinions behind accepted guesses, and add one behind the last node."""
        nodes, accepted, device = self._logits.shape[1], self._accepted[:, None], state.lengths.device
        on_host = ragged.on_host(self._accepted)
        first = 0 if on_host is None else min(on_host) + 1  # no row needs an earlier opinion
        stale = nodes - first  # the most guesses that the target has an opinion about
        new = torch.arange(stale + 1, device=device)
        old = torch.arange(nodes, device=device)
        # The old chain, and behind its accepted nodes the new root and the uncorrected guesses.
        tokens = torch.cat([self._tokens[:, :nodes], self._uncorrected(new, state)], 1)
        depths = torch.cat([old.expand(len(tokens), -1), accepted + 1 + new], 1)
        # A complete row's last token is never read; no place stands behind it.
        room = state.ends - state.lengths[:, None] + accepted
        depths = torch.minimum(depths, room.clamp(min=0))
        sees_old = torch.cat(
            [(old <= old[:, None]).expand(len(tokens), -1, -1), (old <= accepted)[:, None].expand(-1, stale + 1, -1)], 1
        )
        sees_new = (new <= new[:, None]).expand(len(tokens), -1, -1)
        mask = torch.cat([sees_old, torch.cat([sees_new.new_zeros(len(tokens), nodes, stale + 1), sees_new], 1)], 2)
        if self._is_head:
            assert self._features is not None
            behind = take(self._features, (accepted + 1 + new).clamp(max=nodes))  # the root's, then stale ones
            self._before_root = behind[:, :1]
            features = torch.cat([self._features[:, :nodes], behind], 1)
            said = self.network.forward(tokens, features, mask, depths).logits  # [B, nodes + stale + 1, V]
        else:
            said = self.network.forward(tokens, mask, depths).logits
        settled = (self._accepted + 1) * state.active
        self.network.advance(settled) if self._is_head else self.network.commit(None, settled)
        # Behind node j stands place j - accepted, about which the new branch speaks one node before.
        places = torch.arange(first, nodes + 1, device=device)
        behind_new = take(said, nodes + (places - accepted - 1).clamp(0, stale))  # [B, stale + 1, V]
        change = _known(behind_new[:, :stale]) - _known(said[:, first:nodes])
        # Behind a row's last node there is no opinion of the target.
        is_known = (places[:-1] <= self._last_node)[..., None]
        logits = torch.where(is_known, self._logits[:, first:] + change, behind_new[:, :stale])
        corrected = logits_to_probabilities(torch.cat([logits, behind_new[:, stale:]], 1), state.sampling)
        self._opinions = torch.cat([self._opinions[:, :first], corrected], 1)
        self._last_node = self._last_node + 1

    def _uncorrected(self, new: Tensor, state: DecodeState) -> Tensor:
        """[B, k]: the root, and what the target's opinions guess at the places `new` [k] behind it, from 0, its own."""
        node = (self._accepted[:, None] + new[1:]).clamp(max=self._last_node).clamp(min=0)
        tag = Tag.TARGET if self.coupling == "target" else Tag.DRAFT
        places = state.lengths[:, None] + new[:-1]
        root, wanted = state.last_tokens()[:, None], take(self._opinions, node)
        return torch.cat([root, state.streams.race(wanted, tag, places, revisited=True)], 1) if len(new) > 1 else root


class CorrectedBranchingJacobiDrafter(BranchingJacobiDrafter, CorrectedJacobiDrafter):
    """A corrected window with several guesses at its front: the network reads the branch that was accepted, and beyond
    its end the main chain. Arguments and errors are those of both."""


def _known(logits: Tensor) -> Tensor:
    """Log-probabilities, none below what tells something."""
    return logits.log_softmax(-1).clamp(min=_LEAST)
