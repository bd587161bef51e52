"""The messages between the target's side and the drafter's side of parallel decoding.

Belongs here: messages, and the protocol of a channel. Does not belong here: how messages travel (`drafter.py`,
`two_processes.py`), and how the two sides react (`loop.py`, `drafter.py`).

The drafter is told which tokens stand and how many to draft, and answers with token numbers. No token depends on when
it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specdecode.drafters.draft_model import DraftModel
from specdecode.runs.parallel.rounds import DraftOrder
from specdecode.sampling import SamplingConfig


@dataclass(frozen=True)
class DraftRequest:
    """A new row begins.

    Args:
        prompt: For the `DraftSource`; between processes something small that can be pickled.
        vocab_size: The target's V.
        sampling: How the target draws.
        stream_key: The key of the row's random stream.
    """

    prompt: Any
    vocab_size: int
    sampling: SamplingConfig
    stream_key: int


@dataclass(frozen=True)
class Window:
    """Draft tokens in order, and the seconds that drafting took."""

    tokens: list[int]
    seconds: float


class DraftSource(Protocol):
    """Makes the drafter's model for a request, on the drafter's side."""

    def __call__(self, prompt: Any, hint: Callable[[], Tensor | None]) -> DraftModel:
        """A model of one row before its prefill.

        Args:
            prompt: `DraftRequest.prompt`.
            hint: Waits for int64 numbers that the target knows early in its prefill, such as which tokens of the prompt
                to keep; None if the target gives none. Do first what needs no hint.
        """


class DraftChannel(Protocol):
    """Carries messages to a drafter and back, one window at a time."""

    def begin(self, request: DraftRequest, count: int) -> None:
        """Start a row: make the model, feed the prompt, draft `count` >= 1 tokens. Returns at once.

        What is left of an earlier row is dropped.
        """

    def hint(self, numbers: Tensor) -> None:
        """Hand the drafter [k] int64 numbers, once at most, after `begin` and before the first `collect`.

        Returns at once, even if the device has not computed the numbers yet.
        """

    def order(self, order: DraftOrder) -> None:
        """Correct the drafter's row and draft on. Returns at once; the last window must have been collected."""

    def collect(self) -> Window:
        """Wait for the window that was last begun or ordered."""

    def close(self) -> None:
        """End the drafter's thread or process, if there is one. The channel cannot be used afterwards."""
