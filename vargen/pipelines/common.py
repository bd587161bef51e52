"""What the pipelines of all families share: checks of arguments, random streams, the decode call, and what is returned.

Belongs here: what knows tokens, pictures and diffusers' conventions, and no model. Does not belong here: prompts as a
family reads them, pixels as it makes them, and the decode loop (`specdecode.loop`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.utils import BaseOutput
from torch import Tensor

from specdecode.finite import NotFiniteError as LogitsError
from specdecode.loop import DecodeResult
from specdecode.roles import DecodeState, Target
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.skipping import new_run
from specdecode.trace import DecodeTrace
from vargen.base import bounds
from vargen.base.errors import NotFiniteError, UserError
from vargen.methods.base import Method
from vargen.pipelines.compilation import compile_time_apart
from vargen.pipelines.components.base import KeptBetweenBatches

OUTPUT_TYPES = ("pil", "np", "pt", "latent")
CALLBACK_TENSORS = ("tokens", "lengths")
"""What `callback_on_step_end` can be given: fields of `specdecode.roles.DecodeState`."""

StepCallback = Callable[[Any, int, Tensor, dict[str, Tensor]], Any]


class PromptWarning(UserWarning):
    """A prompt of which the model will not read every word."""


@dataclass
class AutoregressivePipelineOutput(BaseOutput):
    """Pictures, the tokens they are made of, and what they cost.

    Args:
        images: as `output_type` asks: "pil" a list of B images, "np" float32 [B, H, W, 3] in [0, 1], "pt" float32
            [B, 3, H, W] in [0, 1], "latent" int64 [B, grid, grid] codes. Images of one prompt follow each other.
        tokens: int64 [B, grid * grid] codes in raster order, whatever `output_type` is.
        trace: target passes (the prefill is one), and seconds by phase: "encode_prompt", "prefill", "decode" and
            "decode_images".
    """

    images: list[PIL.Image.Image] | np.ndarray | torch.Tensor
    tokens: torch.Tensor
    trace: DecodeTrace


@dataclass(frozen=True)
class StepReport:
    """Who is told after every target pass, and what.

    Args:
        callback: called as `callback(pipeline, step, lengths, tensors)`; None: nobody. It may look, not change: what it
            returns is ignored.
        tensor_inputs: which of `CALLBACK_TENSORS` it gets; a callback of diffusers' `PipelineCallback` names its own.

    Raises:
        UserError: a tensor that there is none of.
    """

    callback: StepCallback | None = None
    tensor_inputs: Sequence[str] = ("tokens",)

    def __post_init__(self) -> None:
        if self.callback is not None and hasattr(self.callback, "tensor_inputs"):
            object.__setattr__(self, "tensor_inputs", self.callback.tensor_inputs)
        unknown = [name for name in self.tensor_inputs if name not in CALLBACK_TENSORS]
        if unknown:
            raise UserError(f"callback_on_step_end_tensor_inputs must be among {list(CALLBACK_TENSORS)}, got {unknown}")

    def send(
        self,
        pipeline: DiffusionPipeline,
        step: int,
        state: DecodeState,
        pictures: Sequence[int | None] | None = None,
    ) -> None:
        """Tell the callback; in a stream also which picture each row is of, as "pictures"."""
        if self.callback is not None:
            tensors: dict[str, Any] = {name: getattr(state, name) for name in self.tensor_inputs}
            if pictures is not None:
                tensors["pictures"] = pictures
            self.callback(pipeline, step, state.lengths, tensors)


def check_picture_arguments(
    height: int | None, width: int | None, image_size: int, num_images_per_prompt: int, output_type: str
) -> None:
    """Refuse another size than the only one a model makes, no picture, and an unknown type. Raises UserError."""
    for name, size in (("height", height), ("width", width)):
        if size is not None and size != image_size:
            raise UserError(f"{name} must be {image_size}, the only size this model makes, got {size}")
    check_count_and_type(num_images_per_prompt, output_type)


def check_count_and_type(num_images_per_prompt: int, output_type: str = "latent") -> None:
    """Refuse no picture, and an unknown type. Raises UserError."""
    bounds.check_number("num_images_per_prompt", num_images_per_prompt, 1, bounds.MAX_BATCH_SIZE)
    if output_type not in OUTPUT_TYPES:
        raise UserError(f"output_type must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}")


def check_prompts(prompt: str | Sequence[str] | None) -> list[str]:
    """One or several prompts as a list. Raises UserError for none, an empty one, or what is no text."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt or ())
    if not prompts:
        raise UserError("prompt must hold at least one prompt, got an empty list")
    for index, text in enumerate(prompts):
        if not isinstance(text, str):
            raise UserError(f"prompt must be a string or a list of strings, got {type(text).__name__}")
        if not text.strip():
            which = "prompt" if isinstance(prompt, str) else f"prompt {index + 1}"
            raise UserError(f"{which} is empty; describe the picture in words")
    return prompts


def check_sampling(temperature: float, top_k: int, top_p: float, guidance_scale: float) -> SamplingConfig:
    """How tokens are drawn. Raises UserError for a setting out of range, guidance among them."""
    bounds.check_sampling(temperature, top_k, top_p, guidance_scale)
    return SamplingConfig(temperature, top_k, top_p)


def random_streams(
    generator: torch.Generator | Sequence[torch.Generator] | None, batch_size: int, device: torch.device
) -> RandomStreams:
    """One stream per picture. A single generator for several pictures gives each its own stream, in order.

    Raises:
        UserError: a list of another length than there are pictures.
    """
    if generator is None or isinstance(generator, torch.Generator):
        return RandomStreams.from_generators([generator] * batch_size, device)
    generators = list(generator) if isinstance(generator, Iterable) else [generator]
    if wrong := [each for each in generators if not isinstance(each, torch.Generator | None)]:
        raise UserError(
            f"generator must hold torch.Generator objects, got {wrong[0]!r}; manual_seed makes one of a seed"
        )
    if len(generators) != batch_size:
        raise UserError(f"generator must be one per picture, {batch_size} here, or a single one; got {len(generators)}")
    return RandomStreams.from_generators(generators, device)


def decode_pictures(
    pipeline: DiffusionPipeline,
    target: Target,
    players: Method,
    num_tokens: int,
    sampling: SamplingConfig,
    streams: RandomStreams,
    trace: DecodeTrace,
    report: StepReport,
) -> DecodeResult:
    """The decode loop under the pipeline's progress bar, which counts the tokens of the slowest picture.

    Raises:
        NotFiniteError: a picture was drawn from logits that are no numbers.
    """
    pipeline._kept.compile_draws(streams)
    kept, bar = pipeline._kept, pipeline.progress_bar(total=num_tokens)
    with kept.in_use(), compile_time_apart(kept, trace, "decode"), bar as progress:

        def on_step(step: int, state: DecodeState) -> None:
            if players.drafter is None:
                progress.update(1)
            elif not progress.disable:  # reading lengths waits for the device
                progress.update(int(state.lengths.min()) - progress.n)
            report.send(pipeline, step, state)

        try:
            run = new_run(
                target,
                max_new_tokens=num_tokens,
                sampling=sampling,
                streams=streams,
                drafter=players.drafter,
                verifier=players.verifier,
                schedule=players.schedule,
                trace=trace,
            )
            return run.finish(on_step)
        except LogitsError as error:
            raise not_finite(error, error.row, "of the batch") from error


def not_finite(error: LogitsError, picture: int, of_what: str) -> NotFiniteError:
    """The error of a user, for logits that are no numbers; `picture` counts from 0."""
    return NotFiniteError(
        picture,
        f"picture {picture + 1} {of_what}: the model's logits are not finite at step {error.step}: numbers too large "
        f"for its precision or for guidance_scale; give dtype float32 or a smaller scale",
    )


def finished(
    pipeline: DiffusionPipeline,
    make_images: Callable[[], Any],
    tokens: Tensor,
    trace: DecodeTrace,
    return_dict: bool,
) -> AutoregressivePipelineOutput | tuple[Any, Tensor, DecodeTrace]:
    """What a call returns, once tokens are there: images are made, on the trace's clock, and offloaded models freed.

    Args:
        make_images: makes them, as `output_type` asks.
        tokens: int64 [B, N], what was drawn.
        return_dict: an output object instead of the tuple (images, tokens, trace).
    """
    with trace.phase("decode_images"):
        images = make_images()
    pipeline.maybe_free_model_hooks()
    if not return_dict:
        return images, tokens, trace
    return AutoregressivePipelineOutput(images=images, tokens=tokens, trace=trace)


AnyPipeline = TypeVar("AnyPipeline", bound=DiffusionPipeline)


def beside(pipeline: AnyPipeline) -> AnyPipeline:
    """A pipeline of the same modules that may draw, in another thread, while this one does.

    Weights are shared; what a batch leaves for the next, such as a cache of keys and values, is not.
    """
    other = copy.copy(pipeline)
    other._kept = KeptBetweenBatches(compiler=pipeline._kept.compiler)
    return other
