"""The steps that every family shares, from a request to pictures.

Belongs here: drawing one batch or a stream under diffusers' conventions. Does not belong here: one family's arguments
and pixels (a file each), arguments (`arguments.py`), streams themselves (`streaming.py`), the loop (`specdecode.loop`).
"""

from __future__ import annotations

import copy
import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.utils import BaseOutput
from torch import Tensor

from specdecode.kernels.default_torch_mode import default_torch_mode
from specdecode.kernels.linears import served_linears
from specdecode.loop import tokens_left
from specdecode.roles import DecodeState
from specdecode.trace import DecodeTrace
from specdecode.tree import TokenTree
from vargen.base.errors import UserError
from vargen.methods.base import ImageMethodConfig, NamedMethod, refusals
from vargen.methods.catalogue import resolve_method
from vargen.models.components import SINGLE_BATCH
from vargen.models.known_pictures import PictureInput
from vargen.models.reuse import Reuse
from vargen.pipelines.arguments import (
    CALLBACK_TENSORS,
    DrawSettings,
    Interrupted,
    PictureRequest,
    check_prompts,
    finite_logits,
)
from vargen.pipelines.call_types import check_arguments, check_evaluating, check_module
from vargen.pipelines.compilation import CompilablePipeline, compile_time_apart
from vargen.pipelines.lora import LoraPipeline
from vargen.pipelines.quantization import QuantizablePipeline
from vargen.pipelines.streaming import Arriving, PictureStream, stream_pictures

_WITHOUT_MEANING = ("kept in float32: []", "cannot run with `cpu` device")
for _of_diffusers in ("models.modeling_utils", "pipelines.pipeline_utils"):  # of every cast: it names no module
    logging.getLogger(f"diffusers.{_of_diffusers}").addFilter(
        lambda record: not any(each in record.getMessage() for each in _WITHOUT_MEANING)
    )
_SCORED_AT_ONCE = 64
"""Tokens of a candidate whose logits are held at once."""
ROOM_FOR_PROMPTS = 128
"""Tokens that a prompt may have which joins a stream on the way; more where one that it began with has more."""
AnyPipeline = TypeVar("AnyPipeline", bound="PicturePipeline")


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
        reads_references: whether a call takes `reference_images`.
    """

    reads_references = False

    def __init__(self, *components: Any) -> None:
        super().__init__(*components)
        self.reuse = Reuse()
        self._start_call(1.0)

    def __setattr__(self, name: str, value: Any) -> None:
        """Register modules as `DiffusionPipeline` does. Raises UserError for a module that another one wraps."""
        check_module(name, value)
        super().__setattr__(name, value)

    def enable_vae_slicing(self) -> None:
        """Refused. Raises UserError."""
        raise UserError(
            "enable_vae_slicing and enable_vae_tiling cannot be used: pixels come from a small decoder of codes, not "
            "from a VAE; leave them out, and draw fewer pictures at once where memory is short"
        )

    enable_vae_tiling = enable_vae_slicing

    @property
    def _usual_num_tokens(self) -> int:
        """Tokens of a picture of the usual size."""
        raise NotImplementedError

    @property
    def _linears(self) -> torch.nn.Module | None:
        """A model of transformers whose linear layers the kernels may compute while it draws."""
        return None

    @contextmanager
    def _turn(self, is_stream: bool = False) -> Iterator[None]:
        """See `Turn.taken`; within it the kernels serve `_linears`, whose layers are afterwards what they were."""
        with self.reuse.turn.taken(is_stream), served_linears(self._linears):
            yield

    def _start_call(self, guidance_scale: float) -> None:
        """Set diffusers' names of what a callback may read and change."""
        self._guidance_scale, self._interrupt, self._num_timesteps = guidance_scale, False, 0

    @property
    def guidance_scale(self) -> float:
        """The guidance scale of the running or the last call or stream."""
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
        self, method: NamedMethod, options: Mapping[str, Any] | None = None, num_tokens: int | None = None
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
            UserError: a module is in training mode, or the pipeline is drawing already.
            NotFiniteError: logits or pixels are not finite.
        """
        with self._turn():
            trace = DecodeTrace(request.count, request.streams.keys.device)
            tokens = self._decode(request, trace)
            if request.num_candidates > 1:
                tokens = self._likeliest(request, tokens, trace)
            return self._finished(lambda: request.images(tokens, range(request.count)), tokens, trace, return_dict)

    def _likeliest(self, request: PictureRequest, tokens: Tensor, trace: DecodeTrace) -> Tensor:
        """Of each picture the candidate under which the known tokens behind the first drawn one are likeliest.

        The first candidate is `tokens`, the others have streams of their own. One pass more scores each.
        """
        best = self._log_likelihood(request, tokens)
        for number in range(1, request.num_candidates):
            own = DecodeTrace(request.count, request.streams.keys.device)
            other = replace(request, streams=request.streams.another(number))
            found = self._decode(other, own)
            trace.add_passes(own)
            if self.interrupt:
                break
            likelihood = self._log_likelihood(request, found)
            tokens = torch.where((likelihood > best)[:, None], found, tokens)
            best = torch.maximum(likelihood, best)
        return tokens

    @torch.no_grad()
    def _log_likelihood(self, request: PictureRequest, tokens: Tensor) -> Tensor:
        """[B] float32: of the known tokens behind the first drawn one, or where nothing is known of all, at temperature
        1, guidance included."""
        with refusals():
            target, _ = request.start(range(request.count), SINGLE_BATCH)
        forced = request.forced_tokens
        known = torch.ones_like(tokens).bool() if forced is None else (forced >= 0) & ((forced < 0).cumsum(1) > 0)
        first = target.prefill().logits[:, -1].log_softmax(-1).gather(1, tokens[:, :1])
        total = first[:, 0].where(known[:, 0], 0)
        for part, following, counted in zip(
            *(each.split(_SCORED_AT_ONCE, 1) for each in (tokens[:, :-1], tokens[:, 1:], known[:, 1:])), strict=True
        ):
            tree = TokenTree.chain(part)
            said = target.forward(tree.tokens, tree.ancestor_mask(), tree.depth).logits.log_softmax(-1)
            target.commit(None, torch.full_like(part[:, 0], part.shape[1]))
            total += said.gather(2, following[..., None])[..., 0].where(counted, 0).sum(1)
        return total

    def _finished(
        self, make_images: Callable[[], Any], tokens: Tensor, trace: DecodeTrace, return_dict: bool
    ) -> CallResult:
        """The result of a call: images are made, on the trace's clock, and offloaded models leave their device."""
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
        self._start_call(request.guidance_scale)
        pictures = range(request.count)
        with trace.phase("encode_prompt"), refusals():
            target, players = request.start(pictures, SINGLE_BATCH)
        with (
            compile_time_apart(self.reuse.compiler, trace, "decode"),
            self.progress_bar(total=request.num_tokens) as progress,
            finite_logits(0, "of the batch"),
        ):

            def on_step(step: int, state: DecodeState) -> None:
                if players.drafter is None and players.order is None and request.forced_tokens is None:
                    progress.update(1)
                elif not progress.disable:  # reading lengths waits for the device
                    progress.update(request.num_tokens - int(tokens_left(state)) - progress.n)
                request.report.send(self, step, state, target)

            run = request.run(pictures, target, players, trace)
            try:
                return run.finish(on_step).tokens
            except Interrupted:
                return run.result().tokens


class StreamingPipeline(PicturePipeline):
    """A family whose `__call__` and `stream` take the same arguments."""

    _callback_tensor_inputs = list(CALLBACK_TENSORS)  # noqa: RUF012 (a diffusers convention)

    @abstractmethod
    def _request(self, *arguments: Any, **own: Any) -> PictureRequest:
        """The pictures that a call or a stream draws: of a prompt, `DrawSettings`, and the arguments by name that only
        this family's call has. Raises UserError for an argument that cannot be used with this model."""

    @property
    def _own_arguments(self) -> Set[str]:
        """Names of the arguments that only this family's call has."""
        return inspect.signature(self._request).parameters.keys() - {"prompt", "settings"}

    def _request_by_name(self, given: Mapping[str, Any]) -> PictureRequest:
        """The request of a call's arguments by name. Raises UserError as `_request`."""
        own = {name: given[name] for name in self._own_arguments & given.keys()}
        return self._request(given["prompt"], DrawSettings.of(given), **own)

    def _draw_call(self, given: Mapping[str, Any]) -> CallResult:
        """The pictures of a call, from all its arguments by name (`locals()`). Raises as `_request` and `_draw`."""
        with default_torch_mode():
            return self._draw(self._request_by_name(given), given["return_dict"])

    def tokens_of(self, image: PictureInput, prompt: Sequence[str], **arguments: Any) -> Tensor:
        """int64 [B, N]: the tokens that users' pictures are made of, as a call would have drawn them.

        Args:
            image: as for a call, which draws pictures of this shape.
            prompt: one for each.
            **arguments: of the call, such as a size.

        Raises:
            UserError: as `__call__`.
        """
        with default_torch_mode(), self._turn():
            request = self._request_by_name({"prompt": prompt, "image": image, "start_rows": 1, **arguments})
            assert request.picture_tokens is not None
            return request.picture_tokens

    def log_likelihoods(self, tokens: Tensor, **arguments: Any) -> list[float]:
        """How likely the model finds whole pictures; or with `image` its tokens behind the first drawn one.

        Args:
            tokens: int64 [B, N] of finished pictures.
            **arguments: of the call that drew them. With `image` they compare pictures of one mask alone.

        Returns:
            The logarithm for each picture, at temperature 1.

        Raises:
            UserError: as `__call__`.
        """
        with default_torch_mode(), self._turn():
            request = self._request_by_name({"prompt": None, **arguments})
            return self._log_likelihood(request, tokens).tolist()

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
            UserError: as `__call__`; also `batch_size` out of range. Where the pipeline is drawing already, when a
                picture is asked for.
        """
        unknown = sorted(arguments.keys() - DrawSettings.names() - self._own_arguments)
        given = {**arguments, "prompt": prompt, "generator": generator}
        check_arguments(type(self).__call__, {**given, "unknown": unknown})
        if arguments.get("num_candidates", 1) != 1:
            raise UserError("num_candidates must be 1 in a stream; draw candidates by a call")

        def requested(prompts: Sequence[str] | None, generators: Any) -> PictureRequest:
            return self._request_by_name({**given, "prompt": prompts, "generator": generators})

        closed = arriving is None or not continuous
        if closed or requested(check_prompts(prompt)[:1], torch.Generator()).offloaded:
            return stream_pictures(self, requested(prompt, generator), batch_size, continuous)
        assert arriving is not None
        for name in ("image", "reference_images"):
            if arguments.get(name) is not None:
                raise UserError(f"{name} cannot be given to a stream that others join")
        prompts, generators = check_prompts(prompt), list(generator) if isinstance(generator, Sequence) else []
        if len(generators) != len(prompts) or len(prompts) > batch_size:
            raise UserError(
                f"arriving needs a generator for each prompt, and at most batch_size {batch_size} to begin with; got "
                f"{len(prompts)} prompts and {len(generators)} generators"
            )
        idle = batch_size - len(prompts)
        request = requested([*prompts, *prompts[:1] * idle], [*generators, *(torch.Generator() for _ in range(idle))])
        room = max(request.longest_prompt(), ROOM_FOR_PROMPTS)

        def fits(text: str) -> bool:
            return requested([text], [torch.Generator()]).longest_prompt() <= room

        def take(places: int) -> PictureRequest | None:
            new = arriving(places, fits)
            return requested(*(list(each) for each in zip(*new, strict=True))) if new else None

        return stream_pictures(self, request, batch_size, continuous, Arriving(len(prompts), room, take))


def beside(pipeline: AnyPipeline) -> AnyPipeline:
    """A pipeline of the same modules that may draw while this one does, in another thread or in its callback.

    They share weights. Each keeps its own memory from one batch to the next, such as a cache of keys and values, and
    takes its own turns.
    """
    other = copy.copy(pipeline)
    other.reuse = Reuse(compiler=pipeline.reuse.compiler)
    return other
