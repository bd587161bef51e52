"""transformers' own assisted generation, watched, with the same trace as the project's methods.

Since transformers 5.3 the draft model is never shown the video: it reads the prompt's placeholders as words. The target
verifies, so the answer stays right.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from specdecode.targets.arguments import cache_among
from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Decoded, Generation


@dataclass
class AssistedLoop:
    """`model.generate(assistant_model=...)`.

    Args:
        model, draft_model: of transformers.
        inputs: the processor's output for the prompt.
        draft_length: draft tokens of a step.
        repetition_penalty: of `generate`; 1 does nothing.

    Raises:
        UserError: models with different numbers of tokens, which transformers refuses.
    """

    model: Any
    draft_model: Any
    inputs: Mapping[str, Tensor]
    draft_length: int
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        own, other = (int(each.config.get_text_config().vocab_size) for each in (self.model, self.draft_model))
        if own != other:
            raise UserError(
                f"assisted: transformers takes only models with equally many tokens, padding included; these have "
                f"{own:,} and {other:,}; use method sd, which compares only the shared ones"
            )

    def decode(self, generation: Generation) -> Decoded:
        """Decode the answer. The trace is made from watching the target's forward passes.

        Raises:
            UserError: tokens are to be drawn, which transformers does in an order of its own.
        """
        if not generation.sampling.is_greedy:
            raise UserError(
                "temperature must be 0 for method assisted: transformers draws so that a seed gives another answer "
                "than plain decoding; set it to 0, or take method sd"
            )
        trace = generation.trace
        # Each forward pass has the tokens in the cache before it, the tokens fed, and when it ended.
        passes: list[tuple[int, int, float]] = []
        draft_passes = 0

        def watch(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> None:
            after = int(cache_among(output).get_seq_length())
            fed = int(output.last_hidden_state.shape[1])
            passes.append((after - fed, fed, time.perf_counter()))

        def count(*_: Any) -> None:
            nonlocal draft_passes
            draft_passes += 1

        assistant_settings = self.draft_model.generation_config
        assistant_settings.num_assistant_tokens = self.draft_length
        assistant_settings.num_assistant_tokens_schedule = "constant"
        assistant_settings.assistant_confidence_threshold = 0.0
        began = time.perf_counter()
        handle = architecture_of(self.model).decoder(self.model).register_forward_hook(watch, with_kwargs=True)
        of_drafter = architecture_of(self.draft_model).decoder(self.draft_model).register_forward_hook(count)
        try:
            tokens = self.model.generate(
                **self.inputs,
                assistant_model=self.draft_model,
                max_new_tokens=generation.max_new_tokens,
                do_sample=False,
                repetition_penalty=self.repetition_penalty,
            )
        finally:
            handle.remove()
            of_drafter.remove()
        ended = time.perf_counter()
        length = int(self.inputs["input_ids"].shape[1])
        token_ids = tokens[0, length:].tolist()
        trace.record_prefill()
        trace.phase_seconds.update(prefill=passes[0][2] - began, decode=ended - passes[0][2])
        # The first forward pass may feed draft tokens with the prompt; the next one's cache shows what it kept.
        committed = [before - length for before, _, _ in passes[1:]] + [len(token_ids) - 1]
        for (before, fed, _), following in zip(passes[1:], committed[1:], strict=True):
            emitted = following - (before - length)
            counts = (torch.tensor([count]) for count in (fed - 1, max(emitted - 1, 0), emitted, 0))
            trace.record_step(torch.tensor([True]), *counts)
        return Decoded([token_ids], draft_passes=draft_passes, draft_prompt_passes=1)


@dataclass(frozen=True)
class AssistedConfig(VideoMethodConfig):
    """transformers' own assisted generation with the draft model, for comparison. It is greedy only."""

    name: ClassVar[str] = "assisted"
    summary: ClassVar[str] = "transformers' own assisted generation (its drafter never sees the video)"
    exact: ClassVar[bool] = True
    one_at_a_time: ClassVar[bool] = True

    draft_length: int = option(5, least=1, most=MAX_DRAFT)
    """Tokens of a chain."""

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        self._need_draft_model(paired)

    def _players(self, components: VideoLLMComponents) -> AssistedLoop:
        (inputs,) = components.inputs
        draft_model, penalty = components.draft_weights("pair"), components.repetition_penalty
        return AssistedLoop(components.model, draft_model, inputs, self.draft_length, penalty)
