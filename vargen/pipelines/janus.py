"""Text to pictures with Janus and Janus-Pro as transformers has them, with the conventions of diffusers.

Belongs here: Janus' prompts, arguments and pictures. Does not belong here: how a picture becomes forward passes
(`vargen.models.janus.janus_target`), and code for every family of transformers (`vargen.pipelines.transformers`).

It draws what `JanusForConditionalGeneration.generate(generation_mode="image")` draws: its prompt, null prompt, guidance
and sampling. Beyond that, guidance can be off, and every picture has a random stream of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import JanusForConditionalGeneration, JanusProcessor

from vargen.base.errors import UserError
from vargen.methods.base import NamedMethod
from vargen.models.janus.janus_components import JanusComponents
from vargen.models.janus.janus_target import JanusTarget, num_image_tokens
from vargen.models.janus.vq import decode_codes, intensities
from vargen.models.known_pictures import PictureInput
from vargen.pipelines.arguments import (
    DrawSettings,
    PictureRequest,
    StepCallback,
    check_prompts,
    check_size,
    negative_words,
)
from vargen.pipelines.base import CallResult
from vargen.pipelines.call_types import check_arguments
from vargen.pipelines.transformers import Prompts, TransformersPipeline, check_context, check_input_ids, count_prompts


class JanusPipeline(TransformersPipeline):
    """Pictures from sentences, one token after another.

    Where a call gives no setting, the model's generation_config.json does, else `generate`: guidance 5, temperature 1,
    top_k 50 and top_p 1.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        processor: makes tokens of prompts, by its chat template. Without it, prompts must come as `input_ids`.

    Raises:
        UserError: the model cannot draw.
    """

    model_class = JanusForConditionalGeneration
    processor_class = JanusProcessor
    components_class = JanusComponents
    usual_guidance = 5.0  # as its `generate` has it

    def __init__(self, model: JanusForConditionalGeneration, processor: JanusProcessor | None = None) -> None:
        super().__init__(model, processor=processor)
        decoder: Any = model.config.vq_config
        self.grid_size = decoder.num_patches
        if self.grid_size**2 != num_image_tokens(model):
            raise UserError(
                f"model must draw square grids: its config.json has {num_image_tokens(model)} image tokens, and a "
                f"decoder of {self.grid_size} x {self.grid_size}"
            )
        self.image_size = self.grid_size * 2 ** (len(decoder.channel_multiplier) - 1)

    @property
    def _usual_num_tokens(self) -> int:
        return num_image_tokens(self.model)

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        num_images_per_prompt: int = 1,
    ) -> Prompts:
        """Tokens [B * num_images_per_prompt, T] int64 of prompts, padded on the left, and their mask.

        Raises:
            UserError: there is no processor, or nothing can be drawn from the prompts.
        """
        count_prompts(prompt, input_ids)
        if prompt is not None:
            input_ids, attention_mask = self._tokenize(check_prompts(prompt))
        assert input_ids is not None
        check_input_ids(input_ids, attention_mask, self.model.config.get_text_config().vocab_size)
        prompts = self._for_every_picture(input_ids, attention_mask, num_images_per_prompt)
        check_context(self.model.config, prompts[1], self._usual_num_tokens)
        return prompts

    def prompt_problems(self, prompt: str | Sequence[str]) -> list[str]:
        """An empty list: the model reads every word. Raises UserError where a prompt leaves no room for a picture."""
        check_context(self.model.config, self._tokenize(check_prompts(prompt))[1], self._usual_num_tokens)
        return []

    def _tokenize(self, prompts: list[str]) -> Prompts:
        if self.processor is None:
            raise UserError("prompt needs a pipeline with a processor; give input_ids and attention_mask instead")
        if self.processor.chat_template is None:
            raise UserError(
                "prompt needs a processor with a chat template, because the model was trained on prompts in that form; "
                "copy chat_template.jinja beside the model, or give input_ids"
            )
        chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in prompts]
        texts = self.processor.apply_chat_template(chats, add_generation_prompt=True)
        tokens = self.processor(
            text=texts, generation_mode="image", padding=True, padding_side="left", return_tensors="pt"
        )
        return tokens["input_ids"], tokens["attention_mask"]

    def target_of(self, prompts: Sequence[str], max_draft_nodes: int) -> JanusTarget:
        """The target of a batch of prompts in the model's own settings, for training. Raises UserError as
        `encode_prompt`."""
        return self._target(
            [self.encode_prompt(prompts)], guidance_scale=self._guidance(), max_draft_nodes=max_draft_nodes
        )

    def _target(self, prompts: Sequence[Prompts], **settings: Any) -> JanusTarget:
        return JanusTarget(self.model, *prompts[0], negative=prompts[1] if len(prompts) > 1 else None, **settings)

    def decode_tokens(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, grid * grid] (or [B, grid, grid]), as `output_type` asks.

        Images are those of `JanusProcessor.postprocess`, which cuts intensities to whole numbers.
        """
        codes = tokens.reshape(-1, self.grid_size**2)
        if output_type == "latent":
            return codes.view(-1, self.grid_size, self.grid_size)
        return self._images_of(intensities, decode_codes(self.model, codes), output_type)

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
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
            prompt: what to draw, one sentence or several.
            input_ids: [B, T] int64 instead of `prompt`, padded on the left, ending with the beginning of an image.
            attention_mask: [B, T] for `input_ids`, 0 at padding; None: nothing is padded.
            negative_prompt: what guidance leads away from: one for all prompts, or one for each. None or empty: the
                model's own null prompt.
            negative_input_ids, negative_attention_mask: [B, T'] instead of `negative_prompt`.
            height, width: in pixels; may be given, but only as what the model makes.
            guidance_scale: classifier-free guidance; off at values <= 1, at half the cost. None: the model's own
                setting.
            temperature: divides the logits; 0 always takes the most probable token. None: the model's own setting.
            top_k: keep this many of the most probable tokens; 0 keeps all. None: the model's own setting.
            top_p: then keep the most probable tokens that together exceed this probability; 1 keeps all. None: the
                model's own setting.
            num_images_per_prompt: pictures for every prompt; they follow each other in the output.
            generator: one for each picture: the same seed then gives the same picture whatever else is in the batch
                (but rounding in another batch size may decide between two tokens that are about as likely). A single
                generator for several pictures gives each a stream of its own, in order. One number for each picture is
                drawn from a generator.
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
            >>> from vargen import JanusPipeline

            >>> pipeline = JanusPipeline.from_pretrained("deepseek-community/Janus-Pro-1B", dtype=torch.bfloat16)
            >>> generator = torch.Generator().manual_seed(0)
            >>> output = pipeline("a dog running under the rain", method="scd", generator=generator)
            >>> output.images[0].save("dog.png")
            ```

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace).

        Raises:
            UserError: an argument cannot be used with this model, or the pipeline is drawing already; the message names
                it and says what can be used.
        """
        check_arguments(JanusPipeline.__call__, locals())
        return self._draw_call(locals())

    def _request(
        self,
        prompt: str | Sequence[str] | None,
        settings: DrawSettings,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> PictureRequest:
        """See `StreamingPipeline._request`; arguments as of a call."""
        check_size(self.image_size, height, width)
        count = count_prompts(prompt, input_ids)
        away = negative_words(negative_prompt, count, "negative_input_ids", negative_input_ids)
        given = [(prompt, input_ids, attention_mask)]
        if self._guidance(settings.guidance_scale) > 1 and not (away is None and negative_input_ids is None):
            given.append((away, negative_input_ids, negative_attention_mask))

        def encode() -> list[Prompts]:
            return [self.encode_prompt(*each, settings.num_images_per_prompt) for each in given]

        request = self._request_of(
            settings,
            count,
            self._usual_num_tokens,
            encode,
            lambda pictures, prompts, **given: self._target(prompts, **given),
            lambda tokens, pictures: self.decode_tokens(tokens, settings.output_type),
        )
        grids, side = [(self.grid_size, self.grid_size)] * count, self.image_size // self.grid_size
        return request.edited(settings, grids, side, self._codes, "Janus")

    def _codes(self, pixels: Tensor) -> Tensor:
        """Codes [1, h, w] of pixels [1, 3, H, W] in [-1, 1]."""
        normalised = self._normalised(pixels)
        tokens: Tensor = self.model.model.vqmodel.encode(normalised).image_tokens
        return tokens.reshape(-1, self.grid_size, self.grid_size)
