"""Text- or class-conditional pictures from a LlamaGen transformer, with the conventions of diffusers.

Belongs here: LlamaGen's components, prompts, arguments and pictures. Does not belong here: how a picture becomes
forward passes (`vargen.models.llamagen.llamagen_target`), the steps of a batch (`base.py`), methods (`vargen.methods`).

Unlike other pipelines of diffusers, this one puts the conditional half of guidance first, inside the target only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import diffusers
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, T5EncoderModel

from vargen.base.errors import UserError, warn
from vargen.base.prompts import unknown_words
from vargen.base.reading import reading
from vargen.checkpoints.finite import check_component_weights, check_pixels
from vargen.checkpoints.foreign_weights import load_strictly, read_tensors
from vargen.checkpoints.model_folder import check_model_folder, own_weights, shared_components
from vargen.checkpoints.offloading import check_device_map, is_offloaded
from vargen.checkpoints.source import is_hub_name
from vargen.checkpoints.transformers_folder import checked_arguments, or_leave_out
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.base import Method, NamedMethod
from vargen.methods.catalogue import check_own_settings
from vargen.models.components import BatchSlot
from vargen.models.known_pictures import PictureInput
from vargen.models.llamagen.llamagen_components import LlamaGenComponents, check_draft_model
from vargen.models.llamagen.llamagen_draft_head import check_drafter
from vargen.models.llamagen.text_encoder import as_trained, check_tokenizer, encode_each
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.llamagen.vq import decode_codes, downsampling_factor, encode_images
from vargen.pipelines.arguments import (
    DrawSettings,
    PictureRequest,
    PictureTarget,
    PromptWarning,
    StepCallback,
    check_guided_tokens,
    check_prompts,
    check_sampling,
    check_size,
    negative_words,
    random_streams,
)
from vargen.pipelines.base import CallResult, StreamingPipeline
from vargen.pipelines.call_types import check_arguments

_USUAL_SETTINGS = {"text": (7.5, 1000), "class": (4.0, 2000)}
"""guidance_scale and top_k of LlamaGen's sample_t2i.py and sample_c2i.py."""


@dataclass(frozen=True)
class _Prompts:
    """What pictures show, or what they keep away from, a prompt a row: words, or text features instead.

    Args:
        texts: words; None with `embeds`, or where there is nothing to say.
        embeds: features [B, T, caption_dim], padded on the left.
        mask: [B, T] of `embeds`, 0 at padding; None: nothing is padded.
    """

    texts: list[str] | None
    embeds: Tensor | None
    mask: Tensor | None

    def of(self, part: slice) -> _Prompts:
        """Some of the rows."""
        own = (None if each is None else each[part] for each in (self.embeds, self.mask))
        return _Prompts(None if self.texts is None else self.texts[part], *own)


class LlamaGenPipeline(StreamingPipeline):
    """Pictures from a class label or a sentence, one token after another.

    Args:
        transformer: predicts image tokens. None where only prompts are encoded.
        vqvae: decodes them to pixels, in `pixel_dtype`. Its codebook is stored as it is looked up (L2-normalised). None
            where only tokens are drawn (`output_type="latent"`).
        text_encoder: text features for a text-conditional transformer. Without it, prompts must come as embeddings.
        tokenizer: the text encoder's.
        drafter: an EAGLE head trained for this transformer, for the methods that draft with one.
        draft_model: a smaller transformer of the same vocabulary, which reads the same text features, for the
            method "draft-model".
        default_guidance_scale, default_top_k, default_temperature: for calls that give none; kept in
            `model_index.json`. None: those of the pipeline whose `components` these are, else of LlamaGen's own
            samplers, 7.5 and 1000 for text, 4 and 2000 for classes, both at temperature 1.
        max_sequence_length: the most text tokens, the end token included; longer prompts are cut with a warning. At
            most, and by default, the transformer's `condition_length`.
        image_size: side of a picture in pixels. It follows from the grid and the tokenizer. A saved pipeline also
            names it, and it must agree with them, because weights alone fit any grid.
        methods: by name of a method, settings that are better on this model than the method's defaults; a name without
            options stands for them. None: those of the pipeline whose `components` these are, else none.

    Attributes:
        pixel_dtype: precision in which pictures are decoded, torch.float32 or torch.bfloat16. In bfloat16 a pixel can
            differ by a few of 255 steps, and so can one machine's picture from another's.

    Raises:
        UserError: the components do not belong together, or `methods` holds anything but settings.
    """

    pixel_dtype: torch.dtype = torch.float32
    model_cpu_offload_seq = "text_encoder->transformer->vqvae"
    _optional_components = ["text_encoder", "tokenizer", "drafter", "draft_model"]  # noqa: RUF012 (a diffusers convention)

    def __init__(
        self,
        transformer: LlamaGenTransformer | None,
        vqvae: VQModel | None,
        text_encoder: T5EncoderModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        drafter: EagleHead | None = None,
        draft_model: LlamaGenTransformer | None = None,
        default_guidance_scale: float | None = None,
        default_top_k: int | None = None,
        default_temperature: float | None = None,
        max_sequence_length: int = 120,
        image_size: int | None = None,
        methods: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer,
            vqvae=vqvae,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            drafter=drafter,
            draft_model=draft_model,
        )
        self.vae_scale_factor = 1 if vqvae is None else downsampling_factor(vqvae)
        self.grid_size: int = 0 if transformer is None else transformer.config.grid_size
        known = transformer is not None and vqvae is not None
        self.image_size: int = self.grid_size * self.vae_scale_factor if known else image_size or 0
        self._check_components(image_size)
        # `LlamaGenPipeline(**pipeline.components)` hands on modules alone, and is to draw the same pictures.
        drawn_with: tuple[Any, ...] = getattr(transformer, "drawn_with", (None,) * 4)
        given: tuple[Any, ...] = (default_guidance_scale, default_top_k, default_temperature, methods)
        scale, top_k, temperature, methods = (
            kept if each is None else each for each, kept in zip(given, drawn_with, strict=True)
        )
        check_own_settings(methods or {}, "model_index.json: methods")
        reads = None if transformer is None else transformer.config
        usual_scale, usual_top_k = _USUAL_SETTINGS["text" if reads is None else reads.condition_type]
        self.register_to_config(
            default_guidance_scale=usual_scale if scale is None else scale,
            default_top_k=usual_top_k if top_k is None else top_k,
            default_temperature=1.0 if temperature is None else temperature,
            max_sequence_length=max_sequence_length
            if reads is None
            else min(max_sequence_length, reads.condition_length),
            image_size=self.image_size or None,
            methods={name: dict(settings) for name, settings in (methods or {}).items()},
        )
        self.image_processor = VaeImageProcessor(vae_scale_factor=self.vae_scale_factor)

    @property
    def components(self) -> dict[str, Any]:
        """Modules by name. A pipeline that is made of them draws as this one, unless it is told otherwise: so the
        settings go with the transformer, which other pipelines may share."""
        if self.transformer is not None and "methods" in self.config:
            names = ("default_guidance_scale", "default_top_k", "default_temperature", "methods")
            self.transformer.drawn_with = tuple(self.config[name] for name in names)
        return super().components

    @property
    def _usual_num_tokens(self) -> int:
        return self.transformer.num_image_tokens

    @property
    def _own_methods(self) -> Mapping[str, Mapping[str, Any]]:
        return self.config["methods"]

    @property
    def _decoder_layers(self) -> nn.Module:
        return self.transformer.transformer_blocks

    @property
    def _adapted(self) -> nn.Module:
        return self.transformer

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as `DiffusionPipeline` does. Raises UserError where an adapter is loaded."""
        self._refuse_adapters()
        super().save_pretrained(save_directory, *args, **kwargs)

    def _check_components(self, image_size: int | None) -> None:
        if self.vqvae is not None and not self.vqvae.config.lookup_from_codebook:
            raise UserError("vqvae must have lookup_from_codebook true in its config.json, because it decodes codes")
        if self.transformer is None:
            return
        transformer, vqvae = self.transformer.config, None if self.vqvae is None else self.vqvae.config
        if vqvae is not None and transformer.vocab_size != vqvae.num_vq_embeddings:
            raise UserError(
                f"transformer and vqvae must come from one model: the transformer has {transformer.vocab_size} image "
                f"tokens, the vqvae {vqvae.num_vq_embeddings} codes"
            )
        if self.text_encoder is not None and self.text_encoder.config.d_model != transformer.caption_dim:
            raise UserError(
                f"transformer and text_encoder must come from one model: the transformer reads features of width "
                f"{transformer.caption_dim}, the text_encoder makes {self.text_encoder.config.d_model}"
            )
        if self.drafter is not None:
            check_drafter(self.drafter, self.transformer)
        if self.draft_model is not None:
            check_draft_model(self.draft_model, self.transformer)
        if vqvae is not None and image_size not in (None, self.image_size):
            raise UserError(
                f"transformer has another image grid than this model's: {transformer.grid_size} x "
                f"{transformer.grid_size} tokens make {self.image_size} pixels, model_index.json says {image_size}; "
                f"use the transformer folder saved with it"
            )

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> Self:
        """Load a pipeline as `DiffusionPipeline.from_pretrained` does, with three differences.

        A local folder is checked first: missing, truncated or ill-fitting weights are an error, where diffusers would
        put random numbers in their place. Classes of other libraries and pickled weights are errors too, but files
        "*.bin" that torch reads without running code are not. And the vqvae stays in fp32 where `dtype` is one for all;
        a mapping by component is obeyed. A local folder may share components with another model, see
        `vargen.checkpoints.model_folder.shared_components`.

        Raises:
            UserError: a local folder is incomplete, damaged or inconsistent, or it cannot be placed as asked; or code
                of a repository is to be run.
        """
        is_folder = os.path.isdir(pretrained_model_name_or_path)
        remedy = "copy the whole folder again" if is_folder else "name a folder, or a model on the hub that is in reach"
        kwargs, remedy = checked_arguments(kwargs), f"{remedy}{or_leave_out(kwargs)}"
        check_device_map(kwargs.get("device_map"))
        if not is_folder and not is_hub_name(os.fspath(pretrained_model_name_or_path)):
            raise UserError(f"model: {pretrained_model_name_or_path} does not exist; {remedy}")
        if is_folder:
            kwargs = cls._shared(pretrained_model_name_or_path, kwargs) | kwargs
            parts = {*cls._get_signature_keys(cls)[0]}
            passed = {name for name in parts & {*kwargs} if kwargs[name] is None or isinstance(kwargs[name], nn.Module)}
            required, variant = parts - {*cls._optional_components} - passed, kwargs.get("variant")
            check_model_folder(pretrained_model_name_or_path, skip=passed, required=required, variant=variant)
        dtype = kwargs.pop("torch_dtype", None) or kwargs.pop("dtype", None) or torch.float32
        kwargs["dtype"] = dtype if isinstance(dtype, dict) else {"default": dtype, "vqvae": torch.float32}
        with reading(pretrained_model_name_or_path, remedy):
            pipeline = super().from_pretrained(os.fspath(pretrained_model_name_or_path), **kwargs)
            if pipeline.tokenizer is not None and pipeline.text_encoder is not None:
                check_tokenizer(pipeline.tokenizer, pipeline.text_encoder, pipeline.config["max_sequence_length"])
        check_component_weights(pipeline.components, pretrained_model_name_or_path)
        return pipeline

    @classmethod
    def _shared(cls, folder: str | os.PathLike[str], asked: Mapping[str, Any]) -> dict[str, Any]:
        """Components of another folder's model that the model in this one shares, as the call asks for them."""
        if (shared := shared_components(folder)) is None:
            return {}
        other, wanted = shared
        left_out = {name: None for name in cls._get_signature_keys(cls)[0] if name not in wanted or name in asked}
        how = {name: asked[name] for name in ("torch_dtype", "dtype", "low_cpu_mem_usage") if name in asked}
        whole = cls.from_pretrained(other, **left_out, **how)
        parts = {name: getattr(whole, name) for name in wanted if name not in left_out}
        for name, part in parts.items():
            if (path := own_weights(folder, name)) is not None:
                weights = {key: weight.to(part.dtype) for key, weight in read_tensors(path, "model").items()}
                load_strictly(part, part.state_dict() | weights, path)
        return parts

    def _check_inputs(
        self,
        prompt: str | Sequence[str] | None,
        class_labels: int | Sequence[int] | Tensor | None,
        prompt_embeds: Tensor | None,
        prompt_attention_mask: Tensor | None,
        output_type: str,
    ) -> None:
        """Refuse arguments that cannot be used with this model. Raises UserError, which names the argument."""
        if self.transformer is None:
            raise UserError("transformer is None: this pipeline can only encode prompts; load it with its transformer")
        if self.vqvae is None and output_type != "latent":
            raise UserError('vqvae is None: there is nothing that makes pictures of tokens; use output_type="latent"')
        if self.transformer.config.condition_type == "class":
            self._check_class_labels(class_labels)
            if prompt is not None or prompt_embeds is not None:
                raise UserError("prompt cannot be used: the model is class-conditional; give class_labels")
            return
        if class_labels is not None:
            raise UserError("class_labels cannot be used: the model is text-conditional; give prompt")
        if (prompt is None) == (prompt_embeds is None):
            raise UserError("prompt or prompt_embeds must be given, and not both")
        if prompt_embeds is not None:
            self._check_prompt_embeds(prompt_embeds, prompt_attention_mask)
            return
        if self.text_encoder is None or self.tokenizer is None:
            raise UserError("prompt needs a pipeline with text_encoder and tokenizer; give prompt_embeds instead")
        check_prompts(prompt)

    def _check_class_labels(self, class_labels: int | Sequence[int] | Tensor | None) -> None:
        num_classes = self.transformer.config.num_classes
        if class_labels is None:
            raise UserError(
                f"class_labels must be given, between 0 and {num_classes - 1}: the model is class-conditional"
            )
        labels = torch.as_tensor(class_labels)
        if labels.is_floating_point() or labels.ndim > 1 or labels.numel() == 0:
            raise UserError("class_labels must be an integer or a list of integers")
        if labels.min() < 0 or labels.max() >= num_classes:
            raise UserError(f"class_labels must lie between 0 and {num_classes - 1}, got {labels.tolist()}")

    def _check_negative(
        self, negative_prompt: str | Sequence[str] | None, embeds: Tensor | None, mask: Tensor | None, num_prompts: int
    ) -> list[str] | None:
        """A negative prompt for each prompt; None: there is none, or features are given instead. Raises UserError."""
        if self.transformer.config.condition_type == "class":
            if negative_prompt is not None or embeds is not None:
                raise UserError("negative_prompt cannot be used: the model is class-conditional; leave it out")
            return None
        texts = negative_words(negative_prompt, num_prompts, "negative_prompt_embeds", embeds)
        if embeds is not None:
            self._check_prompt_embeds(embeds, mask, "negative_prompt")
        return texts

    def _check_prompt_embeds(self, embeds: Tensor, mask: Tensor | None, name: str = "prompt") -> None:
        length, width = self.transformer.config.condition_length, self.transformer.config.caption_dim
        if embeds.ndim != 3 or not 1 <= embeds.shape[1] <= length or embeds.shape[2] != width:
            raise UserError(f"{name}_embeds must be [batch, 1 to {length}, {width}], got {list(embeds.shape)}")
        if mask is None:
            return
        if mask.shape != embeds.shape[:2]:
            raise UserError(f"{name}_attention_mask must be {list(embeds.shape[:2])}, got {list(mask.shape)}")
        valid = mask.bool()
        if not bool(valid[:, -1].all()) or bool((valid[:, :-1] & ~valid[:, 1:]).any()):
            raise UserError(
                f"{name}_embeds must be padded on the left, where {name}_attention_mask is 0, as by encode_prompt"
            )

    def prompt_problems(self, prompt: str | Sequence[str], max_sequence_length: int | None = None) -> list[str]:
        """What the model will not read: a message for each prompt that is too long or of no word, and one for all
        unknown words."""
        if self.tokenizer is None or self.text_encoder is None:
            return []
        length = self._sequence_length(max_sequence_length)
        prompts = as_trained(self.text_encoder, [prompt] if isinstance(prompt, str) else prompt)
        problems, unknown = [], {}
        for text, ids in zip(prompts, self.tokenizer(prompts, verbose=False)["input_ids"], strict=True):
            if len(ids) > length:
                shown = text if len(text) <= 40 else f"{text[:40].rstrip()}..."
                problems.append(f"prompt {shown!r} has {len(ids)} tokens; only the first {length} are read")
            if set(ids) <= {*self.tokenizer.all_special_ids} - {self.tokenizer.unk_token_id}:
                problems.append(f"nothing of the prompt {text[:40]!r} is read; write words that the model knows")
            elif self.tokenizer.unk_token_id in ids or not text.isascii():
                unknown.update({word.lower(): word for word in unknown_words(self.tokenizer, text)})
        if unknown:
            problems.append(f"the model never saw these words and cannot draw them: {', '.join(unknown.values())}")
        return problems

    def _sequence_length(self, max_sequence_length: int | None) -> int:
        most = self.config["max_sequence_length"]
        if max_sequence_length is None:
            return most
        if not 1 <= max_sequence_length <= most:
            raise UserError(f"max_sequence_length must lie between 1 and {most}, got {max_sequence_length}")
        return max_sequence_length

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        num_images_per_prompt: int = 1,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        max_sequence_length: int | None = None,
        device: torch.device | None = None,
        trim: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Text features, trimmed to the longest prompt of the batch.

        Each prompt is encoded alone, so its features do not depend on its neighbours. Trimming changes no picture:
        condition tokens have no position, and only published drafters attend to padding.

        Args:
            prompt: one or several prompts; or None with `prompt_embeds`.
            num_images_per_prompt: how often each row is repeated, copies beside each other.
            prompt_embeds: [B, T, caption_dim], padded on the left.
            prompt_attention_mask: [B, T], 0 at padding; None: nothing is padded.
            max_sequence_length: cut longer prompts, with a `PromptWarning`; None: the pipeline's own limit.
            device: where to compute; None: the pipeline's device.
            trim: False keeps the full length of prompts, padding included.

        Returns:
            Features [B * num_images_per_prompt, T, caption_dim] in the transformer's dtype, right-aligned and zero at
            padding, and their mask [B * num_images_per_prompt, T] bool.
        """
        device = self._execution_device if device is None else device
        if prompt_embeds is None:
            if self.text_encoder is None or self.tokenizer is None:
                raise UserError("prompt needs a pipeline with text_encoder and tokenizer; give prompt_embeds instead")
            for problem in self.prompt_problems(prompt or "", max_sequence_length):
                warn(problem, PromptWarning)
            prompts = [prompt] if isinstance(prompt, str) else list(prompt or ())
            length = self._sequence_length(max_sequence_length)
            prompt_embeds, mask = encode_each(self.tokenizer, self.text_encoder, prompts, length, trim=trim)
        elif prompt_attention_mask is None:
            mask = torch.ones(prompt_embeds.shape[:2], dtype=torch.bool, device=device)
        else:
            mask = prompt_attention_mask.bool()
        dtype = prompt_embeds.dtype if self.transformer is None else self.transformer.dtype
        prompt_embeds = prompt_embeds.to(device, dtype) * mask[..., None].to(device)
        prompt_embeds = prompt_embeds.repeat_interleave(num_images_per_prompt, dim=0)
        prompt_attention_mask = mask.to(device).repeat_interleave(num_images_per_prompt, dim=0)
        return prompt_embeds, prompt_attention_mask

    @torch.no_grad()
    def decode_tokens(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, grid * grid] (or [B, grid, grid]), as `output_type` asks.

        Each picture is decoded alone, so that its pixels do not depend on others.
        """
        grid = self.transformer.config.grid_size
        tokens = tokens.reshape(-1, grid, grid)
        if output_type == "latent":
            return tokens
        if self.pixel_dtype not in (torch.float32, torch.bfloat16):
            raise UserError(f"pixel_dtype must be torch.float32 or torch.bfloat16, got {self.pixel_dtype}")
        if self.vqvae.dtype != torch.float32:
            self.vqvae.to(dtype=torch.float32)  # `pipeline.to(bfloat16)` reaches it too
        each = tokens.reshape(-1, 1, grid * grid)
        pixels = torch.cat([decode_codes(self.vqvae, codes, dtype=self.pixel_dtype) for codes in each])
        check_pixels(pixels)
        return self.image_processor.postprocess(pixels, output_type=output_type)

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        class_labels: int | Sequence[int] | Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float = 1.0,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        negative_prompt_embeds: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        max_sequence_length: int | None = None,
        method: NamedMethod = "jacobi",
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: StepCallback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        guided_tokens: int | None = None,
        image: PictureInput | None = None,
        mask_image: PictureInput | None = None,
        start_rows: int | Sequence[int] | None = None,
        num_candidates: int = 1,
        paste_back: bool = False,
        **unknown: Any,
    ) -> CallResult:
        """Draw pictures.

        Args:
            prompt: what to draw, one sentence or several; for a text-conditional model.
            class_labels: one or several integers; for a class-conditional model.
            height, width: in pixels; may be given, but only as what the model makes.
            guidance_scale: classifier-free guidance; off at values <= 1, at half the cost. None: the model's own
                setting.
            temperature: divides the logits; 0 always takes the most probable token. None: the model's own setting.
            top_k: keep this many of the most probable tokens; 0 keeps all. None: the model's own setting.
            top_p: then keep the most probable tokens that together exceed this probability; 1 keeps all.
            num_images_per_prompt: pictures for every prompt; they follow each other in the output.
            generator: one for each picture: the same seed then gives the same picture whatever else is in the batch
                (but rounding in another batch size may decide between two tokens that are about as likely). A single
                generator for several pictures gives each a stream of its own, in order. One number for each picture is
                drawn from a generator.
            prompt_embeds: [B, T, caption_dim] text features instead of `prompt`, padded on the left.
            prompt_attention_mask: [B, T] for `prompt_embeds`, 0 at padding.
            negative_prompt: what guidance leads away from: one for all prompts, or one for each. None or empty: the
                model's own null prompt.
            negative_prompt_embeds, negative_prompt_attention_mask: likewise instead of `negative_prompt`.
            max_sequence_length: cut prompts to so many tokens, with a warning.
            method: how to decode: a name that `vargen methods` lists, a preset, or settings. With a trained drafter
                they name its folder. "jacobi" draws the pictures of plain decoding, "ar", in fewer forward passes.
            output_type: "pil", "np", "pt", or "latent" for the codes.
            return_dict: return an output object instead of a tuple.
            callback_on_step_end: called as `callback(pipeline, step, lengths, tensors)` after every forward pass of the
                target. A step is such a pass, not a token; step 0 is the prefill, which gives the first token.
                `lengths` [B] has the number of tokens of each picture. A dictionary that it returns may change
                `tokens`. It may set `pipeline._guidance_scale`, and `pipeline._interrupt = True`, which ends the call
                after this pass: tokens that are not drawn yet are 0.
            callback_on_step_end_tensor_inputs: which of "tokens" (int64 [B, N], valid up to `lengths`) and "lengths"
                the callback gets in `tensors`, as copies that it may keep. "latents" is another name of "tokens".
                Reading their values makes a GPU wait.
            guided_tokens: guidance leads so many first tokens of a picture; the others cost the prompt's own row alone,
                and are drawn from its distribution. None: all. Methods that read the other rows refuse it by name.
            image: a picture to start from, for all prompts or one for each: an image, an array uint8 [H, W, 3] or float
                [H, W, 3] in [0, 1], or a tensor [3, H, W] in [0, 1]. It must have the shape of the picture that is
                drawn, and is scaled to its size. Tokens that stay are fed once, and are no guesses of any method.
            mask_image: of the same size, white where to draw. A code is drawn if any of its pixels is white.
            start_rows: instead of a mask: so many first rows of codes stay; one number, or one for each prompt.
            num_candidates: draw so many pictures for each, and give the one under which the known tokens behind the
                first drawn one are likeliest: plain decoding sees what stands before a token alone. The first
                candidate is the picture of the seed.
            paste_back: give the user's own pixels outside the mask, not the decoded ones.
            **unknown: refused by name.

        Examples:
            ```py
            >>> import torch
            >>> from vargen import LlamaGenPipeline
            >>> from vargen.base.resources import find_model

            >>> pipeline = LlamaGenPipeline.from_pretrained(find_model())
            >>> generator = torch.Generator().manual_seed(0)
            >>> output = pipeline("a shiny red sphere left of a small blue cube", generator=generator)
            >>> output.images[0].save("spheres.png")
            >>> output.trace.target_passes < 256  # plain decoding has one forward pass for each token
            True
            ```

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace).

        Raises:
            UserError: an argument cannot be used with this model, or the pipeline is drawing already; the message names
                it and says what can be used.
        """
        check_arguments(LlamaGenPipeline.__call__, locals())
        return self._draw_call(locals())

    def _request(
        self,
        prompt: str | Sequence[str] | None,
        settings: DrawSettings,
        class_labels: int | Sequence[int] | Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        negative_prompt_embeds: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        max_sequence_length: int | None = None,
    ) -> PictureRequest:
        """See `StreamingPipeline._request`; arguments as of a call."""
        copies, output_type = settings.num_images_per_prompt, settings.output_type
        self._check_inputs(prompt, class_labels, prompt_embeds, prompt_attention_mask, output_type)
        check_size(self.image_size, height, width)
        texts = None if prompt is None else check_prompts(prompt)
        labels = None if class_labels is None else torch.as_tensor(class_labels).reshape(-1)
        method = self.resolve_method(settings.method)
        asked = {name: getattr(settings, name) for name in ("guidance_scale", "temperature", "top_k")}
        own = {name: self.config[f"default_{name}"] if value is None else value for name, value in asked.items()}
        sampling = check_sampling(**own, top_p=1.0 if settings.top_p is None else settings.top_p)
        scale = own["guidance_scale"]
        check_guided_tokens(settings.guided_tokens, method, self.reuse.compiler is not None)
        (given,) = (each for each in (texts, labels, prompt_embeds) if each is not None)
        away = (negative_prompt_embeds, negative_prompt_attention_mask)
        shown = _Prompts(texts, prompt_embeds, prompt_attention_mask)
        avoided = _Prompts(self._check_negative(negative_prompt, *away, len(given)), *away)
        has_negative = scale > 1 and (avoided.texts is not None or avoided.embeds is not None)
        device = self._execution_device
        trim = not self._components(device).wants_full_prompt(method)

        def condition(part: slice) -> tuple[dict[str, Tensor], Tensor | None]:
            """The arguments of `LlamaGenTransformer.embed_condition`, and the mask [B, T] of prompts."""
            if labels is not None:
                return {"class_labels": labels[part].to(device).long().repeat_interleave(copies)}, None
            features, mask = encoded(shown.of(part))
            return {"caption_embeds": features}, mask

        def encoded(prompts: _Prompts) -> tuple[Tensor, Tensor]:
            texts, embeds, mask = prompts.texts, prompts.embeds, prompts.mask
            return self.encode_prompt(texts, copies, embeds, mask, max_sequence_length, device, trim)

        def longest(prompts: _Prompts) -> int:
            if prompts.texts is None:
                return 1 if prompts.embeds is None else prompts.embeds.shape[1]
            most = self._sequence_length(max_sequence_length)
            if not trim:
                return most
            ids = self.tokenizer(as_trained(self.text_encoder, prompts.texts), verbose=False)["input_ids"]
            return min(max(map(len, ids)), most)

        def start(pictures: range, place: BatchSlot) -> tuple[PictureTarget, Method]:
            components = self._components(device)
            nodes = max(method.max_draft_nodes(self._usual_num_tokens), place.num_known + 1)
            part = slice(pictures.start // copies, pictures.stop // copies)
            negative = encoded(avoided.of(part)) if has_negative else None
            target = components.start(*condition(part), scale, nodes, place, negative, settings.guided_tokens)
            return target, method.build(components)

        def encode(pixels: Tensor) -> Tensor:
            return encode_images(self.vqvae.float(), pixels.to(device)).view(-1, *grid)

        grid = (self.grid_size, self.grid_size)
        request = PictureRequest(
            start=start,
            images=lambda tokens, pictures: self.decode_tokens(tokens, output_type),
            num_tokens=self._usual_num_tokens,
            longest_prompt=lambda: max(longest(shown), longest(avoided)),
            sampling=sampling,
            streams=random_streams(settings.generator, len(given) * copies, device, sampling.temperature == 0),
            report=settings.report,
            guidance_scale=scale,
            offloaded=is_offloaded(self.transformer),
        )
        encoder = None if self.vqvae is None else encode
        return request.edited(settings, [grid] * len(given), self.vae_scale_factor, encoder, "this pipeline")

    def _components(self, device: torch.device) -> LlamaGenComponents:
        parts = (self.transformer, self.vqvae, self.drafter, self.draft_model)
        return LlamaGenComponents(*parts, device, self.reuse)


# `DiffusionPipeline.from_pretrained` looks for the class that a folder names among diffusers' own, and finds this one.
diffusers.LlamaGenPipeline = LlamaGenPipeline
if (auto := sys.modules.get("diffusers.pipelines.auto_pipeline")) is not None:  # slow to import for those without it
    for task in ("TEXT2IMAGE", "IMAGE2IMAGE", "INPAINT"):
        getattr(auto, f"AUTO_{task}_PIPELINES_MAPPING")["llamagen"] = LlamaGenPipeline
