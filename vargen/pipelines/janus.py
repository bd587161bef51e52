"""Text to pictures with Janus and Janus-Pro as transformers has them, with the conventions of diffusers.

Belongs here: from prompts to pictures, for one batch. Does not belong here: how a picture becomes forwards
(`vargen.models.janus.target`), the decode loop (`specdecode.loop`), methods, files of many pictures.

It draws what `JanusForConditionalGeneration.generate(generation_mode="image")` draws: its prompt, null prompt, guidance
and sampling. Beside that, guidance can be off, and every picture has a random stream of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.utils import replace_example_docstring
from torch import Tensor
from transformers import JanusForConditionalGeneration, JanusProcessor

from specdecode.roles import Target
from specdecode.trace import DecodeTrace
from vargen.base.errors import UserError
from vargen.methods.base import ImageMethodConfig, Method
from vargen.methods.catalogue import resolve_method
from vargen.models.finite import check_pixels
from vargen.models.janus.target import JanusTarget, num_image_tokens
from vargen.models.janus.vq import decode_codes, intensities
from vargen.models.offloading import is_offloaded, move_offloaded
from vargen.pipelines.causal_models import (
    CausalModelPipeline,
    check_context,
    check_input_ids,
    count_prompts,
    for_every_picture,
    images_of,
    normalisation,
    of_pictures,
    refusals,
    setting,
)
from vargen.pipelines.common import (
    AutoregressivePipelineOutput,
    StepCallback,
    StepReport,
    check_picture_arguments,
    check_prompts,
    decode_pictures,
    finished,
    random_streams,
)
from vargen.pipelines.components.base import ONLY, KeptBetweenBatches, Place
from vargen.pipelines.components.janus import JanusComponents
from vargen.pipelines.streaming import PictureStream, stream_pictures

EXAMPLE_DOC_STRING = """
    Examples:
        ```py
        >>> import torch
        >>> from vargen import JanusPipeline

        >>> pipeline = JanusPipeline.from_pretrained("deepseek-community/Janus-Pro-1B", dtype=torch.bfloat16).to("cuda")
        >>> output = pipeline("a dog running under the rain", method="scd", generator=torch.Generator().manual_seed(0))
        >>> output.images[0].save("dog.png")
        ```
"""


class JanusPipeline(CausalModelPipeline):
    """Pictures from sentences, one token after another.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        processor: makes tokens of prompts, by its chat template. Without it, prompts must come as `input_ids`.

    Raises:
        UserError: the model cannot draw.
    """

    model_class = JanusForConditionalGeneration
    processor_class = JanusProcessor
    usual_guidance = 5.0  # as its `generate` has it

    def __init__(self, model: JanusForConditionalGeneration, processor: JanusProcessor | None = None) -> None:
        super().__init__()
        self._register(model, processor)
        decoder: Any = model.config.vq_config
        self.grid_size = decoder.num_patches
        if self.grid_size**2 != num_image_tokens(model):
            raise UserError(
                f"model must draw square grids: its config.json has {num_image_tokens(model)} image tokens, and a "
                f"decoder of {self.grid_size} x {self.grid_size}"
            )
        self.image_size = self.grid_size * 2 ** (len(decoder.channel_multiplier) - 1)
        self._kept = KeptBetweenBatches()

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        num_images_per_prompt: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Tokens [B * num_images_per_prompt, T] int64 of prompts, padded on the left, and their mask.

        Raises:
            UserError: there is no processor, or the prompts cannot be drawn from.
        """
        count_prompts(prompt, input_ids)
        if prompt is not None:
            input_ids, attention_mask = self._tokenize(check_prompts(prompt))
        assert input_ids is not None
        check_input_ids(input_ids, attention_mask, self.model.config.get_text_config().vocab_size)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        check_context(self.model.config, mask, num_image_tokens(self.model))
        return for_every_picture(input_ids, mask, num_images_per_prompt, self._execution_device)

    def prompt_problems(self, prompt: str | Sequence[str]) -> list[str]:
        """Nothing: every word of a prompt is read. Raises UserError for one that the context has no room for."""
        check_context(self.model.config, self._tokenize(check_prompts(prompt))[1], num_image_tokens(self.model))
        return []

    def _tokenize(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        if self.processor is None:
            raise UserError("prompt needs a pipeline with a processor; give input_ids and attention_mask instead")
        if self.processor.chat_template is None:
            raise UserError(
                "prompt needs a processor with a chat template, without which the model reads something else than it "
                "was trained on; copy chat_template.jinja beside the model, or give input_ids"
            )
        chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in prompts]
        texts = self.processor.apply_chat_template(chats, add_generation_prompt=True)
        tokens = self.processor(
            text=texts, generation_mode="image", padding=True, padding_side="left", return_tensors="pt"
        )
        return tokens["input_ids"], tokens["attention_mask"]

    def target_of(self, prompts: Sequence[str], max_draft_nodes: int) -> JanusTarget:
        """The target of a batch of prompts in the model's own settings, for who learns from it.

        Raises:
            UserError: see `encode_prompt`.
        """
        scale = setting(self.model.generation_config, "guidance_scale", None, self.usual_guidance)
        input_ids, attention_mask = self.encode_prompt(prompts)
        return JanusTarget(self.model, input_ids, attention_mask, guidance_scale=scale, max_draft_nodes=max_draft_nodes)

    def resolve_method(
        self, method: str | ImageMethodConfig, options: Mapping[str, Any] | None = None
    ) -> ImageMethodConfig:
        """The settings of a method on this model, every size that pictures depend on in numbers.

        Args:
            method: a name, a preset, or settings.
            options: settings that differ; only with a name or a preset.

        Raises:
            UserError: an unknown name or option, or one out of range.
        """
        return resolve_method(method, options).resolved(num_image_tokens(self.model))

    def decode_tokens(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, grid * grid] (or [B, grid, grid]), as `output_type` asks.

        As images they are those of `JanusProcessor.postprocess`, which drops what follows the point of an intensity.
        """
        codes = tokens.reshape(-1, self.grid_size**2)
        if output_type == "latent":
            return codes.view(-1, self.grid_size, self.grid_size)
        pixels = decode_codes(self.model, codes)
        check_pixels(pixels)
        return images_of(intensities(pixels, *normalisation(self.processor)), output_type)

    @torch.no_grad()
    @replace_example_docstring(EXAMPLE_DOC_STRING)
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        method: str | ImageMethodConfig = "jacobi",
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: StepCallback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> AutoregressivePipelineOutput | tuple[Any, Tensor, DecodeTrace]:
        """Make pictures.

        Args:
            prompt: what to draw, one sentence or several.
            input_ids: [B, T] int64 instead of `prompt`, padded on the left, ending with the beginning of an image.
            attention_mask: [B, T] for `input_ids`, 0 at padding; None: nothing is padded.
            height, width: may be given, but only as what the model makes.
            guidance_scale: classifier-free guidance; off at values <= 1, at half the cost. None: what the model's
                generation_config.json says, else 5, as in `generate`.
            temperature: divides the logits; 0 takes the most probable token always. None: the model's, else 1.
            top_k: keep this many of the most probable tokens; 0 keeps all. None: the model's, else 50.
            top_p: then keep the most probable ones that together exceed this probability; 1 keeps all. None: the
                model's, else 1.
            num_images_per_prompt: pictures for every prompt; they follow each other in the output.
            generator: one per picture: the same seed then gives the same picture whatever else is in the batch (up to
                what rounding of another batch size can change in a near tie). A single one for several pictures gives
                each its own stream, in order. Only one number is drawn from a generator per picture.
            method: how to decode: a name that `vargen methods` lists, a preset, or settings. Those of trained drafters
                name its folder. "jacobi" makes the pictures of plain decoding, "ar", in fewer passes.
            output_type: "pil", "np", "pt", or "latent" for the codes.
            return_dict: an output object instead of a tuple.
            callback_on_step_end: called as `callback(pipeline, step, lengths, tensors)` after every target pass, which
                is what a step is here, not a token; step 0 is the prefill, which gives the first token. `lengths` [B]
                says how many tokens each picture has. It may look, not change: what it returns is ignored.
            callback_on_step_end_tensor_inputs: which of "tokens" (int64 [B, grid * grid], valid up to `lengths`) and
                "lengths" the callback gets in `tensors`. Reading their values makes a GPU wait.

        Examples:

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace).

        Raises:
            UserError: an argument cannot be used with this model; the message says which, and what can.
        """
        report = StepReport(callback_on_step_end, callback_on_step_end_tensor_inputs)
        check_picture_arguments(height, width, self.image_size, num_images_per_prompt, output_type)
        method = self.resolve_method(method)
        guidance_scale, sampling = self._sampling(guidance_scale, temperature, top_k, top_p)
        num_tokens = num_image_tokens(self.model)
        batch_size, device = count_prompts(prompt, input_ids) * num_images_per_prompt, self._execution_device
        streams = random_streams(generator, batch_size, device)
        trace = DecodeTrace(batch_size, device)
        with trace.phase("encode_prompt"), refusals():
            input_ids, attention_mask = self.encode_prompt(prompt, input_ids, attention_mask, num_images_per_prompt)
            move_offloaded(self.model)
            target, players = self._begin(input_ids, attention_mask, guidance_scale, method)
        result = decode_pictures(self, target, players, num_tokens, sampling, streams, trace, report)
        return finished(self, lambda: self.decode_tokens(result.tokens, output_type), result.tokens, trace, return_dict)

    def stream(
        self,
        prompt: Sequence[str],
        *,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        batch_size: int = 8,
        continuous: bool = True,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        method: str | ImageMethodConfig = "jacobi",
        output_type: str = "pil",
        callback_on_step_end: StepCallback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> PictureStream:
        """Make any number of pictures, each given as soon as it is finished; see `LlamaGenPipeline.stream`.

        Args:
            prompt: one for each picture.
            generator: one for each picture, or a single one, which gives each its own stream, in order.
            batch_size: pictures drawn at once.
            continuous: False: every batch ends with its slowest picture, and only then the next begins.
            height, width, guidance_scale, temperature, top_k, top_p, method, output_type, callback_on_step_end,
            callback_on_step_end_tensor_inputs: as for `__call__`.

        Returns:
            An iterable of `FinishedPicture`, in the order in which they are finished.

        Raises:
            UserError: as `__call__`; also `batch_size` out of range.
        """
        report = StepReport(callback_on_step_end, callback_on_step_end_tensor_inputs)
        check_picture_arguments(height, width, self.image_size, 1, output_type)
        chosen = self.resolve_method(method)
        scale, sampling = self._sampling(guidance_scale, temperature, top_k, top_p)
        with refusals():
            input_ids, attention_mask = self.encode_prompt(prompt)

        def start(pictures: range, place: Place) -> tuple[Target, Method]:
            asked = of_pictures(input_ids, attention_mask, pictures)
            move_offloaded(self.model)
            with refusals():
                return self._begin(*asked, scale, chosen, place)

        return stream_pictures(
            self,
            start,
            lambda tokens: self.decode_tokens(tokens, output_type),
            batch_size=batch_size,
            longest_prompt=input_ids.shape[1],
            num_tokens=num_image_tokens(self.model),
            sampling=sampling,
            streams=random_streams(generator, len(input_ids), self._execution_device),
            report=report,
            continuous=continuous and not is_offloaded(self.model),
        )

    def _begin(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        guidance_scale: float,
        method: ImageMethodConfig,
        place: Place = ONLY,
    ) -> tuple[JanusTarget, Method]:
        """Target and players of prompts [B, T]."""
        target = JanusTarget(
            self.model,
            input_ids,
            attention_mask,
            guidance_scale=guidance_scale,
            max_draft_nodes=method.max_draft_nodes(num_image_tokens(self.model)),
            longest_prompt=None if place.joins else place.longest_prompt,
        )
        return target, method.build(JanusComponents(self.model, target, self._kept, place.joins))
