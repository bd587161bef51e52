"""ParallelVLM: the drafter's side of a pair, in a process of its own or by turns in this one, and the target's side.

Belongs here: the parts of the drafter's side, its messages, and the length of a window. Does not belong here: the
rounds, the messages and the processes (`specdecode.runs.parallel`).

Source: ParallelVLM (arXiv 2603.19610). While the target is still in the upper layers of its prefill, the states of the
video in its lower layers decide which visual tokens the drafter is shown (UV-Prune).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specdecode.runs.parallel.channel import DraftChannel, DraftSource
from specdecode.runs.parallel.draft_length import LONGEST, measure_draft_length
from specdecode.runs.parallel.drafter import InTurnChannel
from specdecode.runs.parallel.loop import decode_parallel
from specdecode.runs.parallel.two_processes import DrafterError, DraftProcess
from vargen.base.errors import UserError
from vargen.checkpoints.options import LoadingOptions
from vargen.video.methods.base import SPREADS, Pruning
from vargen.video.models.pruned_draft import PrunedDraft
from vargen.video.models.pruning import keep_highest
from vargen.video.models.request import VideoRequest, keep_share, keep_spread, prepare_request, visual_gain_scorer
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.decoding import Decoded, FirstUse, Generation
from vargen.video.pipelines.loading import LazyModel, open_video_model


@dataclass(frozen=True)
class DraftPrompt:
    """What the drafter's side makes a request from; small enough to travel.

    Args:
        inputs: the processor's output.
        sizes: further options of `PrunedDraft`.
    """

    inputs: Mapping[str, Tensor]
    sizes: Mapping[str, Any]


class ParallelPair:
    """The drafter's side, for any number of answers. It starts with the first answer, and again after a failure.

    Args:
        drafter: the model that drafts; for "processes" it need not be loaded.
        workers: "processes" or "in_turn".
    """

    def __init__(self, drafter: Any, workers: str) -> None:
        self.drafter = drafter
        self.workers = workers
        self.draft_lengths: dict[tuple[Pruning, int], int] = {}  # by the longest that an answer has room for
        self._channel: DraftChannel | None = None

    @property
    def channel(self) -> DraftChannel:
        """The connection to it.

        Raises:
            UserError: the model has no folder to be loaded from by another process.
        """
        if self._channel is None:
            self._channel = self._open()
        return self._channel

    def _open(self) -> DraftChannel:
        drafter = self.drafter
        if self.workers == "in_turn":
            return InTurnChannel(_source_of(drafter))
        if isinstance(drafter, LazyModel):
            return DraftProcess(partial(_load_source, drafter.elsewhere()))
        if not drafter.name_or_path:
            raise UserError("draft_model must be loaded from a folder, so that the drafter's process can load it")
        options = LoadingOptions(device=str(drafter.device), dtype=str(drafter.dtype).removeprefix("torch."))
        return DraftProcess(partial(_load_source, LazyModel(open_video_model(drafter.name_or_path), options)))

    def close(self) -> None:
        """End the drafter's process, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @contextmanager
    def a_core_left(self) -> Iterator[None]:
        """Leave a core to the other side on a CPU: waiting for one halves the speed of both."""
        threads = torch.get_num_threads()
        if self.drafter.device.type != "cpu" or self.workers == "in_turn" or threads == 1:
            yield
            return
        torch.set_num_threads(threads - 1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class ParallelLoop:
    """Decodes an answer with a target that says which visual tokens the draft model is shown as soon as it knows.

    Args:
        pair: the drafter's side.
        target: makes the target; its option is `VideoTarget`'s `on_layer`.
        request: gives the target's request.
        inputs: the processor's output for the prompt, which travels to the drafter's side.
        sizes: further options of `PrunedDraft`.
        pruning: which visual tokens the draft model is shown, a spread or by "visual_gain".
        draft_length: tokens of a window; None measures once how many are drafted during a forward pass of the target.
    """

    def __init__(
        self,
        pair: ParallelPair,
        target: Callable[..., VideoTarget],
        request: Callable[[], VideoRequest],
        inputs: Mapping[str, Tensor],
        sizes: Mapping[str, Any],
        pruning: Pruning,
        draft_length: int | None,
    ) -> None:
        self.pair, self.pruning, self.draft_length = pair, pruning, draft_length
        self._make_target, self._request = target, request
        if pair.workers == "processes":  # another process would open the device that a tensor lay on
            inputs = {name: value.cpu() for name, value in inputs.items() if isinstance(value, Tensor)}
        self._room = sizes["max_new_tokens"]
        # No window is longer than the answer. A short one is drafted to measure how long it should be.
        sizes = {**sizes, "max_new_tokens": max(sizes["max_new_tokens"], 16)}
        self._draft_prompt = DraftPrompt(inputs, sizes)

    def decode(self, generation: Generation) -> Decoded:
        """Decode the answer. Raises UserError where the drafter's side fails, with its reason."""
        try:
            with self.pair.a_core_left():
                window, first_use = self._window()
                target = self._target()
                result = decode_parallel(
                    target,
                    self.pair.channel,
                    draft_length=window,
                    prompt=self._draft_prompt,
                    **generation.of_loop(target.device),
                )
        except DrafterError as error:
            self.pair.close()
            raise UserError(f"parallelvlm: {error}") from error
        account = result.account
        return Decoded.from_result(
            result,
            run_lengths=tuple(account.run_lengths),
            draft_passes=account.draft_passes,
            draft_prompt_passes=1,
            first_use=first_use,
        )

    def _window(self) -> tuple[int, FirstUse]:
        """Tokens of a window, and what measuring them took."""
        if self.draft_length is not None:
            return self.draft_length, FirstUse()
        known, longest = self.pair.draft_lengths, min(LONGEST, self._room)
        if (self.pruning, longest) in known:
            return known[self.pruning, longest], FirstUse()
        measured = measure_draft_length(self._target(), self.pair.channel, prompt=self._draft_prompt, longest=longest)
        known[self.pruning, longest] = measured.tokens
        return measured.tokens, FirstUse(measured.target_passes, measured.draft_passes)

    def _target(self) -> VideoTarget:
        request, channel, ratio = self._request(), self.pair.channel, self.pruning.keep_ratio
        before, gain_between = request.inputs_embeds[0], visual_gain_scorer(request)
        if self.pruning.by in SPREADS:
            # Chosen now, where waiting for the device is cheap: the hint is given in the middle of the prefill.
            kept = keep_spread(request, ratio, self.pruning.by, self.pruning.seed)
            return self._make_target(on_layer={0: lambda states: channel.hint(kept)})

        def by_gain(states: Tensor) -> None:
            gain = gain_between(before, states)
            channel.hint(keep_share(request, ratio, lambda shown, count: keep_highest(gain[:shown], count)))

        return self._make_target(on_layer={self.pruning.layer: by_gain})


def _load_source(model: LazyModel) -> DraftSource:
    """In the drafter's process: load the weights."""
    return _source_of(model.load())


def _source_of(model: Any) -> DraftSource:
    def source(prompt: DraftPrompt, hint: Callable[[], Tensor | None]) -> PrunedDraft:
        inputs = {name: value.to(model.device) for name, value in prompt.inputs.items() if isinstance(value, Tensor)}
        # The vision tower runs before the hint is waited for.
        request: VideoRequest = prepare_request(model, inputs)

        def chosen(row: int) -> Tensor:
            kept = hint()
            return torch.arange(request.num_visual) if kept is None else kept.to(model.device)

        return PrunedDraft(model, request, chosen, **prompt.sizes)

    return source
