"""Parallel decoding, the drafter's side: keep a draft model in step with the decided tokens, and draft windows.

Belongs here: the model's sequence, tokens that are taken back and fed, and the channel without overlap. Does not belong
here: another process (`two_processes.py`), and whether a token is right.

Guesses are drawn from the draft model's distribution with the *target's* random number of their position (greedy: the
likeliest token). This is safe because the emitted token is always the target's own draw. The shared number makes both
models choose the same token where their distributions are alike: at a total variation distance of d a guess is accepted
with a probability of at least (1 - d) / (1 + d).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from specdecode.drafters.draft_model import DraftModel, check_same_vocabulary
from specdecode.runs.parallel.channel import DraftRequest, DraftSource, Window
from specdecode.runs.parallel.rounds import DraftOrder
from specdecode.sampling import RandomStreams, Tag, draw_tokens
from specdecode.tree import chain_layout


class WindowDrafter:
    """Drafts window after window for one row at a time.

    Args:
        source: Makes a model of each request.
    """

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self._tokens: list[int] = []  # decided ones, then draft tokens
        self._num_fed = 0

    @torch.no_grad()
    def begin(self, request: DraftRequest, count: int, hint: Callable[[], Tensor | None]) -> Window:
        """Make the model for a request, feed the prompt, and draft the first tokens.

        Args:
            request: The row.
            count: Tokens to draft, >= 1.
            hint: See `DraftSource`. Waiting for it is not counted in the window's seconds.

        Raises:
            ValueError: The model has another vocabulary than the target, or more than one row.
        """
        began, waited = time.perf_counter(), 0.0

        def timed_hint() -> Tensor | None:
            nonlocal waited
            asked = time.perf_counter()
            try:
                return hint()
            finally:
                waited += time.perf_counter() - asked

        self._model: DraftModel = self._source(request.prompt, timed_hint)
        if self._model.batch_size != 1:
            raise ValueError(f"the drafter's model must have one row, it has {self._model.batch_size}")
        check_same_vocabulary(self._model, request.vocab_size)
        self._sampling = request.sampling
        self._streams = RandomStreams(torch.tensor([request.stream_key], device=self._model.device))
        self._tokens, self._num_fed = [], 0
        tokens = self._guess(self._model.prefill().logits[:, -1:], count)
        return Window(tokens, time.perf_counter() - began - waited)

    @torch.no_grad()
    def draft(self, order: DraftOrder) -> Window:
        """Correct the sequence as ordered, and draft behind it."""
        began = time.perf_counter()
        del self._tokens[order.kept :]
        if order.token is not None:
            self._tokens.append(order.token)
        # The newest token is always fed, perhaps again, since the first guess needs its logits.
        surplus = self._num_fed - (len(self._tokens) - 1)
        if surplus > 0:
            self._model.rewind(torch.tensor([surplus], device=self._model.device))
            self._num_fed -= surplus
        waiting = torch.tensor([self._tokens[self._num_fed :]], device=self._model.device)
        tokens = self._guess(self._feed(waiting), order.count)
        return Window(tokens, time.perf_counter() - began)

    def _guess(self, logits: Tensor, count: int) -> list[int]:
        """`count` tokens behind the sequence, whose last token gave `logits` [1, 1, V]. The last guess is not fed.

        The host waits for the device once, at the end.
        """
        first, guesses = len(self._tokens), []
        for position in range(first, first + count):
            counter = torch.tensor([[position]], device=logits.device)
            guesses.append(draw_tokens(logits, self._sampling, self._streams, counter, Tag.TARGET))
            if position < first + count - 1:
                logits = self._feed(guesses[-1])
        tokens: list[int] = torch.cat(guesses, 1)[0].tolist()
        self._tokens += tokens
        return tokens

    def _feed(self, tokens: Tensor) -> Tensor:
        """Feed a chain [1, n] that stays. Returns logits [1, 1, V] after its last token."""
        layout = chain_layout(*tokens.shape, tokens.device)
        logits = self._model.forward(tokens, layout.mask, layout.depth).logits
        self._model.commit(None, torch.tensor([tokens.shape[1]], device=tokens.device))
        self._num_fed += tokens.shape[1]
        return logits[:, -1:]


class InTurnChannel:
    """No overlap: a window is drafted when it is collected. Every other channel must give the same tokens.

    Args:
        source: Makes the drafter's model for a request.
    """

    def __init__(self, source: DraftSource) -> None:
        self._drafter = WindowDrafter(source)
        self._hint: Tensor | None = None
        self._work: Callable[[], Window]

    def begin(self, request: DraftRequest, count: int) -> None:
        """See `DraftChannel`."""
        self._hint = None
        self._work = lambda: self._drafter.begin(request, count, lambda: self._hint)

    def hint(self, numbers: Tensor) -> None:
        """See `DraftChannel`."""
        self._hint = numbers

    def order(self, order: DraftOrder) -> None:
        """See `DraftChannel`."""
        self._work = lambda: self._drafter.draft(order)

    def collect(self) -> Window:
        """See `DraftChannel`."""
        return self._work()

    def close(self) -> None:
        """See `DraftChannel`; there is no thread to end."""
