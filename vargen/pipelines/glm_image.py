"""GLM-Image with its autoregressive part in the speculative loop: diffusers' pipeline, whose priors any method draws.

Belongs here: from prompts to priors for one batch, and giving them to diffusers. Does not belong here: how codes become
forward passes (`vargen.models.glm_image`), the steps of a batch (`base.py`), denoising and the VAE (diffusers).

GLM-Image draws in two parts. A language model draws codes, the prior: those of the picture at 1/32 of its size, and
before that, from text alone, those of a preview. A diffusion transformer makes pixels of text and prior. The two meet
in `prior_token_ids` of `GlmImagePipeline`. diffusers draws one prior for all pictures of a prompt, from torch's global
seed; here every picture has a prior and a random stream of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import PIL.Image
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImageTransformer2DModel
from diffusers.pipelines.glm_image.pipeline_glm_image import GlmImagePipeline
from diffusers.utils import BaseOutput
from torch import Tensor
from transformers import ByT5Tokenizer, GlmImageForConditionalGeneration, GlmImageProcessor, T5EncoderModel

from specdecode.kernels.default_torch_mode import default_torch_mode
from specdecode.trace import DecodeTrace
from vargen.base.errors import UserError
from vargen.checkpoints.finite import check_component_weights, check_pixels
from vargen.checkpoints.model_folder import check_model_folder, check_pipeline_class, has_torch_files
from vargen.checkpoints.offloading import check_device_map, move_offloaded
from vargen.checkpoints.transformers_folder import checked_arguments, hub_arguments, unloadable
from vargen.methods.base import Method, NamedMethod, refusals
from vargen.models.components import BatchSlot
from vargen.models.glm_image.glm_image_components import GlmImageComponents
from vargen.models.glm_image.glm_image_target import GlmImageTarget
from vargen.models.glm_image.prior_request import PriorRequest, read_request, upsampled
from vargen.models.picture_size import grid_of_sides
from vargen.pipelines.arguments import (
    DrawSettings,
    PictureRequest,
    PictureTarget,
    StepCallback,
    check_prompts,
    negative_prompts,
    random_streams,
)
from vargen.pipelines.base import CallResult, PicturePipeline
from vargen.pipelines.call_types import check_arguments
from vargen.pipelines.transformers import check_context, sampling_as_generate

PIXELS_A_TOKEN = 32
"""Along a side of the picture."""
PIXELS_A_LATENT = PIXELS_A_TOKEN // 2
"""Along a side, of each latent that diffusers denoises."""

Images = PIL.Image.Image | Sequence[PIL.Image.Image] | Sequence[Sequence[PIL.Image.Image]]


@dataclass
class GlmImagePriorOutput(BaseOutput):
    """Priors, as `GlmImagePipeline` takes them, and what they cost.

    Args:
        prior_token_ids: int64 [B, 4 * rows * columns], the codes of each picture, every code as a square of 2 x 2.
        prior_token_image_ids: for each row the codes, int64 and likewise in squares, of the pictures it was given, one
            after another; None without pictures.
        source_image_grid_thw: for each row int64 [pictures, 3], frames, rows and columns of these; None likewise.
        picture_codes: int64 [B, rows, columns], the codes of each picture.
        tokens: int64 [B, N], what was drawn: without pictures first the preview's codes, then the picture's.
        trace: forward passes of the target (the prefill is one), and seconds by phase: "encode_prompt", "prefill" and
            "decode".
    """

    prior_token_ids: Tensor
    prior_token_image_ids: list[Tensor] | None
    source_image_grid_thw: list[Tensor] | None
    picture_codes: Tensor
    tokens: Tensor
    trace: DecodeTrace

    def arguments(self) -> dict[str, Any]:
        """The arguments for `GlmImagePipeline`, beside one prompt for each picture."""
        names = ("prior_token_ids", "prior_token_image_ids", "source_image_grid_thw")
        return {name: getattr(self, name) for name in names}


class GlmImagePriorPipeline(PicturePipeline, GlmImagePipeline):
    """diffusers' `GlmImagePipeline` of the same components, whose priors are drawn by any decoding method.

    Args:
        processor: makes tokens of prompts and pictures, by its chat template. None where only prompts are encoded.
        vision_language_encoder: draws priors; in evaluation mode. None likewise.
        tokenizer, text_encoder, vae, transformer, scheduler: make pixels of priors. None where only priors are wanted.

    Raises:
        UserError: the model cannot draw priors.
    """

    _optional_components = ["tokenizer", "text_encoder", "vae", "transformer", "scheduler"]  # noqa: RUF012 (a diffusers convention)

    def __init__(
        self,
        tokenizer: ByT5Tokenizer | None,
        processor: GlmImageProcessor | None,
        text_encoder: T5EncoderModel | None,
        vision_language_encoder: GlmImageForConditionalGeneration | None,
        vae: AutoencoderKL | None,
        transformer: GlmImageTransformer2DModel | None,
        scheduler: FlowMatchEulerDiscreteScheduler | None,
    ) -> None:
        parts: Any = (tokenizer, processor, text_encoder, vision_language_encoder, vae, transformer, scheduler)
        super().__init__(*parts)
        model, kind = vision_language_encoder, GlmImageForConditionalGeneration
        if model is not None and not isinstance(model, kind):
            raise UserError(f"vision_language_encoder must be a {kind.__name__}, got {type(model).__name__}")

    @property
    def _usual_num_tokens(self) -> int:
        return (self.default_sample_size * self.vae_scale_factor // PIXELS_A_TOKEN) ** 2

    @property
    def _decoder_layers(self) -> torch.nn.Module:
        return self.vision_language_encoder.model.language_model.layers

    @property
    def _adapted(self) -> torch.nn.Module:
        return self.vision_language_encoder

    _linears = _adapted

    @classmethod
    def from_pipe(cls, pipeline: GlmImagePipeline, **kwargs: Any) -> Self:
        """A pipeline of the same components, on the same devices and with the same offloading.

        Args:
            pipeline: of diffusers.
            **kwargs: components instead of its own.

        Raises:
            UserError: it is not a GLM-Image pipeline.
        """
        if not isinstance(pipeline, GlmImagePipeline):
            raise UserError(f"pipeline must be a GlmImagePipeline of diffusers, got {type(pipeline).__name__}")
        made = cls(**{**pipeline.components, **kwargs})
        for name in ("_all_hooks", "_offload_device", "_offload_gpu_id", "_progress_bar_config"):
            if hasattr(pipeline, name):
                setattr(made, name, getattr(pipeline, name))
        return made

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> Self:
        """Check the files, then load as diffusers does, from a folder or a name on the hub.

        Args:
            pretrained_model_name_or_path: such as "zai-org/GLM-Image".
            **kwargs: for `DiffusionPipeline.from_pretrained`: dtype, device_map ("balanced", or a kind of device),
                quantization_config (a `PipelineQuantizationConfig`), revision, ...;
                `transformer=None, vae=None, text_encoder=None, tokenizer=None, scheduler=None` for priors alone;
                `attn_implementation`, "sdpa" or "eager", of the autoregressive part.

        Raises:
            UserError: there is no such model, it is another pipeline's, it cannot be placed as asked, or weights are
                missing or damaged; or code of a repository is to be run.
        """
        kwargs = checked_arguments(kwargs)
        source, attention = os.fspath(pretrained_model_name_or_path), kwargs.pop("attn_implementation", None)
        check_device_map(kwargs.get("device_map"))
        try:
            folder = source if os.path.isdir(source) else cls.download(source, **hub_arguments(kwargs))
            check_pipeline_class(folder, (GlmImagePipeline.__name__,))
            passed = {*kwargs} & {*cls._get_signature_keys(cls)[0]}
            required = {"processor", "vision_language_encoder"} - passed
            check_model_folder(folder, skip=passed, required=required, variant=kwargs.get("variant"))
            as_torch = any(has_torch_files(part) for part in Path(folder).iterdir())
            made: Self = super().from_pretrained(folder, **{"use_safetensors": None if as_torch else True, **kwargs})
            if attention is not None:
                made.vision_language_encoder.set_attn_implementation(attention)
            check_component_weights(made.components, folder)
            return made
        except UserError:
            raise
        except (OSError, ValueError, RuntimeError, ImportError, NotImplementedError) as error:
            raise unloadable(source, error, kwargs) from error

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as diffusers' pipeline, which it and `from_pretrained` read."""
        self._refuse_adapters()
        GlmImagePipeline(**self.components).save_pretrained(save_directory, *args, **kwargs)

    def encode_request(
        self,
        prompt: str | Sequence[str],
        image: Images | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
    ) -> PriorRequest:
        """The request for the autoregressive part, as `generate_priors` makes it.

        Raises:
            UserError: there is no processor, the size cannot be drawn, or the prompts leave no room for a picture.
        """
        prompts = check_prompts(prompt)
        pictures = self._pictures(image, len(prompts))
        height, width = self._size(height, width, pictures)
        if self.vision_language_encoder is None:
            raise UserError("vision_language_encoder is None: this pipeline can only encode prompts; load it with it")
        if getattr(self.processor, "chat_template", None) is None:
            raise UserError(
                "prompt needs a processor with a chat template, because the model was trained on prompts in that form; "
                "load the pipeline's `processor` folder whole"
            )
        chats = [
            [{"role": "user", "content": [*({"type": "image", "image": each} for each in own), text]}]
            for own, text in zip(
                pictures or [[]] * len(prompts), ({"type": "text", "text": text} for text in prompts), strict=True
            )
        ]
        size = {"target_h": height, "target_w": width}
        with refusals():
            inputs = self.processor.apply_chat_template(
                chats, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs={"padding": True, **size}
            )
        request = read_request(self.vision_language_encoder, inputs)
        if not all(rows * columns for rows, columns in request.grids):
            raise UserError(f"height and width must be more alike: {height} x {width} pixels leave no preview")
        check_context(self.vision_language_encoder.config, request.attention_mask, request.num_tokens)
        self._check_pictures(pictures, request)
        return request.repeated(num_images_per_prompt)

    def target_of(self, prompts: Sequence[str], max_draft_nodes: int) -> GlmImageTarget:
        """The target of a batch of prompts for pictures of the usual size, for training. Raises UserError as
        `encode_request`."""
        return GlmImageTarget(
            self.vision_language_encoder, self.encode_request(prompts), max_draft_nodes=max_draft_nodes
        )

    def prompt_problems(
        self, prompt: str | Sequence[str], height: int | None = None, width: int | None = None
    ) -> list[str]:
        """An empty list: the model reads every word. Raises UserError where a prompt leaves no room for a picture."""
        self.encode_request(prompt, height=height, width=width)
        return []

    @default_torch_mode()
    def generate_priors(
        self,
        prompt: str | Sequence[str],
        image: Images | None = None,
        height: int | None = None,
        width: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        method: NamedMethod = "jacobi",
        callback_on_step_end: StepCallback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> GlmImagePriorOutput:
        """Draw priors, which `GlmImagePipeline` makes pictures of: `pipe(prompts, **priors.arguments())`.

        Args:
            prompt: see `__call__`, which describes all other arguments too.
            guidance_scale: off (at most 1), or None: the autoregressive part has no guidance.

        Raises:
            UserError: an argument cannot be used with this model; the message names it and says what can be used.
        """
        settings = DrawSettings.of(locals() | {"image": None})  # its pictures stand in the prompt
        with self._turn():
            return self._priors(prompt, settings, image, height, width)

    def _priors(
        self,
        prompt: str | Sequence[str],
        settings: DrawSettings,
        image: Images | None,
        height: int | None,
        width: int | None,
    ) -> GlmImagePriorOutput:
        """See `generate_priors`; only within a turn."""
        if settings.guidance_scale is not None and settings.guidance_scale > 1:
            raise UserError(
                f"guidance_scale must be at most 1 (off) where only priors are drawn, got {settings.guidance_scale}: "
                f"the autoregressive part of GLM-Image has no guidance, only its denoising has"
            )
        model, device = self.vision_language_encoder, self._execution_device
        asked = (settings.temperature, settings.top_k, settings.top_p)
        sampling = sampling_as_generate(model.generation_config, *asked, guidance_scale=1.0)
        count = len(check_prompts(prompt)) * settings.num_images_per_prompt
        streams = random_streams(settings.generator, count, device, sampling.temperature == 0)
        trace = DecodeTrace(count, device)
        with trace.phase("encode_prompt"), refusals():
            move_offloaded(model)
            prior = self.encode_request(prompt, image, height, width, settings.num_images_per_prompt)
        method = self.resolve_method(settings.method, num_tokens=prior.num_tokens)

        def start(pictures: range, place: BatchSlot) -> tuple[PictureTarget, Method]:
            target = GlmImageTarget(model, prior, max_draft_nodes=method.max_draft_nodes(prior.num_tokens))
            return target, method.build(GlmImageComponents(model, target, self.reuse))

        request = PictureRequest(
            start=start,
            images=lambda tokens, pictures: prior.picture_codes(tokens),
            num_tokens=prior.num_tokens,
            longest_prompt=lambda: prior.attention_mask.shape[1],
            sampling=sampling,
            streams=streams,
            report=settings.report,
        )
        tokens = self._decode(request, trace)
        source_ids = source_grids = None
        if prior.sources is not None:
            source_ids = [torch.cat([upsampled(each[None])[0] for each in row]) for row in prior.sources]
            source_grids = [
                torch.tensor([[1, 2 * each.shape[0], 2 * each.shape[1]] for each in row], device=device)
                for row in prior.sources
            ]
        codes = prior.picture_codes(tokens)
        return GlmImagePriorOutput(
            prior_token_ids=upsampled(codes),
            prior_token_image_ids=source_ids,
            source_image_grid_thw=source_grids,
            picture_codes=codes,
            tokens=tokens,
            trace=trace,
        )

    @default_torch_mode()
    def __call__(
        self,
        prompt: str | Sequence[str],
        image: Images | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        negative_prompt: str | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        method: NamedMethod = "jacobi",
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: StepCallback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        **kwargs: Any,
    ) -> CallResult:
        """Draw a prior for each picture, then make pictures of them with diffusers' own call.

        Sampling settings are those of priors: where a call gives none, the model's generation_config.json does, else
        temperature 1, top_k 50 and top_p 1, as in `generate`.

        Args:
            prompt: what to draw, or what to do with pictures; one sentence or several.
            image: pictures to begin from: one, several for one prompt, or for every prompt a list of as many.
            height, width: of the pictures, multiples of 32. None: those of the first picture that is given, else 1024.
            num_inference_steps: of denoising.
            guidance_scale: of denoising, as in diffusers; None: diffusers' own default. Priors are drawn without it.
            temperature: divides the logits; 0 always takes the most probable token. None: the model's own setting.
            top_k: keep this many of the most probable tokens; 0 keeps all. None: the model's own setting.
            top_p: then keep the most probable tokens that together exceed this probability; 1 keeps all. None: the
                model's own setting.
            negative_prompt: must be None or empty: priors are drawn without guidance, and diffusers' denoising leads
                away from the empty prompt, or from `negative_prompt_embeds`.
            num_images_per_prompt: pictures for every prompt; they follow each other in the output.
            generator: one for each picture: the same seed then gives the same picture whatever else is in the batch
                (but rounding in another batch size may decide between two tokens that are about as likely). A single
                generator for several pictures gives each a stream of its own, in order. One number for each picture is
                drawn from a generator.
            method: how to decode: a name that `vargen methods` lists, a preset, or settings. With a trained drafter
                they name its folder. "jacobi" draws the pictures of plain decoding, "ar", in fewer forward passes.
            output_type: "pil", "np", "pt", or "latent" for the picture's codes, int64 [B, rows, columns], without any
                denoising.
            return_dict: return an output object instead of a tuple.
            callback_on_step_end: called as `callback(pipeline, step, lengths, tensors)` after every forward pass of the
                autoregressive part; see `JanusPipeline`. For callbacks of denoising, draw with `generate_priors` and
                call diffusers' pipeline.
            callback_on_step_end_tensor_inputs: which of "tokens" (int64 [B, N], valid up to `lengths`) and "lengths"
                the callback gets in `tensors`, as copies that it may keep. "latents" is another name of "tokens".
                Reading their values makes a GPU wait.
            **kwargs: further arguments of `GlmImagePipeline`, such as sigmas or max_sequence_length.

        Examples:
            ```py
            >>> import torch
            >>> from diffusers import GlmImagePipeline
            >>> from vargen import GlmImagePriorPipeline

            >>> pipe = GlmImagePipeline.from_pretrained("zai-org/GLM-Image", dtype=torch.bfloat16).to("cuda")
            >>> pipeline = GlmImagePriorPipeline.from_pipe(pipe)
            >>> generator = torch.Generator().manual_seed(0)
            >>> output = pipeline("a dog running under the rain", method="scd", generator=generator)
            >>> output.images[0].save("dog.png")
            ```

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace). Tokens are the preview's codes (none
            where pictures are given), then the picture's. The trace is of the prior; "decode_images" is denoising.

        Raises:
            UserError: an argument cannot be used with this model; the message names it and says what can be used.
        """
        check_arguments(GlmImagePriorPipeline.__call__, locals())
        scale = guidance_scale if output_type == "latent" else None
        settings = DrawSettings.of(locals() | {"image": None, "guidance_scale": scale})
        prompts = check_prompts(prompt)
        if negative_prompts(negative_prompt, len(prompts)) is not None:
            raise UserError(
                "negative_prompt cannot be used with GLM-Image: priors are drawn without guidance, and diffusers' "
                "denoising takes negative_prompt_embeds alone; leave it out"
            )
        pictures = self._pictures(image, len(prompts))
        height, width = self._size(height, width, pictures)
        missing = [name for name in self._optional_components if getattr(self, name) is None]
        if missing and output_type != "latent":
            raise UserError(
                f'output_type must be "latent" (codes): the pipeline has no {missing[0]}, and without it no pixels'
            )

        def denoised() -> Any:
            guidance = {} if guidance_scale is None else {"guidance_scale": guidance_scale}
            pixels = GlmImagePipeline.__call__(
                self,
                [text for text in prompts for _ in range(num_images_per_prompt)],
                image=None if pictures is None else [own for own in pictures for _ in range(num_images_per_prompt)],
                height=height,
                width=width,
                num_inference_steps=num_inference_steps,
                generator=[*generator] if isinstance(generator, Sequence) else generator,
                output_type="pt",
                return_dict=False,
                **priors.arguments(),
                **guidance,
                **kwargs,
            )[0]
            check_pixels(pixels)
            if output_type == "pt":
                return pixels
            arrays = self.image_processor.pt_to_numpy(pixels)  # as diffusers goes from one to the next
            return arrays if output_type == "np" else self.image_processor.numpy_to_pil(arrays)

        with self._turn():
            priors = self._priors(prompts, settings, pictures, height, width)
            make_images = denoised if output_type != "latent" else lambda: priors.picture_codes
            return self._finished(make_images, priors.tokens, priors.trace, return_dict)

    def _pictures(self, image: Images | None, num_prompts: int) -> list[list[PIL.Image.Image]] | None:
        """Pictures as diffusers reads them: for every prompt a list of as many."""
        if image is None:
            return None
        given: Any = [image] if isinstance(image, PIL.Image.Image) else image
        with refusals():
            return self._validate_and_normalize_images(given, num_prompts)

    def _size(
        self, height: int | None, width: int | None, pictures: list[list[PIL.Image.Image]] | None
    ) -> tuple[int, int]:
        if pictures:
            usual_width, usual_height = (side // PIXELS_A_TOKEN * PIXELS_A_TOKEN for side in pictures[0][0].size)
        else:
            usual_height = usual_width = self.default_sample_size * self.vae_scale_factor
        height, width = usual_height if height is None else height, usual_width if width is None else width
        grid_of_sides(height, width, PIXELS_A_TOKEN)
        return height, width

    def _check_pictures(self, pictures: list[list[PIL.Image.Image]] | None, request: PriorRequest) -> None:
        """Refuse pictures whose grids differ for the prior and the VAE, on which diffusers fails while denoising."""
        for own, sources in zip(pictures or (), request.sources or (), strict=True):
            for given, codes in zip(own, sources, strict=True):
                size = given.size[1] // PIXELS_A_LATENT, given.size[0] // PIXELS_A_LATENT
                if size != (2 * codes.shape[0], 2 * codes.shape[1]):
                    rows, columns = codes.shape
                    raise UserError(
                        f"image of {given.size[0]} x {given.size[1]} pixels is no whole number of tokens; resize it to "
                        f"{columns * PIXELS_A_TOKEN} x {rows * PIXELS_A_TOKEN}"
                    )
