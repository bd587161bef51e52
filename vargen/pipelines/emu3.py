"""Text to pictures with Emu3 as transformers has it, with the conventions of diffusers.

Belongs here: from prompts to pictures, for one batch. Does not belong here: how a picture becomes forwards
(`vargen.models.emu3.target`), the decode loop (`specdecode.loop`), methods, files of many pictures.

It draws what `Emu3ForConditionalGeneration.generate` draws when it is told as its documentation says: guidance away
from a negative prompt, and only such tokens as make a picture of the size in the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from diffusers.utils import replace_example_docstring
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, Emu3Processor

from specdecode.drafters.known_tokens import KnownTokensDrafter
from specdecode.roles import Target
from specdecode.trace import DecodeTrace
from vargen.base import bounds
from vargen.base.errors import UserError
from vargen.methods.base import ImageMethodConfig, Method
from vargen.methods.catalogue import resolve_method
from vargen.models.emu3.target import Emu3Target
from vargen.models.emu3.vocabulary import ImageVocabulary
from vargen.models.emu3.vq import decode_codes, intensities
from vargen.models.finite import check_pixels
from vargen.models.offloading import is_offloaded, move_offloaded
from vargen.models.picture_size import grid_of_ratio, grid_of_sides
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
    check_count_and_type,
    check_prompts,
    decode_pictures,
    finished,
    random_streams,
)
from vargen.pipelines.components.base import ONLY, KeptBetweenBatches, Place
from vargen.pipelines.components.emu3 import Emu3Components
from vargen.pipelines.streaming import PictureStream, stream_pictures

USUAL_AREA = 720 * 720
"""Pixels, of the processor of every published Emu3."""

EXAMPLE_DOC_STRING = """
    Examples:
        ```py
        >>> import torch
        >>> from vargen import Emu3Pipeline

        >>> pipeline = Emu3Pipeline.from_pretrained("BAAI/Emu3-Gen-hf", dtype=torch.bfloat16).to("cuda")
        >>> output = pipeline("a dog running under the rain", method="scd", generator=torch.Generator().manual_seed(0))
        >>> output.images[0].save("dog.png")
        ```
"""


class Emu3Pipeline(CausalModelPipeline):
    """Pictures from sentences, one token after another, of any size.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        processor: makes tokens of prompts. Without it, prompts must come as `input_ids`.

    Raises:
        UserError: the model cannot draw.
    """

    model_class = Emu3ForConditionalGeneration
    processor_class = Emu3Processor
    decoder_name = "text_model"
    usual_guidance = 3.0  # with which its authors draw

    def __init__(self, model: Emu3ForConditionalGeneration, processor: Emu3Processor | None = None) -> None:
        super().__init__()
        self._register(model, processor)
        self.vocabulary = ImageVocabulary.of(model)
        self.pixels_a_code = int(model.model.vqmodel.spatial_scale_factor)
        self._kept = KeptBetweenBatches()

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
    ) -> tuple[Tensor, Tensor]:
        """Tokens [B * num_images_per_prompt, T] int64 of prompts for pictures of so many codes, and their mask.

        They are padded on the left and end with the picture's size, as the processor has it. An empty prompt is one.

        Raises:
            UserError: there is no processor.
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
        return for_every_picture(
            tokens["input_ids"], tokens["attention_mask"], num_images_per_prompt, self._execution_device
        )

    def target_of(self, prompts: Sequence[str], max_draft_nodes: int) -> Emu3Target:
        """The target of a batch of prompts in the model's own settings and usual size, for who learns from it.

        Raises:
            UserError: see `encode_prompt`.
        """
        grid, scale = self.grid(), setting(self.model.generation_config, "guidance_scale", None, self.usual_guidance)
        away = self.encode_prompt([""] * len(prompts), grid) if scale > 1 else (None, None)
        return Emu3Target(
            self.model,
            *self.encode_prompt(prompts, grid),
            height=grid[0],
            width=grid[1],
            negative_input_ids=away[0],
            negative_attention_mask=away[1],
            guidance_scale=scale,
            max_draft_nodes=max_draft_nodes,
        )

    def prompt_problems(
        self, prompt: str | Sequence[str], height: int | None = None, width: int | None = None
    ) -> list[str]:
        """Nothing: every word of a prompt is read. Raises UserError for one that the context has no room for."""
        grid = self.grid(height, width)
        check_context(self.model.config, self.encode_prompt(check_prompts(prompt), grid)[1], _num_tokens(grid))
        return []

    def resolve_method(
        self, method: str | ImageMethodConfig, options: Mapping[str, Any] | None = None, num_tokens: int | None = None
    ) -> ImageMethodConfig:
        """The settings of a method on this model, every size that pictures depend on in numbers.

        Args:
            method: a name, a preset, or settings.
            options: settings that differ; only with a name or a preset.
            num_tokens: of a picture; None: of the usual size.

        Raises:
            UserError: an unknown name or option, or one out of range.
        """
        return resolve_method(method, options).resolved(num_tokens or _num_tokens(self.grid()))

    def decode_tokens(self, codes: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, h, w], as `output_type` asks.

        As images they are those of `Emu3Processor.postprocess`, which drops what follows the point of an intensity.
        """
        if output_type == "latent":
            return codes
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
    ) -> AutoregressivePipelineOutput | tuple[Any, Tensor, DecodeTrace]:
        """Make pictures.

        Args:
            prompt: what to draw, one sentence or several.
            input_ids: [B, T] int64 instead of `prompt`, padded on the left, ending with the size as the processor says
                it, which must be that of the other arguments.
            attention_mask: [B, T] for `input_ids`, 0 at padding; None: nothing is padded.
            negative_prompt: what guidance leads away from: one for all prompts, or one for each. It is read as a prompt
                is, with the picture's size.
            negative_input_ids, negative_attention_mask: [B, T'] instead.
            height, width: in pixels, multiples of 8; both or none.
            ratio: of width and height where these are not given, such as "16:9".
            image_area: pixels, about; None: what the processor says, else 720 x 720.
            guidance_scale: classifier-free guidance; off at values <= 1, at half the cost. None: what the model's
                generation_config.json says, else 3, with which its authors draw.
            temperature: divides the logits; 0 takes the most probable token always. None: the model's, else 1.
            top_k: keep this many of the most probable tokens; 0 keeps all. None: the model's, else 50.
            top_p: then keep the most probable ones that together exceed this probability; 1 keeps all. None: the
                model's, else 1.
            num_images_per_prompt: pictures for every prompt; they follow each other in the output.
            generator: one per picture; see `JanusPipeline`.
            method: how to decode: a name that `vargen methods` lists, a preset, or settings. Those of trained drafters
                name its folder. "jacobi" makes the pictures of plain decoding, "ar", in fewer passes.
            output_type: "pil", "np", "pt", or "latent" for the codes [B, h, w].
            return_dict: an output object instead of a tuple.
            callback_on_step_end: called as `callback(pipeline, step, lengths, tensors)` after every target pass; see
                `JanusPipeline`.
            callback_on_step_end_tensor_inputs: which of "tokens" and "lengths" it gets.

        Examples:

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace). Tokens are int64 [B, h * (w + 1) - 1]:
            a line's codes, then the mark that ends it, whose number is that of the codes there are; no mark behind the
            last line.

        Raises:
            UserError: an argument cannot be used with this model; the message says which, and what can.
        """
        report = StepReport(callback_on_step_end, callback_on_step_end_tensor_inputs)
        check_count_and_type(num_images_per_prompt, output_type)
        grid = self.grid(height, width, ratio, image_area)
        num_tokens = _num_tokens(grid)
        method = self.resolve_method(method, num_tokens=num_tokens)
        guidance_scale, sampling = self._sampling(guidance_scale, temperature, top_k, top_p)
        num_prompts, device = count_prompts(prompt, input_ids), self._execution_device
        streams = random_streams(generator, num_prompts * num_images_per_prompt, device)
        trace = DecodeTrace(num_prompts * num_images_per_prompt, device)
        with trace.phase("encode_prompt"), refusals():
            asked = self._tokens_of(
                check_prompts(prompt) if input_ids is None else None,
                input_ids, attention_mask, grid, num_images_per_prompt, "input_ids",
            )  # fmt: skip
            away = None
            if guidance_scale > 1:
                away = self._tokens_of(
                    self._negative_prompts(negative_prompt, num_prompts) if negative_input_ids is None else None,
                    negative_input_ids, negative_attention_mask, grid, num_images_per_prompt, "negative_input_ids",
                )  # fmt: skip
            move_offloaded(self.model)
            target, players = self._begin(asked, away, grid, guidance_scale, method)
        result = decode_pictures(self, target, players, num_tokens, sampling, streams, trace, report)
        codes = self.vocabulary.codes(result.tokens, *grid)
        return finished(self, lambda: self.decode_tokens(codes, output_type), result.tokens, trace, return_dict)

    def stream(
        self,
        prompt: Sequence[str],
        *,
        negative_prompt: str | Sequence[str] = "",
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        batch_size: int = 8,
        continuous: bool = True,
        height: int | None = None,
        width: int | None = None,
        ratio: str = "1:1",
        image_area: int | None = None,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        method: str | ImageMethodConfig = "jacobi",
        output_type: str = "pil",
        callback_on_step_end: StepCallback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> PictureStream:
        """Make any number of pictures of one size, each given as soon as it is finished; see `LlamaGenPipeline.stream`.

        Args:
            prompt: one for each picture.
            negative_prompt: one for all pictures, or one for each.
            generator: one for each picture, or a single one, which gives each its own stream, in order.
            batch_size: pictures drawn at once.
            continuous: False: every batch ends with its slowest picture, and only then the next begins.
            height, width, ratio, image_area, guidance_scale, temperature, top_k, top_p, method, output_type,
            callback_on_step_end, callback_on_step_end_tensor_inputs: as for `__call__`.

        Returns:
            An iterable of `FinishedPicture`, in the order in which they are finished.

        Raises:
            UserError: as `__call__`; also `batch_size` out of range.
        """
        report = StepReport(callback_on_step_end, callback_on_step_end_tensor_inputs)
        check_count_and_type(1, output_type)
        grid = self.grid(height, width, ratio, image_area)
        chosen = self.resolve_method(method, num_tokens=_num_tokens(grid))
        scale, sampling = self._sampling(guidance_scale, temperature, top_k, top_p)
        prompts = check_prompts(prompt)
        with refusals():
            asked = self._tokens_of(prompts, None, None, grid, 1, "input_ids")
            away = None
            if scale > 1:
                negative = self._negative_prompts(negative_prompt, len(prompts))
                away = self._tokens_of(negative, None, None, grid, 1, "negative_input_ids")

        def start(pictures: range, place: Place) -> tuple[Target, Method]:
            move_offloaded(self.model)
            own = of_pictures(*asked, pictures), None if away is None else of_pictures(*away, pictures)
            with refusals():
                return self._begin(*own, grid, scale, chosen, place)

        return stream_pictures(
            self,
            start,
            lambda tokens: self.decode_tokens(self.vocabulary.codes(tokens, *grid), output_type),
            batch_size=batch_size,
            longest_prompt=max(ids.shape[1] for ids, _ in (asked, away or asked)),
            num_tokens=_num_tokens(grid),
            sampling=sampling,
            streams=random_streams(generator, len(prompts), self._execution_device),
            report=report,
            continuous=continuous and not is_offloaded(self.model),
        )

    def _begin(
        self,
        asked: tuple[Tensor, Tensor],
        away: tuple[Tensor, Tensor] | None,
        grid: tuple[int, int],
        guidance_scale: float,
        method: ImageMethodConfig,
        place: Place = ONLY,
    ) -> tuple[Emu3Target, Method]:
        """Target and players of prompts and of what guidance leads away from, each tokens [B, T] and their mask."""
        target = Emu3Target(
            self.model,
            *asked,
            height=grid[0],
            width=grid[1],
            negative_input_ids=None if away is None else away[0],
            negative_attention_mask=None if away is None else away[1],
            guidance_scale=guidance_scale,
            max_draft_nodes=method.max_draft_nodes(_num_tokens(grid)),
            longest_prompt=None if place.joins else place.longest_prompt,
        )
        players = method.build(Emu3Components(self.model, target, self._kept, place.joins))
        if players.drafter is not None:
            drafter = KnownTokensDrafter(players.drafter, target.known_tokens, target.vocab_size)
            players = replace(players, drafter=drafter)
        return target, players

    def _negative_prompts(self, negative_prompt: str | Sequence[str], num_prompts: int) -> list[str]:
        if isinstance(negative_prompt, str):
            return [negative_prompt] * num_prompts
        if len(negative_prompt) != num_prompts:
            raise UserError(
                f"negative_prompt must be one for all prompts or one for each, {num_prompts} here; got "
                f"{len(negative_prompt)}"
            )
        return list(negative_prompt)

    def _tokens_of(
        self,
        prompts: list[str] | None,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        grid: tuple[int, int],
        num_images_per_prompt: int,
        name: str,
    ) -> tuple[Tensor, Tensor]:
        """Tokens and mask of prompts, or those that were given instead, for every picture."""
        if prompts is not None:
            tokens = self.encode_prompt(prompts, grid, num_images_per_prompt)
        else:
            assert input_ids is not None
            check_input_ids(input_ids, attention_mask, self.model.config.get_text_config().vocab_size, name)
            tokens = for_every_picture(input_ids, attention_mask, num_images_per_prompt, self._execution_device)
        check_context(self.model.config, tokens[1], _num_tokens(grid))
        return tokens


def _num_tokens(grid: tuple[int, int]) -> int:
    """That are drawn of a picture: its codes, and the end of every line but the last."""
    return grid[0] * (grid[1] + 1) - 1
