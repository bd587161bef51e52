"""A draft model: a smaller whole model with the target's vocabulary, which decodes a few tokens ahead.

Belongs here: keeping the draft model in step with the accepted tokens, and drafting chains. Does not belong here: the
model (anything that plays Target and can take tokens back will do), and trees (`draft_model_tree.py`).

Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding"; Chen et al. 2023,
"Accelerating large language model decoding with speculative sampling".
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.drafters.draft_size import DraftSize, DraftSizer
from specdecode.roles import DecodeState, Draft, Drafter, Target, TargetOutput, Verdict, replace_rows
from specdecode.sampling import Tag, draw_tokens, logits_to_probabilities
from specdecode.tree import TokenTree, chain_layout

MOST_WAITING = 8
"""The most tokens that wait while nothing is drafted; the model is fed at most so many and two more at once."""


class DraftModel(Target, Protocol):
    """A Target that can take its last tokens back."""

    def rewind(self, counts: Tensor) -> None:
        """Forget the last `counts[b]` committed tokens of row b; [B] int64."""


def check_same_vocabulary(model: DraftModel, vocab_size: int) -> None:
    """Raises ValueError for a model with another vocabulary than the target's."""
    if model.vocab_size != vocab_size:
        raise ValueError(
            f"draft_model must have the target's vocabulary of {vocab_size} tokens, it has {model.vocab_size}"
        )


class ModelInStep:
    """A draft model that follows the accepted tokens. Tokens that it has not been fed wait until the next draft.

    Args:
        model: with its own prompt and cache, before its prefill; same rows and vocabulary as the target.
    """

    graph_state: tuple[str, ...] = ("model", "_counts")

    def __init__(self, model: DraftModel) -> None:
        self.model = model

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Feed the prompt to the model; the first token waits.

        Raises:
            ValueError: the model has another vocabulary than the target.
        """
        check_same_vocabulary(self.model, prompt.logits.shape[-1])
        self.model.prefill()
        # How many of each row's newest tokens wait [B], and a bound known without looking.
        self._counts, self._width = state.active.long(), 1

    def observe_given(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """Feed the given tokens."""
        self._counts, self._width = self._counts + counts * state.active, output.logits.shape[1] + 1
        self._feed_all_but_last(state)

    def replace_rows(self, rows: Tensor, other: ModelInStep) -> None:
        """See `specdecode.roles.RowReplacing`."""
        replace_rows(self.model, rows, other.model)
        self._counts = ragged.put_rows(self._counts, rows, other._counts)

    def _feed(self, counts: Tensor, state: DecodeState) -> Tensor:
        """Feed the waiting tokens as a chain, of which the first `counts[b]` stay. Returns logits [B, V] after the last
        waiting one."""
        length, device = self._width, counts.device
        tokens = ragged.newest(state.tokens, state.lengths, self._counts, length)
        layout, last = chain_layout(*tokens.shape, device), (self._counts - 1).clamp(min=0)
        # Entries past a row's count repeat the position of its last one; no token sees them.
        output = self.model.forward(tokens, layout.mask, torch.minimum(layout.depth, last[:, None]))
        self.model.commit(None, counts)
        return output.logits[torch.arange(len(tokens), device=device), last]

    def _feed_all_but_last(self, state: DecodeState) -> None:
        self._feed((self._counts - 1).clamp(min=0), state)
        self._counts, self._width = self._counts.clamp(max=1), 1

    def _wait(self, verdict: Verdict, kept: Tensor, state: DecodeState) -> None:
        """What the model has not been fed of a step waits: the newest token, and the draft token before it if that was
        not fed; nothing in finished rows, whose last token is never fed.

        Args:
            verdict: of the step.
            kept: [B] int64, how many of the accepted tokens the model has been fed: all, or all but the last.
            state: after the step.
        """
        self._counts, self._width = (verdict.accepted + 1 - kept) * state.active, 2


class DraftModelDrafter(ModelInStep, Drafter):
    """The Drafter role by a draft model: chains.

    Args:
        model: with its own prompt and cache, before its prefill; same rows, vocabulary and number of tokens as the
            target.
        sizer: its depth is the length of the chain.
        children: "coupled" for the token that the target's own random number of its place draws from the model's
            distribution, so that the target's draws stay plain decoding's; "sampled" for a draw with another number,
            whose distribution the verifier gets.

    Raises:
        ValueError: an unknown word.
    """

    graph_state = (*ModelInStep.graph_state, "sizer")

    def __init__(self, model: DraftModel, sizer: DraftSizer, children: Literal["coupled", "sampled"] | str = "coupled"):
        if children not in ("coupled", "sampled"):
            raise ValueError(f'children must be "coupled" or "sampled", got {children!r}')
        super().__init__(model)
        self.sizer = sizer
        self.children = children
        self._size = DraftSize(1, 0)

    def propose(self, state: DecodeState) -> Draft:
        """A chain behind each row's newest token."""
        self._size = size = self.sizer.choose()
        tokens = state.last_tokens()[:, None]
        self._fed = torch.zeros_like(state.lengths)  # how many draft tokens the model has been fed
        if size.depth < 1:
            if self._width >= MOST_WAITING:
                self._feed_all_but_last(state)
            return Draft(TokenTree.chain(tokens))
        logits = self._feed(self._counts, state)  # [B, V]
        drawn_from, tag = [torch.zeros_like(logits)], Tag.DRAFT if self.children == "sampled" else Tag.TARGET
        for level in range(1, size.depth + 1):
            # Draft token number `level` is at output position lengths + level - 1.
            position = state.lengths + level - 1
            if self.children == "sampled":
                drawn_from.append(logits_to_probabilities(logits, state.sampling))
            token = draw_tokens(logits[:, None], state.sampling, state.streams, position[:, None], tag)[:, 0]
            tokens = torch.cat([tokens, token[:, None]], 1)
            if level == size.depth:
                break
            # A row's last token is never fed.
            fed = (state.active & (position < state.ends - 1)).long()
            logits = self._feed_one(token, fed)
            self._fed = self._fed + fed
        probabilities = torch.stack(drawn_from, 1) if self.children == "sampled" else None
        return Draft(TokenTree.chain(tokens), probabilities)

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Take back rejected tokens; tokens that the model has not been fed wait."""
        kept = torch.minimum(self._fed, verdict.accepted)
        if self._size.depth > 1:
            self.model.rewind(self._fed - kept)
        if self._size.depth < 1:
            self._counts, self._width = self._counts + state.active, self._width + 1
        else:
            self._wait(verdict, kept, state)
        self.sizer.observe(self._size, verdict.accepted, draft.tree.valid[:, 0])

    def _feed_one(self, token: Tensor, counts: Tensor) -> Tensor:
        """Feed one token per row, which stays where `counts[b]` is 1. Returns logits [B, V]."""
        zeros = torch.zeros_like(token)[:, None]
        logits = self.model.forward(token[:, None], torch.ones_like(zeros, dtype=torch.bool)[..., None], zeros).logits
        self.model.commit(None, counts)
        return logits[:, 0]
