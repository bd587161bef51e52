"""Decoding answers: the arguments of a run, its result, and the run itself.

Belongs here: steps of all methods. Does not belong here: which players a method asks for (`vargen.video.methods`), and
loops of another kind (`parallel_pair.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specdecode import loop
from specdecode.roles import DecodeState
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.video.methods.base import OwnLoop, VideoMethod


@dataclass(frozen=True)
class Generation:
    """How answers are decoded, whatever the method.

    Args:
        max_new_tokens: tokens of an answer, at most.
        sampling: how tokens are drawn.
        seeds: one for each request.
        stop_tokens: any of them ends an answer.
        trace: where to record.
        on_step: see `specdecode.loop.decode`.
    """

    max_new_tokens: int
    sampling: SamplingConfig
    seeds: Sequence[int]
    stop_tokens: Sequence[int]
    trace: DecodeTrace
    on_step: Callable[[int, DecodeState], None] | None = None

    def of_loop(self, device: torch.device) -> dict[str, Any]:
        """The same as arguments of a decode loop."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "sampling": self.sampling,
            "streams": RandomStreams.from_seeds(self.seeds, device=device),
            "stop_token": self.stop_tokens,
            "on_step": self.on_step,
            "trace": self.trace,
        }


@dataclass(frozen=True)
class FirstUse:
    """Forward passes, those over prompts included, that a method makes once and no answer needs: a draft head is
    checked beside its target, or the length of a window is measured. They are in no other count."""

    target_passes: int = 0
    draft_passes: int = 0


@dataclass(frozen=True)
class Decoded:
    """What was decoded.

    Args:
        token_ids: of every row, with the stop token, if one came.
        run_lengths: of parallel decoding: draft tokens accepted between two rejections; else empty.
        draft_passes: forward passes of the network that drafts, those over prompts included; None where none drafts.
        draft_prompt_passes: those over prompts.
        draft_flops: floating-point operations of a draft head's forward passes, output head included; else None.
        first_use: what decoding did beside the answer.
    """

    token_ids: list[list[int]]
    run_lengths: tuple[int, ...] = ()
    draft_passes: int | None = None
    draft_prompt_passes: int = 0
    draft_flops: int | None = None
    first_use: FirstUse = field(default_factory=FirstUse)

    @classmethod
    def from_result(cls, result: loop.DecodeResult, **account: Any) -> Decoded:
        """What a decode loop returned."""
        rows = zip(result.tokens.tolist(), result.lengths.tolist(), strict=True)
        return cls([tokens[:length] for tokens, length in rows], **account)


def decode(method: VideoMethod | OwnLoop, generation: Generation) -> Decoded:
    """Decode answers with the players of a method, or by its own loop.

    Raises:
        UserError: a worker of the method failed.
    """
    if not isinstance(method, VideoMethod):
        return method.decode(generation)
    target, network = method.target, method.network
    result = loop.decode(
        target,
        drafter=method.drafter,
        verifier=method.verifier,
        profile=target.device.type == "cpu",  # elsewhere the clock would make the host wait for the device
        **generation.of_loop(target.device),
    )
    if network is None:
        return Decoded.from_result(result)
    return Decoded.from_result(
        result,
        draft_passes=network.forward_passes,
        draft_prompt_passes=network.prompt_passes,
        draft_flops=network.flops,
    )
