"""transformers' own assisted generation, with the same account as the project's methods: what a user has without it.

Since transformers 5.3 its drafter is never shown the video: the prompt's placeholders reach it as words. What it says
stays right, since the target verifies; it drafts blindly.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace, StepRecord
from vargen.errors import UserError
from vargen.video.methods.catalogue import AssistedConfig
from vargen.video.prompt import Prompt


def assisted_answer(
    prompt: Prompt, config: AssistedConfig, sampling: SamplingConfig, max_new_tokens: int, seed: int
) -> tuple[list[int], DecodeTrace]:
    """Token ids of an answer, and a trace made from watching the target's forwards.

    Raises:
        UserError: there is no smaller model.
    """
    if prompt.draft_model is None:
        raise UserError("draft_model must be given: assisted generation drafts with a smaller model")
    trace = DecodeTrace(1, prompt.model.device)
    # Of each forward: tokens in the cache before it, tokens it was fed, and when it was over.
    passes: list[tuple[int, int, float]] = []

    def watch(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> None:
        after = int(output.past_key_values.get_seq_length())
        fed = int(output.last_hidden_state.shape[1])
        passes.append((after - fed, fed, time.perf_counter()))

    assistant_settings = prompt.draft_model.generation_config
    assistant_settings.num_assistant_tokens = config.draft_length
    assistant_settings.num_assistant_tokens_schedule = "constant"
    assistant_settings.assistant_confidence_threshold = 0.0
    drawing = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    began = time.perf_counter()
    handle = prompt.model.model.language_model.register_forward_hook(watch, with_kwargs=True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tokens: Tensor = prompt.model.generate(
                **prompt.inputs,
                assistant_model=prompt.draft_model,
                max_new_tokens=max_new_tokens,
                do_sample=not sampling.is_greedy,
                **({} if sampling.is_greedy else drawing),
            )
    finally:
        handle.remove()
    ended = time.perf_counter()
    length = int(prompt.inputs["input_ids"].shape[1])
    token_ids = tokens[0, length:].tolist()
    trace.record_prefill()
    trace.phase_seconds.update(prefill=passes[0][2] - began, decode=ended - passes[0][2])
    # The first forward may bring drafted tokens with the prompt; what it kept shows in the cache before the next.
    committed = [before - length for before, _, _ in passes[1:]] + [len(token_ids) - 1]
    for (before, fed, _), following in zip(passes[1:], committed[1:], strict=True):
        emitted = following - (before - length)
        trace.record_step(_record(fed - 1, emitted))
    return token_ids, trace


def _record(drafted: int, emitted: int) -> StepRecord:
    def row(value: int) -> Tensor:
        return torch.tensor([value])

    return StepRecord(torch.tensor([True]), row(drafted), row(max(emitted - 1, 0)), row(emitted), row(0))
