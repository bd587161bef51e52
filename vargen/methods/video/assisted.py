"""transformers' own assisted generation, with the same account as the project's methods: what a user has without it.

Since transformers 5.3 its drafter is never shown the video: the prompt's placeholders reach it as words. What it says
stays right, since the target verifies; it drafts blindly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.methods.video.base import VideoMethodConfig

if TYPE_CHECKING:
    from collections.abc import Collection

    from specdecode.trace import StepRecord
    from vargen.pipelines.video.players import Decoded, Generation
    from vargen.pipelines.video.prompt import Prompt


@dataclass(frozen=True)
class AssistedConfig(VideoMethodConfig):
    """transformers' own assisted generation with the smaller model, for comparison.

    Args:
        draft_length: tokens of a chain.
    """

    name: ClassVar[str] = "assisted"
    summary: ClassVar[str] = "transformers' own assisted generation (its drafter never sees the video)"
    exact: ClassVar[bool] = True

    draft_length: int = 5

    def __post_init__(self) -> None:
        self._number("draft_length", 1, MAX_DRAFT, whole=True)

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        """Refuse it without a smaller model. Raises UserError."""
        self._need_smaller_model(paired)

    def build(self, prompt: Prompt) -> AssistedGeneration:
        """Both models. Raises UserError where there is no smaller one."""
        self.check_drafter((), prompt.draft_model is not None)
        prompt.check_single(self.name)
        sizes = [vocab_size(model) for model in (prompt.model, prompt.draft_model)]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"{self.name}: transformers takes only models with as many tokens, {sizes[0]:,} and {sizes[1]:,} here, "
                f"be they padding; use sd, which needs no more than the same words"
            )
        return AssistedGeneration(prompt, self.draft_length)


def vocab_size(model: Any) -> int:
    """Tokens of a model, padding of its matrices included."""
    return int(model.config.get_text_config().vocab_size)


@dataclass
class AssistedGeneration:
    """`model.generate(assistant_model=...)`, watched."""

    prompt: Prompt
    draft_length: int

    def decode(self, generation: Generation) -> Decoded:
        """See `vargen.pipelines.video.players.VideoDecoder`; the trace is made from watching the target's forwards."""
        import torch

        from specdecode.targets.arguments import cache_among
        from vargen.models.video_llms.architectures.catalogue import architecture_of
        from vargen.pipelines.video.players import Decoded

        prompt, sampling, trace = self.prompt, generation.sampling, generation.trace
        # Of each forward: tokens in the cache before it, tokens it was fed, and when it was over.
        passes: list[tuple[int, int, float]] = []

        def watch(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> None:
            after = int(cache_among(output).get_seq_length())
            fed = int(output.last_hidden_state.shape[1])
            passes.append((after - fed, fed, time.perf_counter()))

        draft_model: Any = prompt.draft_weights("pair")
        assistant_settings = draft_model.generation_config
        assistant_settings.num_assistant_tokens = self.draft_length
        assistant_settings.num_assistant_tokens_schedule = "constant"
        assistant_settings.assistant_confidence_threshold = 0.0
        drawing = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        began = time.perf_counter()
        handle = architecture_of(prompt.model).decoder(prompt.model).register_forward_hook(watch, with_kwargs=True)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(generation.seeds[0])
                tokens = prompt.model.generate(
                    **prompt.inputs[0],
                    assistant_model=draft_model,
                    max_new_tokens=generation.max_new_tokens,
                    do_sample=not sampling.is_greedy,
                    repetition_penalty=prompt.repetition_penalty,
                    **({} if sampling.is_greedy else drawing),
                )
        finally:
            handle.remove()
        ended = time.perf_counter()
        length = int(prompt.inputs[0]["input_ids"].shape[1])
        token_ids = tokens[0, length:].tolist()
        trace.record_prefill()
        trace.phase_seconds.update(prefill=passes[0][2] - began, decode=ended - passes[0][2])
        # The first forward may bring drafted tokens with the prompt; what it kept shows in the cache before the next.
        committed = [before - length for before, _, _ in passes[1:]] + [len(token_ids) - 1]
        for (before, fed, _), following in zip(passes[1:], committed[1:], strict=True):
            emitted = following - (before - length)
            trace.record_step(_record(fed - 1, emitted))
        return Decoded([token_ids])


def _record(drafted: int, emitted: int) -> StepRecord:
    import torch

    from specdecode.trace import StepRecord

    def row(value: int) -> torch.Tensor:
        return torch.tensor([value])

    return StepRecord(torch.tensor([True]), row(drafted), row(max(emitted - 1, 0)), row(emitted), row(0))
