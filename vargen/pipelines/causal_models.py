"""What pipelines over causal models of transformers share: prompts as tokens, sampling as `generate` has it, pictures.

Belongs here: what every such family asks of its arguments and does with what its decoder makes. Does not belong here:
any family, and what pipelines of other models do as well (`vargen.pipelines.common`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import PIL.Image
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, ProcessorMixin

from specdecode.kernels.linears import serve_linears
from specdecode.sampling import SamplingConfig
from vargen.base.errors import UserError
from vargen.models.transformers_folder import load_model, load_processor
from vargen.pipelines.common import CALLBACK_TENSORS, check_prompts, check_sampling
from vargen.pipelines.compilation import CompilablePipeline
from vargen.pipelines.quantization import QuantizablePipeline

_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
"""What `generate` takes where neither the call nor generation_config.json says."""
_OTHER_FILTERS = {
    "bad_words_ids": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_p": None, "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0, "sequence_bias": None, "top_h": None, "typical_p": 1.0,
}  # fmt: skip
"""What `generate` can do to logits beside these, and the values at which it does nothing."""


_USUAL_NORMALISATION = (0.5, 0.5, 0.5)
"""Mean and deviation of the image processors of every published Janus and Emu3."""


class CausalModelPipeline(CompilablePipeline, QuantizablePipeline, DiffusionPipeline):
    """A pipeline of one model of transformers that does everything, and the processor that reads prompts for it.

    Attributes:
        model_class, processor_class: of transformers.
        decoder_name: where the decoder lies in the model.
        usual_guidance: where neither a call nor the model's generation_config.json says.
    """

    model_class: ClassVar[type[PreTrainedModel]]
    processor_class: ClassVar[type[ProcessorMixin]]
    decoder_name: ClassVar[str] = "language_model"
    usual_guidance: ClassVar[float]
    model_cpu_offload_seq = "model"
    _optional_components = ["processor"]  # noqa: RUF012 (a diffusers convention)
    _callback_tensor_inputs = list(CALLBACK_TENSORS)  # noqa: RUF012

    def _register(self, model: PreTrainedModel, processor: ProcessorMixin | None) -> None:
        """Take the components. Raises UserError for another model."""
        if not isinstance(model, self.model_class):
            raise UserError(f"model must be a {self.model_class.__name__}, got {type(model).__name__}")
        serve_linears(model)
        self.register_modules(model=model, processor=processor)

    @property
    def _decoder_layers(self) -> nn.Module:
        return getattr(self.model.model, self.decoder_name).layers

    def _sampling(
        self, guidance_scale: float | None, temperature: float | None, top_k: int | None, top_p: float | None
    ) -> tuple[float, SamplingConfig]:
        """Guidance, and how tokens are drawn, of a call with these arguments. Raises UserError for one out of range."""
        own = self.model.generation_config
        scale = setting(own, "guidance_scale", guidance_scale, self.usual_guidance)
        return scale, sampling_as_generate(own, temperature, top_k, top_p, scale)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> Self:
        """Load from a folder or a name on the hub, in the layout of transformers.

        Args:
            pretrained_model_name_or_path: such as "deepseek-community/Janus-Pro-1B".
            **kwargs: for transformers' `from_pretrained`: dtype, device_map, quantization_config, attn_implementation,
                revision, token, ...; `processor` to bring one along.

        Raises:
            UserError: there is no such model, it is of another family, or weights are missing, as in one for text.
        """
        own = {"processor": kwargs.pop("processor")} if "processor" in kwargs else {}
        config: Any = cls.model_class.config_class
        model = load_model(pretrained_model_name_or_path, cls.model_class, config.model_type, **kwargs)
        if "processor" not in own:
            own["processor"] = load_processor(pretrained_model_name_or_path, cls.processor_class, **kwargs)
        made: Any = cls
        return made(model, **own)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save in the layout of transformers, which `from_pretrained` reads; the rest is for the model's."""
        self.model.save_pretrained(save_directory, *args, **kwargs)
        if self.processor is not None:
            self.processor.save_pretrained(save_directory)


def count_prompts(prompt: str | Sequence[str] | None, input_ids: Tensor | None) -> int:
    """How many there are. Raises UserError where both are given, or none."""
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
    """How tokens are drawn: as called, else as the model's generation_config.json says, else as `generate` would.

    Raises:
        UserError: a setting out of range, guidance among them, or one of the model's own that is not known here.
    """
    for name, nothing in _OTHER_FILTERS.items():
        if (own := getattr(generation_config, name, None)) not in (None, nothing):
            raise UserError(
                f"generation_config.{name} is {own!r}, which is not served; set it to None to draw without it"
            )
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    settings = {name: setting(generation_config, name, value) for name, value in given.items()}
    return check_sampling(**settings, guidance_scale=guidance_scale)


def setting(generation_config: GenerationConfig, name: str, value: Any, default: Any = None) -> Any:
    """A setting: as called, else the model's own, else what `generate` takes, or `default`."""
    if value is None:
        value = getattr(generation_config, name, None)
    return _DEFAULTS.get(name, default) if value is None else value


def check_input_ids(input_ids: Tensor, attention_mask: Tensor | None, vocab_size: int, name: str = "input_ids") -> None:
    """Refuse what are no tokens [B, T] of a vocabulary, and a mask of another shape. Raises UserError."""
    if input_ids.ndim != 2 or input_ids.is_floating_point() or 0 in input_ids.shape:
        raise UserError(f"{name} must be int64 [batch, length], got {input_ids.dtype} {list(input_ids.shape)}")
    if int(input_ids.min()) < 0 or int(input_ids.max()) >= vocab_size:
        raise UserError(f"{name} must lie between 0 and {vocab_size - 1}, got {int(input_ids.max())}")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise UserError(f"attention_mask must be {list(input_ids.shape)}, got {list(attention_mask.shape)}")


def check_context(config: Any, attention_mask: Tensor, num_tokens: int) -> None:
    """Refuse prompts [B, T] beside which a picture has no room in a model's context. Raises UserError."""
    context, longest = config.get_text_config().max_position_embeddings, int(attention_mask.sum(1).max())
    room = context - num_tokens
    if longest > room:
        raise UserError(
            f"prompt has {longest} tokens; in the model's context of {context} there is room for {max(room, 0)} beside "
            f"the {num_tokens} of a picture"
        )


def for_every_picture(
    input_ids: Tensor, attention_mask: Tensor | None, num_images_per_prompt: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Tokens [B, T] of prompts and their mask (None: nothing is padded), on a device, copies beside each other."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return (
        input_ids.to(device).repeat_interleave(num_images_per_prompt, dim=0),
        mask.to(device).repeat_interleave(num_images_per_prompt, dim=0),
    )


def of_pictures(tokens: Tensor, attention_mask: Tensor, pictures: range) -> tuple[Tensor, Tensor]:
    """Of tokens [B, T] of all prompts, padded on the left, and their mask: those of some, and no more padding than they
    need."""
    part = slice(pictures.start, pictures.stop)
    longest = int(attention_mask[part].sum(1).max())
    return tokens[part, -longest:], attention_mask[part, -longest:]


def normalisation(processor: Any) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and deviation, three each, of a processor's pictures; the usual ones where there is no processor."""
    image_processor = getattr(processor, "image_processor", None)
    mean, std = (getattr(image_processor, name, None) for name in ("image_mean", "image_std"))
    return mean or _USUAL_NORMALISATION, std or _USUAL_NORMALISATION


def images_of(intensities: Tensor, output_type: str) -> Any:
    """Intensities fp32 [B, H, W, 3] in [0, 255] as `output_type` asks: "pil", "np" or "pt".

    As images they are those of the processors' `postprocess`, which drops what follows the point of an intensity.
    """
    if output_type == "pt":
        return (intensities / 255).permute(0, 3, 1, 2)
    if output_type == "np":
        return (intensities / 255).cpu().numpy()
    return [PIL.Image.fromarray(picture) for picture in intensities.cpu().numpy().astype(np.uint8)]


@contextmanager
def refusals() -> Iterator[None]:
    """ValueErrors of the core about a model or its arguments, as UserErrors."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
