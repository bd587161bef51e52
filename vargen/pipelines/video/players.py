"""Who decodes an answer, and what comes of it.

Belongs here: what all methods hand back, and the players of those that play in `specdecode.loop.decode`. Does not
belong here: which players a method asks for (`vargen.methods.video`), and loops of another kind (`parallel_pair.py`,
`methods/assisted.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.draft_model import DraftModel, DraftModelDrafter
from specdecode.loop import DecodeResult, decode
from specdecode.roles import DecodeState, Drafter, Verifier
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.drafters.video_draft_head import VideoDraftHead
from vargen.models.video_llms.target import VideoTarget


@dataclass(frozen=True)
class Generation:
    """How answers are decoded, whatever the method.

    Args:
        max_new_tokens: at most so many.
        sampling: how tokens are drawn.
        seeds: of the requests.
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
class Decoded:
    """What was decoded.

    Args:
        token_ids: of every row, the stop token included, where there is one.
        run_lengths: of parallel decoding: drafted tokens accepted between two rejections; else empty.
        draft_passes: forwards of the drafter, its prompt's included; None where it has no network of its own beside
            the target, in this process.
        draft_flops: floating-point operations of a trained drafter's forwards, output head included; else None.
    """

    token_ids: list[list[int]]
    run_lengths: tuple[int, ...] = ()
    draft_passes: int | None = None
    draft_flops: int | None = None

    @classmethod
    def from_result(cls, result: DecodeResult, **account: Any) -> Decoded:
        """Of a decode loop."""
        rows = zip(result.tokens.tolist(), result.lengths.tolist(), strict=True)
        return cls([tokens[:length] for tokens, length in rows], **account)


class VideoDecoder(Protocol):
    """What a method builds."""

    def decode(self, generation: Generation) -> Decoded:
        """Decode the answers. Raises UserError where a worker of the method fails."""
        ...


@dataclass
class Players:
    """As `specdecode.loop.decode` takes them.

    Args:
        verifier: None: the exact one.
        network: what the drafter drafts with, where that is a model or a trained head beside the target.
    """

    target: VideoTarget
    drafter: Drafter | None = None
    verifier: Verifier | None = None
    network: VideoTarget | VideoDraftHead | None = None

    def decode(self, generation: Generation) -> Decoded:
        """See `VideoDecoder`."""
        device, network = self.target.device, self.network
        result = decode(
            self.target,
            drafter=self.drafter,
            verifier=self.verifier,
            profile=device.type == "cpu",  # where nobody has to wait for it
            **generation.of_loop(device),
        )
        if network is None:
            return Decoded.from_result(result)
        return Decoded.from_result(result, draft_passes=network.forward_passes, draft_flops=network.flops)


def likeliest_chain(model: DraftModel, draft_length: int) -> DraftModelDrafter:
    """A drafter of the model's likeliest tokens: judged by one draw from the target, they are accepted as often as any,
    and never cost exactness."""
    return DraftModelDrafter(model, FixedDraftSize(DraftSize(draft_length + 1, draft_length)), children="top")
