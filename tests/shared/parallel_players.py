"""Drafters for other processes, which import this file by its name: the folder must be on `sys.path` there.

Belongs here: what the tests of `specdecode.runs.parallel.two_processes` send to another process, and nothing else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from synthetic import MarkovTarget, random_table
from torch import Tensor

from specdecode.roles import TargetOutput

VOCAB, LENGTH = 20, 30
PROMPT = torch.tensor([[1, 3]])


def target_table() -> Tensor:
    return random_table(VOCAB, seed=7, scale=2.0)


def draft_table() -> Tensor:
    return target_table() + random_table(VOCAB, seed=8, scale=1.0)


class Dies(MarkovTarget):
    """Is killed in its third pass, as if by the system."""

    passes = 0

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        self.passes += 1
        if self.passes == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(tokens, mask, depths)


def source(prompt: Any, hint: Callable[[], Tensor | None]) -> MarkovTarget:
    """The prompt says what to do."""
    if prompt == "missing":
        raise FileNotFoundError("no such video: missing.mp4")
    if prompt == "needs a hint":
        numbers = hint()
        if numbers is None or numbers.tolist() != [4, 2, 2**40]:
            raise ValueError(f"the hint is {numbers}")
    kind = Dies if prompt == "dies" else MarkovTarget
    return kind(draft_table(), PROMPT, LENGTH)


def build() -> Callable[..., MarkovTarget]:
    return source


def build_badly() -> Callable[..., MarkovTarget]:
    raise OSError("no weights here")
