"""The steps that every family shares, from checked arguments to pictures.

Belongs here: decoding one batch under diffusers' conventions, and what a call returns. Does not belong here: what a
family reads and makes (prompts as tokens, tokens as pixels), arguments (`arguments.py`), many pictures that take each
other's places (`streaming.py`), and the decode loop (`specdecode.loop`).

A family is a file with a subclass of `StreamingPipeline`, or of `TransformersPipeline` for a model of transformers. Its
`__call__` names the arguments, checks them, and describes in a `PictureRequest` how a batch starts and how its tokens
become pictures. The decorator `draws` and `StreamingPipeline.stream` draw what it describes.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np
import PIL.Image
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.utils import BaseOutput
from torch import Tensor

from specdecode.graphs.default_torch_mode import ordinary_tensors
from specdecode.loop import needs
from specdecode.roles import DecodeState
from specdecode.runs.skipping import new_run
from specdecode.trace import DecodeTrace
from vargen.base.errors import UserError
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.arguments import CALLBACK_TENSORS, Interrupted, check_prompts, documented, refusals
from vargen.pipelines.call_types import check_evaluating, check_module, checked
from vargen.pipelines.compilation import CompilablePipeline, compile_time_apart
from vargen.pipelines.components.base import ONLY
from vargen.pipelines.lora import LoraPipeline
from vargen.pipelines.quantization import QuantizablePipeline
from vargen.pipelines.request import PictureRequest, finite_logits
from vargen.pipelines.reuse import Reuse
from vargen.pipelines.streaming import Arriving, PictureStream, stream_pictures
from vargen.pipelines.turns import Drawing

ROOM_FOR_PROMPTS = 128
"""Tokens that a prompt may have which joins a stream on the way; more where one that it began with has more."""
AnyPipeline = TypeVar("AnyPipeline", bound="PicturePipeline")
Arguments = ParamSpec("Arguments")


@dataclass
class AutoregressivePipelineOutput(BaseOutput):
    """Pictures, the tokens they are made of, and what they cost.

    Args:
        images: as `output_type` asks: "pil" a list of B images, "np" float32 [B, H, W, 3] in [0, 1], "pt" float32
            [B, 3, H, W] in [0, 1], "latent" int64 [B, rows, columns] codes. Images of one prompt follow each other.
            Pictures of several sizes are a list.
        tokens: int64 [B, N], what was drawn: the codes in raster order, and what a family draws beside them. Behind the
            end of a smaller picture stands 0.
        trace: forward passes of the target (the prefill is one), and seconds by phase: "encode_prompt", "prefill",
            "decode" and "decode_images".
    """

    images: list[PIL.Image.Image] | np.ndarray | torch.Tensor
    tokens: torch.Tensor
    trace: DecodeTrace


CallResult = Any
"""What a call returns: `AutoregressivePipelineOutput`, or images, tokens and trace where `return_dict` is False. No
type says which of the two, so that a type checker lets users read `output.images`."""


class PicturePipeline(CompilablePipeline, QuantizablePipeline, LoraPipeline, DiffusionPipeline):
    """A pipeline of diffusers whose pictures any decoding method draws.

    A family adds `__call__`, `encode_prompt`, `decode_tokens`, `_decoder_layers`, `_adapted` and `_usual_num_tokens`.

    Attributes:
        reuse: what one batch leaves for the next.
    """

    def __init__(self, *components: Any) -> None:
        super().__init__(*components)
        self.reuse = Reuse()

    def __setattr__(self, name: str, value: Any) -> None:
        """Register modules as `DiffusionPipeline` does. Raises UserError for a module that another one wraps."""
        check_module(name, value)
        super().__setattr__(name, value)

    @property
    def _usual_num_tokens(self) -> int:
        """Tokens of a picture of the usual size."""
        raise NotImplementedError

    # Diffusers' names of what a callback may read and change: of the drawing that runs, whoever drew in between.
    @property
    def _guidance_scale(self) -> float:
        return self.reuse.turns.current.guidance_scale

    @_guidance_scale.setter
    def _guidance_scale(self, scale: float) -> None:
        self.reuse.turns.current.guidance_scale = scale

    @property
    def _interrupt(self) -> bool:
        return self.reuse.turns.current.interrupt

    @_interrupt.setter
    def _interrupt(self, end: bool) -> None:
        self.reuse.turns.current.interrupt = end

    @property
    def _num_timesteps(self) -> int:
        return self.reuse.turns.current.num_timesteps

    @_num_timesteps.setter
    def _num_timesteps(self, passes: int) -> None:
        self.reuse.turns.current.num_timesteps = passes

    @property
    def guidance_scale(self) -> float:
        """The guidance scale of the running or the last call. A stream runs between two of its pictures, too."""
        return self._guidance_scale

    @property
    def do_classifier_free_guidance(self) -> bool:
        """Whether the running or the last call is guided."""
        return self._guidance_scale > 1

    @property
    def num_timesteps(self) -> int:
        """Forward passes of the running or the last call so far."""
        return self._num_timesteps

    @property
    def interrupt(self) -> bool:
        """Whether the running or the last call was told to end."""
        return self._interrupt

    @property
    def _own_methods(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings that this model brings along, by the name of the method."""
        return {}

    def resolve_method(
        self, method: str | ImageMethodConfig, options: Mapping[str, Any] | None = None, num_tokens: int | None = None
    ) -> ImageMethodConfig:
        """The settings of a method on this model, with a number for every size that pictures depend on.

        Args:
            method: a name, in the model's own settings where it has some; a preset; or settings.
            options: settings that differ; only with a name or a preset.
            num_tokens: tokens of a picture; None: of one of the usual size.

        Raises:
            UserError: an unknown name or option, or one out of range.
        """
        return resolve_method(method, options, self._own_methods).resolved(num_tokens or self._usual_num_tokens)

    def _draw(self, request: PictureRequest, return_dict: bool) -> CallResult:
        """All pictures of a request as one batch, as a call returns them.

        Raises:
            UserError: a module is in training mode, or a stream is open in another thread.
            NotFiniteError: logits are not finite.
        """
        with self.reuse.turns.taken(Drawing(request.guidance_scale)):
            trace = DecodeTrace(request.count, request.streams.keys.device)
            tokens = self._decode(request, trace)
            return self._finished(lambda: request.images(tokens, range(request.count)), tokens, trace, return_dict)

    def _finished(
        self, make_images: Callable[[], Any], tokens: Tensor, trace: DecodeTrace, return_dict: bool
    ) -> CallResult:
        """What a call returns: images are made, on the trace's clock, and offloaded models leave their device."""
        with self.reuse.turns.lock:
            with trace.phase("decode_images"):
                images = make_images()
            self.maybe_free_model_hooks()
        if not return_dict:
            return images, tokens, trace
        return AutoregressivePipelineOutput(images=images, tokens=tokens, trace=trace)

    def _decode(self, request: PictureRequest, trace: DecodeTrace) -> Tensor:
        """Tokens int64 [B, N] of a request, under a progress bar that counts the tokens of the slowest picture.

        Only within a turn. Raises UserError for a module in training mode.
        """
        check_evaluating(self.components)
        with trace.phase("encode_prompt"), refusals():
            target, players = request.start(range(request.count), ONLY)
        with (
            self.reuse.in_use(),
            compile_time_apart(self.reuse.compiler, trace, "decode"),
            self.progress_bar(total=request.num_tokens) as progress,
            finite_logits(0, "of the batch"),
        ):

            def on_step(step: int, state: DecodeState) -> None:
                if players.drafter is None and players.order is None:
                    progress.update(1)
                elif not progress.disable:  # reading lengths waits for the device
                    progress.update(request.num_tokens - int(needs(state)) - progress.n)
                request.report.send(self, step, state, target)

            run = new_run(
                target,
                max_new_tokens=request.num_tokens,
                sampling=request.sampling,
                streams=request.streams,
                row_tokens=request.row_tokens,
                trace=trace,
                compiler=target.compiler,
                **vars(players),
            )
            try:
                return run.finish(on_step).tokens
            except Interrupted:
                return run.result().tokens


def draws(example: str = "") -> Callable[[Callable[Arguments, PictureRequest]], Callable[Arguments, CallResult]]:
    """Make a family's call of a method that describes a request: its pictures are drawn as one batch.

    The method has the call's arguments, `return_dict` among them. Its docstring is completed by `documented`.

    Args:
        example: the section "Examples" of the docstring.
    """

    def decorate(describe: Callable[Arguments, PictureRequest]) -> Callable[Arguments, CallResult]:
        describe = checked(documented(example)(describe))
        describe.__annotations__["return"] = "CallResult"  # of the call: whoever reads signatures looks through it
        signature = inspect.signature(describe)

        @functools.wraps(describe)
        @ordinary_tensors()
        def call(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> CallResult:
            bound = signature.bind(*arguments, **keywords)
            pipeline: Any = arguments[0]
            return pipeline._draw(describe(*arguments, **keywords), bound.arguments.get("return_dict", True))

        return call

    return decorate


class StreamingPipeline(PicturePipeline):
    """A family whose `__call__` is decorated by `draws`: the same arguments describe a stream of pictures."""

    _callback_tensor_inputs = list(CALLBACK_TENSORS)  # noqa: RUF012 (a diffusers convention)

    def stream(
        self,
        prompt: Sequence[str] | None = None,
        *,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        batch_size: int = 8,
        continuous: bool = True,
        arriving: Callable[[int, Callable[[str], bool]], Sequence[tuple[str, torch.Generator]]] | None = None,
        **arguments: Any,
    ) -> PictureStream:
        """Draw any number of pictures, each given as soon as it is finished.

        The place of a finished picture in the batch goes to the next prompt at once, so that no picture waits for the
        slowest (continuous batches). A picture is that of `__call__` with its seed, whatever is drawn beside it.

        Args:
            prompt: one for each picture.
            generator: one for each picture, or a single one, which gives each a stream of its own, in order.
            batch_size: pictures drawn at once.
            continuous: False: every batch ends with its slowest picture, and only then the next begins. An offloaded
                model always draws so, because it would have to move for every prompt.
            arriving: keeps the batch open for others. It is asked as `arriving(places, fits)` after a forward pass that
                left places free, and gives at most so many prompts with their generators; `fits(prompt)` says whether
                there is room for its tokens. Their numbers follow in the order in which they come. The stream ends when
                no picture is left and none arrives. Nothing joins where `continuous` is False or cannot be.
            **arguments: others of `__call__`, with an entry for each picture where they stand for prompts. The callback
                also gets `tensors["pictures"]`: the number of the picture in each row, None where a row idles at the
                end.

        Returns:
            An iterable of `FinishedPicture`, in the order in which they are finished. Nothing is drawn before the first
            picture is asked for.

        Raises:
            UserError: as `__call__`; also `batch_size` out of range. Where another thread has a stream open, when a
                picture is asked for.
        """
        describe = inspect.unwrap(type(self).__call__)  # the method that `draws` decorates

        def described(prompts: Sequence[str] | None, generators: Any) -> PictureRequest:
            request: PictureRequest = describe(
                self, prompts, generator=generators, num_images_per_prompt=1, **arguments
            )
            return request

        closed = arriving is None or not continuous
        if closed or described(check_prompts(prompt)[:1], torch.Generator()).offloaded:
            return stream_pictures(self, described(prompt, generator), batch_size, continuous)
        assert arriving is not None
        prompts, generators = check_prompts(prompt), list(generator) if isinstance(generator, Sequence) else []
        if len(generators) != len(prompts) or len(prompts) > batch_size:
            raise UserError(
                f"arriving needs a generator for each prompt, and at most batch_size {batch_size} to begin with; got "
                f"{len(prompts)} prompts and {len(generators)} generators"
            )
        idle = batch_size - len(prompts)
        request = described([*prompts, *prompts[:1] * idle], [*generators, *(torch.Generator() for _ in range(idle))])
        room = max(request.longest_prompt(), ROOM_FOR_PROMPTS)

        def fits(text: str) -> bool:
            return described([text], [torch.Generator()]).longest_prompt() <= room

        def take(places: int) -> PictureRequest | None:
            new = arriving(places, fits)
            return described(*(list(each) for each in zip(*new, strict=True))) if new else None

        return stream_pictures(self, request, batch_size, continuous, Arriving(len(prompts), room, take))


def beside(pipeline: AnyPipeline) -> AnyPipeline:
    """A pipeline of the same modules that may draw, in another thread, while this one does.

    They share weights. Each keeps its own memory from one batch to the next, such as a cache of keys and values, and
    takes its own turns.
    """
    other = copy.copy(pipeline)
    other.reuse = Reuse(compiler=pipeline.reuse.compiler)
    return other
