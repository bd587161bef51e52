"""Text to pictures with Emu3 as transformers has it, with the conventions of diffusers.

Belongs here: Emu3's prompts, sizes, arguments and pictures. Does not belong here: how a picture becomes forward passes
(`vargen.models.emu3.target`), and what every family of transformers shares (`vargen.pipelines.transformers`).

It draws what `Emu3ForConditionalGeneration.generate` draws with the arguments that its documentation names: guidance
away from a negative prompt, and only tokens that make a picture of the size in the prompt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, Emu3Processor

from specdecode.drafters.known_tokens import KnownTokensDrafter
from vargen.base import bounds
from vargen.base.errors import UserError
from vargen.methods.base import ImageMethodConfig, Method
from vargen.models.emu3.target import Emu3Target
from vargen.models.emu3.vocabulary import ImageVocabulary
from vargen.models.emu3.vq import decode_codes, intensities
from vargen.models.picture_size import grid_of_ratio, grid_of_sides
from vargen.pipelines.arguments import DrawSettings, StepCallback, StepReport, check_prompts, refusals
from vargen.pipelines.base import draws
from vargen.pipelines.components.emu3 import Emu3Components
from vargen.pipelines.request import PictureRequest
from vargen.pipelines.transformers import (
    Prompts,
    TransformersPipeline,
    check_context,
    check_input_ids,
    count_prompts,
    example_of,
)

USUAL_AREA = 720 * 720
"""Pixels, of the processor of every published Emu3."""


class Emu3Pipeline(TransformersPipeline):
    """Pictures from sentences, one token after another, of any size.

    Where a call gives no setting, the model's generation_config.json does, else: guidance 3, with which its authors
    draw, and as in `generate` temperature 1, top_k 50 and top_p 1.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        processor: makes tokens of prompts. Without it, prompts must come as `input_ids`.

    Raises:
        UserError: the model cannot draw.
    """

    model_class = Emu3ForConditionalGeneration
    processor_class = Emu3Processor
    components_class = Emu3Components
    decoder_name = "text_model"
    usual_guidance = 3.0

    def __init__(self, model: Emu3ForConditionalGeneration, processor: Emu3Processor | None = None) -> None:
        super().__init__(model, processor)
        self.vocabulary = ImageVocabulary.of(model)
        self.pixels_a_code = int(model.model.vqmodel.spatial_scale_factor)

    @property
    def _usual_num_tokens(self) -> int:
        return _num_tokens(self.grid())

    def grid(
        self, height: int | None = None, width: int | None = None, ratio: str = "1:1", image_area: int | None = None
    ) -> tuple[int, int]:
        """Codes down and across of a picture; arguments as of a call.

        Raises:
            UserError: a size that cannot be drawn.
        """
        if (height is None) != (width is None):
            raise UserError("height and width must be given both, or none of them; ratio and image_area stand for both")
        if height is not None and width is not None:
            return grid_of_sides(height, width, self.pixels_a_code)
        area = getattr(self.processor, "image_area", USUAL_AREA) if image_area is None else image_area
        bounds.check_number("image_area", area, self.pixels_a_code**2, bounds.MAX_PIXELS**2)
        return grid_of_ratio(ratio, area, self.pixels_a_code)

    def encode_prompt(
        self, prompt: str | Sequence[str], grid: tuple[int, int], num_images_per_prompt: int = 1
    ) -> Prompts:
        """Tokens [B * num_images_per_prompt, T] int64 of prompts for pictures of so many codes, and their mask.

        They are padded on the left and end with the picture's size as the processor writes it. A prompt may be empty.

        Raises:
            UserError: there is no processor, or it is another model's.
        """
        if self.processor is None:
            raise UserError("prompt needs a pipeline with a processor; give input_ids and attention_mask instead")
        rows, columns = grid
        with refusals():
            tokens = self.processor(
                text=[prompt] if isinstance(prompt, str) else list(prompt),
                return_for_image_generation=True,
                ratio=f"{columns}:{rows}",
                image_area=rows * columns * self.processor.downsample_ratio**2,
                padding=True,
                padding_side="left",
                return_tensors="pt",
            )
        if [*map(int, tokens["image_sizes"][0])] != [rows, columns]:
            raise UserError(
                f"processor must be of the same model: it makes pictures of {self.processor.downsample_ratio} pixels a "
                f"code, the decoder of {self.pixels_a_code}"
            )
        return self._for_every_picture(tokens["input_ids"], tokens["attention_mask"], num_images_per_prompt)

    def target_of(self, prompts: Sequence[str], max_draft_nodes: int) -> Emu3Target:
        """The target of a batch of prompts in the model's own settings and usual size, for training.

        Raises:
            UserError: see `encode_prompt`.
        """
        grid, scale = self.grid(), self._guidance()
        texts = [prompts, [""] * len(prompts)] if scale > 1 else [prompts]
        encoded = [self.encode_prompt(each, grid) for each in texts]
        return self._target(grid, encoded, guidance_scale=scale, max_draft_nodes=max_draft_nodes)

    def _target(self, grid: tuple[int, int], prompts: Sequence[Prompts], **settings: Any) -> Emu3Target:
        asked, *away = prompts
        ids, mask = away[0] if away else (None, None)
        return Emu3Target(
            self.model,
            *asked,
            height=grid[0],
            width=grid[1],
            negative_input_ids=ids,
            negative_attention_mask=mask,
            **settings,
        )

    def prompt_problems(
        self, prompt: str | Sequence[str], height: int | None = None, width: int | None = None
    ) -> list[str]:
        """An empty list: the model reads every word. Raises UserError where a prompt leaves no room for a picture."""
        grid = self.grid(height, width)
        check_context(self.model.config, self.encode_prompt(check_prompts(prompt), grid)[1], _num_tokens(grid))
        return []

    def decode_tokens(self, codes: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, h, w], as `output_type` asks.

        Images are those of `Emu3Processor.postprocess`, which cuts intensities to whole numbers.
        """
        if output_type == "latent":
            return codes
        return self._images_of(intensities, decode_codes(self.model, codes), output_type)

    @draws(example_of("Emu3Pipeline", "BAAI/Emu3-Gen-hf"))
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        negative_prompt: str | Sequence[str] = "",
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
        ratio: str = "1:1",
        image_area: int | None = None,
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
    ) -> PictureRequest:
        """Draw pictures.

        Args:
            input_ids: [B, T] int64 instead of `prompt`, padded on the left, ending with the size as the processor
                writes it, which must be that of the other arguments.
            attention_mask: [B, T] for `input_ids`, 0 at padding; None: nothing is padded.
            negative_prompt: what guidance leads away from: one for all prompts, or one for each. It is read as a prompt
                is, with the picture's size.
            negative_input_ids, negative_attention_mask: [B, T'] instead.
            height, width: in pixels, multiples of 8; both or none.
            ratio: of width and height where these are not given, such as "16:9".
            image_area: pixels, about; None: the processor's own, else 720 x 720.
            output_type: "pil", "np", "pt", or "latent" for the codes [B, h, w].

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace). Tokens are int64 [B, h * (w + 1) - 1]:
            a line's codes, then the mark that ends it, whose number is the number of codes in the vocabulary. No mark
            follows the last line.

        Raises:
            UserError: an argument cannot be used with this model; the message names it and says what can be used.
        """
        report = StepReport(callback_on_step_end, callback_on_step_end_tensor_inputs)
        settings = DrawSettings(
            guidance_scale, temperature, top_k, top_p, num_images_per_prompt, generator, method, output_type, report
        )
        grid, count = self.grid(height, width, ratio, image_area), count_prompts(prompt, input_ids)
        num_tokens, guided = _num_tokens(grid), self._guidance(guidance_scale) > 1

        def encoded(name: str, text: Callable[[], list[str]], ids: Tensor | None, mask: Tensor | None) -> Prompts:
            if ids is None:
                prompts = self.encode_prompt(text(), grid, num_images_per_prompt)
            else:
                check_input_ids(ids, mask, self.model.config.get_text_config().vocab_size, name)
                prompts = self._for_every_picture(ids, mask, num_images_per_prompt)
            check_context(self.model.config, prompts[1], num_tokens)
            return prompts

        def encode() -> list[Prompts]:
            asked = encoded("input_ids", lambda: check_prompts(prompt), input_ids, attention_mask)
            if not guided:
                return [asked]
            away = (lambda: _each(negative_prompt, count)), negative_input_ids, negative_attention_mask
            return [asked, encoded("negative_input_ids", *away)]

        return self._request(
            settings,
            count,
            num_tokens,
            encode,
            functools.partial(self._target, grid),
            lambda tokens: self.vocabulary.codes(tokens, *grid),
        )

    def _players(self, method: ImageMethodConfig, target: Any, joins: bool) -> Method:
        players = super()._players(method, target, joins)
        if players.drafter is None:
            return players
        return replace(players, drafter=KnownTokensDrafter(players.drafter, target.known_tokens, target.vocab_size))


def _each(negative_prompt: str | Sequence[str], num_prompts: int) -> list[str]:
    """A negative prompt for each prompt. Raises UserError for another number."""
    if isinstance(negative_prompt, str):
        return [negative_prompt] * num_prompts
    if len(negative_prompt) != num_prompts:
        raise UserError(
            f"negative_prompt must be one for all prompts or one for each, {num_prompts} here; got "
            f"{len(negative_prompt)}"
        )
    return list(negative_prompt)


def _num_tokens(grid: tuple[int, int]) -> int:
    """The tokens that are drawn for a picture: its codes, and the end of every line but the last."""
    return grid[0] * (grid[1] + 1) - 1
