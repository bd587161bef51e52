"""The base of pipelines over a causal model of transformers: prompts as tokens, sampling as in `generate`, pictures.

Belongs here: arguments and pixels of every such family. Does not belong here: one family, and steps of pipelines of
other models, too (`base.py`, `arguments.py`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, ProcessorMixin

from specdecode.sampling import SamplingConfig
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.checkpoints.finite import check_pixels
from vargen.checkpoints.offloading import is_offloaded, move_offloaded
from vargen.checkpoints.transformers_folder import load_model, load_processor
from vargen.methods.base import ImageMethodConfig, Method
from vargen.models.components import BatchSlot
from vargen.models.transformers_components import TransformersComponents
from vargen.pipelines.arguments import (
    DrawSettings,
    PictureRequest,
    PictureTarget,
    check_guided_tokens,
    check_prompts,
    check_sampling,
    random_streams,
)
from vargen.pipelines.base import StreamingPipeline

Prompts = tuple[Tensor, Tensor]
"""Tokens int64 [B, T] of prompts, padded on the left, and their mask [B, T]."""

_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
"""The values of `generate` where neither the call nor generation_config.json gives one."""
_OTHER_FILTERS = {
    "bad_words_ids": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_p": None, "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0, "sequence_bias": None, "top_h": None, "typical_p": 1.0,
}  # fmt: skip
"""What else `generate` can do to logits, and the values at which it does nothing."""
_USUAL_NORMALISATION = (0.5, 0.5, 0.5)
"""Mean and standard deviation in the image processors of every published Janus and Emu3."""


class TransformersPipeline(StreamingPipeline):
    """A pipeline of one model of transformers that does everything, and the processor that reads prompts for it.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        modules: others, by name, such as the processor, which makes tokens of prompts. Without it, prompts must come as
            `input_ids`.

    Attributes:
        model_class, processor_class: of transformers.
        components_class: what the family offers methods.
        decoder_name: the attribute of the model that holds its decoder.
        usual_guidance: used where neither a call nor the model's generation_config.json gives a scale.

    Raises:
        UserError: the model cannot draw.
    """

    model_class: ClassVar[type[PreTrainedModel]]
    processor_class: ClassVar[type[ProcessorMixin]]
    components_class: ClassVar[type[TransformersComponents]]
    decoder_name: ClassVar[str] = "language_model"
    usual_guidance: ClassVar[float]
    model_cpu_offload_seq = "model"
    _optional_components = ["processor"]  # noqa: RUF012 (a diffusers convention)

    def __init__(self, model: PreTrainedModel, **modules: Any) -> None:
        super().__init__()
        if not isinstance(model, self.model_class):
            raise UserError(f"model must be a {self.model_class.__name__}, got {type(model).__name__}")
        self.register_modules(model=model, **modules)

    @property
    def _decoder_layers(self) -> nn.Module:
        return getattr(self.model.model, self.decoder_name).layers

    @property
    def _adapted(self) -> nn.Module:
        return self.model

    _linears = _adapted

    def _guidance(self, guidance_scale: float | None = None) -> float:
        """The scale of a call, else the model's own."""
        return setting(self.model.generation_config, "guidance_scale", guidance_scale, self.usual_guidance)

    def _request_of(
        self,
        settings: DrawSettings,
        num_prompts: int,
        num_tokens: int,
        encode: Callable[[], Sequence[Prompts]],
        build_target: Callable[..., TransformersTarget],
        images: Callable[[Tensor, range], Any],
        row_tokens: Sequence[int] | None = None,
    ) -> PictureRequest:
        """The request of a call or a stream.

        Args:
            settings: what every call is asked.
            num_prompts: prompts, each of so many pictures as `settings` has it.
            num_tokens: tokens of a picture, at most.
            encode: gives the prompts, then any others that the target reads beside them, for every picture.
            build_target: makes the target of the numbers of some pictures, what `encode` gave for them, and of
                `guidance_scale`, `guided_tokens`, `max_draft_nodes` and `longest_prompt`.
            images, row_tokens: see `PictureRequest`.

        Raises:
            UserError: a setting out of range.
        """
        method = self.resolve_method(settings.method, num_tokens=num_tokens)
        check_guided_tokens(settings.guided_tokens, method, self.reuse.compiler is not None)
        scale = self._guidance(settings.guidance_scale)
        sampling = self._sampling(settings.temperature, settings.top_k, settings.top_p, scale)
        encoded, count = functools.cache(encode), num_prompts * settings.num_images_per_prompt
        device = self._execution_device

        def start(pictures: range, place: BatchSlot) -> tuple[PictureTarget, Method]:
            prompts = encoded() if len(pictures) == count else [of_pictures(*each, pictures) for each in encoded()]
            move_offloaded(self.model)
            target = build_target(
                pictures,
                prompts,
                guidance_scale=scale,
                guided_tokens=settings.guided_tokens,
                max_draft_nodes=max(method.max_draft_nodes(num_tokens), place.num_known + 1),
                longest_prompt=None if place.joins else place.longest_prompt,
            )
            return target, self._players(method, target, place.joins)

        return PictureRequest(
            start=start,
            images=images,
            num_tokens=num_tokens,
            longest_prompt=lambda: max(ids.shape[1] for ids, _ in encoded()),
            sampling=sampling,
            streams=random_streams(settings.generator, count, device, sampling.temperature == 0),
            report=settings.report,
            guidance_scale=scale,
            row_tokens=None if row_tokens is None else torch.tensor(row_tokens, device=device),
            offloaded=is_offloaded(self.model),
        )

    def _sampling(
        self, temperature: float | None, top_k: int | None, top_p: float | None, guidance_scale: float
    ) -> SamplingConfig:
        """How tokens are drawn where a call says this; see `sampling_as_generate`."""
        return sampling_as_generate(self.model.generation_config, temperature, top_k, top_p, guidance_scale)

    def _players(self, method: ImageMethodConfig, target: Any, joins: bool) -> Method:
        return method.build(self.components_class(self.model, target, self.reuse, joins))

    def _for_every_picture(self, input_ids: Tensor, attention_mask: Tensor | None, copies: int) -> Prompts:
        """Prompts [B, T] (without a mask nothing is padded), on the pipeline's device, copies beside each other."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        device = self._execution_device
        ids, mask = (each.to(device).repeat_interleave(copies, dim=0) for each in (input_ids, mask))
        return ids, mask

    def _normalised(self, pixels: Tensor) -> Tensor:
        """Pixels [1, 3, H, W] in [-1, 1] as the model's own encoder reads them; see `_images_of`."""
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in self._normalisation())
        return (((pixels + 1) / 2 - mean) / std).to(self._execution_device, self.model.dtype)

    def _normalisation(self) -> tuple[Sequence[float], Sequence[float]]:
        """Mean and standard deviation of pixels in [0, 1]."""
        image_processor = getattr(self.processor, "image_processor", None)
        mean, std = (
            getattr(image_processor, name, None) or _USUAL_NORMALISATION for name in ("image_mean", "image_std")
        )
        return mean, std

    def _images_of(self, intensities: Callable[..., Tensor], pixels: Tensor, output_type: str) -> Any:
        """Pictures of what the decoder made, as `output_type` asks: "pil", "np" or "pt".

        Images are those of the processor's `postprocess`, which cuts intensities to whole numbers.

        Args:
            intensities: makes fp32 [B, H, W, 3] in [0, 255] of pixels and the processor's mean and deviation.
            pixels: as the decoder made them.
        """
        check_pixels(pixels)
        return as_images(intensities(pixels, *self._normalisation()), output_type)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> Self:
        """Load from a folder or a name on the hub, in the layout of transformers.

        Args:
            pretrained_model_name_or_path: such as "deepseek-community/Janus-Pro-1B".
            **kwargs: for transformers' `from_pretrained`: dtype, device_map, quantization_config, attn_implementation,
                revision, token, ...; `processor` for a processor that is loaded already.

        Raises:
            UserError: there is no such model, it is of another family, or weights are missing, as in a model for text.
        """
        own = {"processor": kwargs.pop("processor")} if "processor" in kwargs else {}
        config: Any = cls.model_class.config_class
        model = load_model(pretrained_model_name_or_path, cls.model_class, config.model_type, **kwargs)
        if "processor" not in own:
            own["processor"] = load_processor(pretrained_model_name_or_path, cls.processor_class, **kwargs)
        made: Any = cls
        return made(model, **own)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save in the layout of transformers, which `from_pretrained` reads; other arguments are for the model's."""
        self._refuse_adapters()
        self.model.save_pretrained(save_directory, *args, **kwargs)
        if self.processor is not None:
            self.processor.save_pretrained(save_directory)


def as_images(intensities: Tensor, output_type: str) -> Any:
    """Pictures fp32 [B, H, W, 3] from 0 to 255 as `output_type` asks: "pil" (cut to whole numbers), "np" or "pt"."""
    if output_type == "pt":
        return (intensities / 255).permute(0, 3, 1, 2)
    if output_type == "np":
        return (intensities / 255).cpu().numpy()
    return [PIL.Image.fromarray(picture) for picture in intensities.cpu().numpy().astype(np.uint8)]


def count_prompts(prompt: str | Sequence[str] | None, input_ids: Tensor | None) -> int:
    """The number of prompts. Raises UserError where both arguments are given, or none."""
    if (prompt is None) == (input_ids is None):
        raise UserError("prompt or input_ids must be given, and not both")
    return len(check_prompts(prompt)) if input_ids is None else len(input_ids)


def sampling_as_generate(
    generation_config: GenerationConfig,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    guidance_scale: float,
) -> SamplingConfig:
    """How tokens are drawn: as the call says, else the model's generation_config.json, else as `generate` would. Raises
    UserError for a setting out of range (guidance is checked too), or one of the model's own that is not supported."""
    for name, nothing in _OTHER_FILTERS.items():
        if (own := getattr(generation_config, name, None)) not in (None, nothing):
            raise UserError(
                f"generation_config.{name} is {own!r}, which is not served; set it to None to draw without it"
            )
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    settings = {name: setting(generation_config, name, value) for name, value in given.items()}
    return check_sampling(**settings, guidance_scale=guidance_scale)


def setting(generation_config: GenerationConfig, name: str, value: Any, default: Any = None) -> Any:
    """A setting: the call's, else the model's own, else that of `generate`, or `default`."""
    if value is None:
        value = getattr(generation_config, name, None)
    return _DEFAULTS.get(name, default) if value is None else value


def check_input_ids(input_ids: Tensor, attention_mask: Tensor | None, vocab_size: int, name: str = "input_ids") -> None:
    """Refuse all but tokens [B, T] of a vocabulary, and a mask of another shape. Raises UserError."""
    if input_ids.ndim != 2 or input_ids.is_floating_point() or 0 in input_ids.shape:
        raise UserError(f"{name} must be int64 [batch, length], got {input_ids.dtype} {list(input_ids.shape)}")
    if int(input_ids.min()) < 0 or int(input_ids.max()) >= vocab_size:
        raise UserError(f"{name} must lie between 0 and {vocab_size - 1}, got {int(input_ids.max())}")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise UserError(f"attention_mask must be {list(input_ids.shape)}, got {list(attention_mask.shape)}")


def check_context(config: Any, attention_mask: Tensor, num_tokens: int) -> None:
    """Refuse prompts [B, T] that leave no room for a picture in the model's context. Raises UserError."""
    context, longest = config.get_text_config().max_position_embeddings, int(attention_mask.sum(1).max())
    room = context - num_tokens
    if longest > room:
        raise UserError(
            f"prompt has {longest} tokens; in the model's context of {context} there is room for {max(room, 0)} beside "
            f"the {num_tokens} of a picture"
        )


def of_pictures(tokens: Tensor, attention_mask: Tensor, pictures: range) -> Prompts:
    """The prompts of some pictures, with no more padding than they need.

    Args:
        tokens, attention_mask: [B, T], of all pictures, padded on the left.
        pictures: their numbers.
    """
    part = slice(pictures.start, pictures.stop)
    longest = int(attention_mask[part].sum(1).max())
    return tokens[part, -longest:], attention_mask[part, -longest:]
