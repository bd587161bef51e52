"""ParallelVLM for an answerer: the drafter's side of a pair, in a process of its own or by turns in this one.

Belongs here: what the drafter's side is built from, what is told to it, and the length of a window. Does not belong
here: the rounds, the messages and the processes (`specdecode.parallel`).

Source: ParallelVLM (arXiv 2603.19610). While the target is still in the upper layers of its prefill, what its lower
ones made of the video decides which visual tokens the drafter is shown (UV-Prune).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from specdecode.parallel import (
    DraftChannel,
    DrafterError,
    DraftProcess,
    DraftSource,
    InTurnChannel,
    ParallelResult,
    ThreadChannel,
    decode_parallel,
    measure_draft_length,
)
from vargen.errors import UserError
from vargen.methods.catalogue import AUTO
from vargen.video.methods.catalogue import ParallelConfig
from vargen.video.prompt import Prompt, pruning_layer, visual_gain_scorer
from vargen.video.pruned_draft import PrunedDraft
from vargen.video.pruning import keep_highest, keep_uniform
from vargen.video.request import VideoRequest, keep_share, prepare_request
from vargen.video.target import VideoTarget


@dataclass(frozen=True)
class DraftPrompt:
    """What the drafter's side makes a request of; small enough to travel.

    Args:
        inputs: of the processor.
        compact: give what is left consecutive positions.
        vocab_size: of the logits that are compared.
    """

    inputs: Mapping[str, Tensor]
    compact: bool
    vocab_size: int


class ParallelPair:
    """The drafter's side, ready for any number of answers.

    Args:
        model: the target's.
        draft_model: the smaller one, or None.
        config: whose weights draft, and where.

    Raises:
        UserError: there is no smaller model, or one that has no folder to be loaded from by another process.
    """

    def __init__(self, model: Any, draft_model: Any | None, config: ParallelConfig) -> None:
        drafter = model if config.drafter == "self" else draft_model
        if drafter is None:
            raise UserError('draft_model must be given: this method drafts with a smaller model; or set drafter "self"')
        self.channel: DraftChannel
        if config.workers == "processes":
            if not drafter.name_or_path:
                raise UserError("draft_model must be loaded from a folder, so that the drafter's process can load it")
            dtype = str(drafter.dtype).removeprefix("torch.")
            self.channel = DraftProcess(partial(_load_source, drafter.name_or_path, str(drafter.device), dtype))
        elif config.workers == "threads":
            self.channel = ThreadChannel(_source_of(drafter), drafter.device)
        else:
            self.channel = InTurnChannel(_source_of(drafter))
        self.failed = False
        self._lengths: dict[ParallelConfig, int] = {}

    def close(self) -> None:
        """End the drafter's process, if there is one."""
        self.channel.close()

    def decode(self, prompt: Prompt, config: ParallelConfig, **settings: Any) -> ParallelResult:
        """As `specdecode.parallel.decode_parallel`, with the arguments that are not given here.

        Raises:
            UserError: the drafter's process has died, with its reason.
        """
        # What the drafter is shown travels from the processor, not through this process's vision tower.
        draft_prompt = DraftPrompt(prompt.inputs, config.compact, prompt.vocab_size)
        try:
            with _thread_for_the_drafter(config, prompt.model.device):
                if config not in self._lengths:
                    self._lengths[config] = self._draft_length(prompt, config, draft_prompt)
                return decode_parallel(
                    self._target(prompt, config),
                    self.channel,
                    draft_length=self._lengths[config],
                    prompt=draft_prompt,
                    **settings,
                )
        except DrafterError as error:
            self.failed = True
            self.close()
            raise UserError(f"{config.name}: {error}") from error

    def _draft_length(self, prompt: Prompt, config: ParallelConfig, draft_prompt: DraftPrompt) -> int:
        if config.draft_length != AUTO:
            return int(config.draft_length)
        return measure_draft_length(self._target(prompt, config), self.channel, prompt=draft_prompt).tokens

    def _target(self, prompt: Prompt, config: ParallelConfig) -> VideoTarget:
        """The target, which tells the drafter what to watch as soon as it knows."""
        request = prompt.request
        before, gain_between = request.inputs_embeds[0], visual_gain_scorer(request)

        def keep(choose: Callable[[int, int], Tensor]) -> None:
            self.channel.hint(keep_share(request, config.keep_ratio, choose))

        def whole_prompt(states: Tensor) -> None:
            if config.pruning == "uniform":
                keep(keep_uniform)

        def early_layer(states: Tensor) -> None:
            gain = gain_between(before, states)
            keep(lambda shown, budget: keep_highest(gain[:shown], budget))

        on_layer: dict[int, Callable[[Tensor], None]] = {0: whole_prompt}
        if config.pruning == "visual_gain":
            on_layer[pruning_layer(config, prompt.model)] = early_layer
        return VideoTarget(prompt.model, request, vocab_size=prompt.vocab_size, on_layer=on_layer)


@contextmanager
def _thread_for_the_drafter(config: ParallelConfig, device: torch.device) -> Iterator[None]:
    """On a CPU, leave a core to the other side: threads that wait for one halve the speed of both."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or config.workers == "in_turn" or threads == 1:
        yield
        return
    torch.set_num_threads(threads - 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _load_source(folder: str, device: str, dtype: str) -> DraftSource:
    """In the drafter's process: load the weights."""
    transformers_logging.disable_progress_bar()
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=getattr(torch, dtype))
    return _source_of(model.to(device).eval().requires_grad_(False))


def _source_of(model: Any) -> DraftSource:
    def source(prompt: DraftPrompt, hint: Callable[[], Tensor | None]) -> PrunedDraft:
        inputs = {name: value.to(model.device) for name, value in prompt.inputs.items() if isinstance(value, Tensor)}
        # The vision tower runs before the hint is waited for.
        request: VideoRequest = prepare_request(model, inputs)

        def chosen() -> Tensor:
            kept = hint()
            return torch.arange(request.num_visual) if kept is None else kept

        return PrunedDraft(model, request, chosen, compact=prompt.compact, vocab_size=prompt.vocab_size)

    return source
