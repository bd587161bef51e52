"""The best length of a window: as many tokens as are drafted during one forward pass of the target.

Belongs here: measuring both sides. Does not belong here: anything that a token could depend on.

Source: ParallelVLM (arXiv 2603.19610): window = T_p / T_q, both measured on the machine. With a shorter window the
drafter idles, with a longer one the target waits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specdecode.parallel.channel import DraftChannel, DraftRequest
from specdecode.parallel.loop import chain_layout
from specdecode.parallel.rounds import DraftOrder
from specdecode.roles import Target
from specdecode.sampling import SamplingConfig

_WINDOW = 4


@dataclass(frozen=True)
class DraftLength:
    """A draft length, and the seconds it follows from: of one pass of the target and of one draft token."""

    tokens: int
    target_seconds: float
    draft_seconds: float


def draft_length_of(target_seconds: float, draft_seconds: float) -> int:
    """Tokens drafted during one pass of the target, rounded, at least one.

    Raises:
        ValueError: a time that is not positive.
    """
    if target_seconds <= 0 or draft_seconds <= 0:
        raise ValueError(f"seconds must be positive, got {target_seconds} and {draft_seconds}")
    return max(1, round(target_seconds / draft_seconds))


@torch.no_grad()
def measure_draft_length(target: Target, drafter: DraftChannel, *, prompt: Any = None, repeats: int = 5) -> DraftLength:
    """Time both sides one after the other, after a warm-up; medians count.

    A pass of the target is timed with one token, since a few more cost about the same.

    Args:
        target: Before its prefill, with room for one token. It can be used again afterwards.
        drafter: The channel that will be used. Its model needs room for five tokens.
        prompt: For the drafter's `DraftSource`.
        repeats: How many passes and windows are timed.
    """
    greedy = SamplingConfig(temperature=0)
    drafter.begin(DraftRequest(prompt, target.vocab_size, greedy, 0), 1)
    token = target.prefill().logits[:, -1].argmax(-1, keepdim=True)
    drafter.collect()

    def draft_seconds() -> float:
        drafter.order(DraftOrder(kept=1, token=None, count=_WINDOW))
        return drafter.collect().seconds / _WINDOW

    places, mask = chain_layout(token)
    none = torch.zeros(1, dtype=torch.int64, device=target.device)

    def target_seconds() -> float:
        began = time.perf_counter()
        target.forward(token, mask, places).logits.argmax().item()
        target.commit(None, none)
        return time.perf_counter() - began

    def warm_median(measure: Callable[[], float]) -> float:
        measure()
        return statistics.median(measure() for _ in range(repeats))

    of_drafter, of_target = warm_median(draft_seconds), warm_median(target_seconds)
    return DraftLength(draft_length_of(of_target, of_drafter), of_target, of_drafter)
