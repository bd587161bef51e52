"""The best length of a window: as many tokens as are drafted during one forward pass of the target.

Belongs here: measuring both sides. Does not belong here: anything that a token could depend on.

Source: ParallelVLM (arXiv 2603.19610): window = T_p / T_q, both measured on the machine. With a shorter window the
drafter idles, with a longer one the target waits. T_p is the time of a pass that verifies the window, so it depends on
the window: on a CPU a pass over ten tokens takes up to four times as long as one over a single token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from specdecode.checks import check_counts
from specdecode.roles import Target
from specdecode.runs.parallel.channel import DraftChannel, DraftRequest
from specdecode.runs.parallel.rounds import DraftOrder
from specdecode.sampling import SamplingConfig
from specdecode.tree import chain_layout

LONGEST = 10
"""The longest window that grows with the pass that verifies it. Longer ones are seldom accepted whole."""
_WINDOW = 4


@dataclass(frozen=True)
class DraftLength:
    """A draft length, the seconds it follows from (of one draft token, and of the target's last timed pass), and the
    forward passes that measuring took, those over the prompt included."""

    tokens: int
    target_seconds: float
    draft_seconds: float
    target_passes: int
    draft_passes: int


def draft_length_of(target_seconds: float, draft_seconds: float) -> int:
    """Tokens drafted during one pass of the target, rounded, at least one.

    Raises:
        ValueError: a time that is not positive.
    """
    if target_seconds <= 0 or draft_seconds <= 0:
        raise ValueError(f"seconds must be positive, got {target_seconds} and {draft_seconds}")
    return max(1, round(target_seconds / draft_seconds))


@torch.no_grad()
def measure_draft_length(
    target: Target, drafter: DraftChannel, *, prompt: Any = None, repeats: int = 5, longest: int = LONGEST
) -> DraftLength:
    """Time both sides one after the other, after a warm-up; medians count.

    A pass of the target is timed over one token first, then over as many as were drafted meanwhile, until no more are.
    Where a token more costs the target what it costs the drafter, no window is long enough; growth ends at `longest`.

    Args:
        target: Before its prefill, with room for `longest` tokens. It can be used again afterwards.
        drafter: The channel that will be used. Its model needs room for five tokens.
        prompt: For the drafter's `DraftSource`.
        repeats: How many passes and windows are timed.
        longest: How far a window grows beyond what a pass over one token gives, >= 1.
    """
    check_counts(longest=longest)
    greedy = SamplingConfig(temperature=0)
    drafter.begin(DraftRequest(prompt, target.vocab_size, greedy, 0), 1)
    token = target.prefill().logits[:, -1].argmax(-1, keepdim=True)
    drafter.collect()
    passes = {"target": 1, "draft": 1}

    def draft_seconds() -> float:
        passes["draft"] += _WINDOW
        drafter.order(DraftOrder(kept=1, token=None, count=_WINDOW))
        return drafter.collect().seconds / _WINDOW

    none = torch.zeros(1, dtype=torch.int64, device=target.device)

    def target_seconds(count: int) -> float:
        passes["target"] += 1
        window = token.expand(1, count)
        layout = chain_layout(*window.shape, window.device)
        began = time.perf_counter()
        target.forward(window, layout.mask, layout.depth).logits.argmax().item()
        target.commit(None, none)
        return time.perf_counter() - began

    def warm_median(measure: Callable[[], float]) -> float:
        measure()
        return statistics.median(measure() for _ in range(repeats))

    of_drafter, of_target = warm_median(draft_seconds), warm_median(partial(target_seconds, 1))
    length = draft_length_of(of_target, of_drafter)
    while length < longest:
        of_target = warm_median(partial(target_seconds, length))
        longer = min(longest, draft_length_of(of_target, of_drafter))
        if longer <= length:
            break
        length = longer
    return DraftLength(length, of_target, of_drafter, passes["target"], passes["draft"])
