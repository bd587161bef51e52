"""What the target's side and the drafter's side of parallel decoding say to each other.

Belongs here: the messages and the protocol of whoever carries them. Does not belong here: how they travel
(`one_process.py`, `two_processes.py`), and what is done about them (`loop.py`, `drafter.py`).

The drafter hears which tokens stand and how many to draft, and answers with token numbers; no distribution travels.
It never decides anything: what is accepted depends on what it answers, not on when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specdecode.drafters.draft_model import DraftModel
from specdecode.parallel.rounds import DraftOrder
from specdecode.sampling import SamplingConfig


@dataclass(frozen=True)
class DraftRequest:
    """A new row begins.

    Args:
        prompt: What the `DraftSource` makes a model of; for another process, something small that can be pickled.
        vocab_size: The target's V.
        sampling: How the target draws.
        stream_key: Of the row's random stream.
    """

    prompt: Any
    vocab_size: int
    sampling: SamplingConfig
    stream_key: int


@dataclass(frozen=True)
class Window:
    """Drafted tokens in order, and how long the drafter was busy with them."""

    tokens: list[int]
    seconds: float


class DraftSource(Protocol):
    """Makes the drafter's model of a request, on the drafter's side."""

    def __call__(self, prompt: Any, hint: Callable[[], Tensor | None]) -> DraftModel:
        """A model of one row before its prefill.

        Args:
            prompt: `DraftRequest.prompt`.
            hint: Waits for what the target found out early in its prefill, e.g. the numbers of the visual tokens worth
                keeping: int64; None if the target gives none. Whatever needs no hint is best done before.
        """
        ...


class DraftChannel(Protocol):
    """Carries messages to a drafter and back. One window is under way at a time."""

    def begin(self, request: DraftRequest, count: int) -> None:
        """Start a row: make the model, feed the prompt, draft `count` >= 1 tokens. Returns at once.

        Whatever is left of an earlier row is dropped.
        """
        ...

    def hint(self, numbers: Tensor) -> None:
        """Hand the drafter [k] int64 numbers, once at most, after `begin` and before the first `collect`.

        Returns at once: the numbers may still be on their way to being computed on the device.
        """
        ...

    def order(self, order: DraftOrder) -> None:
        """Correct the drafter's row and draft on. Returns at once; the last window must have been collected."""
        ...

    def collect(self) -> Window:
        """Wait for the window that was last begun or ordered."""
        ...

    def close(self) -> None:
        """End what works for the drafter, if anything does; nothing is asked of the channel afterwards."""
        ...
