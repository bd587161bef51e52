"""Text to pictures with any causal language model of transformers that draws them token by token.

Belongs here: prompts, sizes, arguments and pictures as a family's description has them. Does not belong here: the
descriptions (`vargen.models.token_images`), how a picture becomes forward passes (`target.py` there), and code for
every family of transformers (`vargen.pipelines.transformers`).
"""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdecode.drafters.forced_tokens import ForcedTokensDrafter
from specdecode.sampling import SamplingConfig
from vargen.base.errors import UserError
from vargen.checkpoints.finite import check_pixels
from vargen.checkpoints.transformers_folder import folder_of
from vargen.methods.base import ImageMethodConfig, Method, NamedMethod
from vargen.models.known_pictures import PictureInput, one_for_each
from vargen.models.picture_size import Grid
from vargen.models.token_images.catalogue import find_family
from vargen.models.token_images.description import References, TokenImageFamily
from vargen.models.token_images.grammar import ImageVocabulary, vocabulary_of
from vargen.models.token_images.pixels import code_vectors, decode_codes, encode_pictures, intensities, load_pixels
from vargen.models.token_images.reference_pictures import ReferenceInput, pieces_of, reference_codes
from vargen.models.token_images.token_image_components import TokenImageComponents
from vargen.models.token_images.token_image_loading import load_family_model, load_tokenizer, save_family_model
from vargen.models.token_images.token_image_target import TokenImageTarget
from vargen.pipelines.arguments import (
    DrawSettings,
    PictureRequest,
    StepCallback,
    check_prompts,
    check_sampling,
    negative_prompts,
)
from vargen.pipelines.base import CallResult
from vargen.pipelines.call_types import check_arguments, check_module
from vargen.pipelines.transformers import (
    Prompts,
    TransformersPipeline,
    as_images,
    check_context,
    check_input_ids,
    count_prompts,
)


class TokenImages(TransformersPipeline):
    """What pipelines of these families share: pictures from sentences, one token after another.

    Attributes:
        family: its description.
        vocabulary: the image tokens of the model.
    """

    components_class = TokenImageComponents
    family: TokenImageFamily
    vocabulary: ImageVocabulary

    @property
    def image_size(self) -> int:
        """Pixels along a side of the usual picture, which is a square for every family."""
        return self.family.sizes.usual[0] * self.family.sizes.pixels_a_code

    @property
    def reads_references(self) -> bool:  # type: ignore[override]
        """See `PicturePipeline`."""
        return isinstance(self.family.references, References)

    @property
    def _decoder_layers(self) -> nn.Module:
        layers: nn.Module = functools.reduce(getattr, self.family.decoder.split("."), self.model).layers
        return layers

    @property
    def _usual_num_tokens(self) -> int:
        return self.family.num_tokens(self.grid())

    def grid(
        self,
        height: int | None = None,
        width: int | None = None,
        ratio: str | None = None,
        image_area: int | None = None,
    ) -> Grid:
        """Codes down and across of a picture; arguments as of a call. Raises UserError for one that cannot be drawn."""
        return self.family.sizes.grid(height, width, ratio, image_area)

    def encode_prompt(
        self,
        prompt: str | Sequence[str],
        grid: Grid,
        num_images_per_prompt: int = 1,
        null: bool = False,
        references: Sequence[Tensor] = (),
    ) -> Prompts:
        """Tokens [B * num_images_per_prompt, T] int64 of prompts, padded on the left, and their mask.

        Args:
            grid: of the pictures, whose size the prompts name.
            null: they are what guidance leads away from.
            references: codes int64 [h, w] of pictures in each prompt, for families that read them.

        Raises:
            UserError: there is nothing that makes tokens of prompts, or it is of another model.
        """
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        return self._for_every_picture(*self._written(texts, grid, null, references), num_images_per_prompt)

    @abstractmethod
    def _written(self, texts: list[str], grid: Grid, null: bool, references: Sequence[Tensor]) -> Prompts:
        """See `encode_prompt`: a row for each text."""

    @abstractmethod
    def decode_tokens(self, codes: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, h, w], as `output_type` asks."""

    def _code_vectors(self) -> Tensor | None:
        """[C, d], what codes are compared by; None: there is no picture tokenizer."""
        return None

    def _encoder(self) -> Callable[[Tensor], Tensor] | None:
        """Makes codes [1, h, w] of pixels [1, 3, H, W] in [-1, 1]; None: nothing here does."""
        return None

    def _pictures_alone(self, prompts: Prompts) -> list[Prompts]:
        """The pictures in prompts without their words, where guidance has a row for them; empty: there are none."""
        return []

    def target_of(self, prompts: Sequence[str], max_draft_nodes: int) -> TokenImageTarget:
        """The target of a batch of prompts in the model's own settings and usual size, for training.

        Raises:
            UserError: see `encode_prompt`.
        """
        grid, scale = self.grid(), self._guidance()
        encoded = [self.encode_prompt(prompts, grid)]
        if scale > 1:
            encoded.append(self.encode_prompt([self.family.negative_prompt] * len(prompts), grid, null=True))
        return self._target([grid], encoded, guidance_scale=scale, max_draft_nodes=max_draft_nodes)

    def _target(self, grids: Sequence[Grid], prompts: Sequence[Prompts], **settings: Any) -> TokenImageTarget:
        return TokenImageTarget(
            self.model,
            self.vocabulary,
            prompts,
            grids=grids,
            decoder=self.family.decoder,
            guidance=self.family.guidance,
            **settings,
        )

    def prompt_problems(
        self, prompt: str | Sequence[str], height: int | None = None, width: int | None = None
    ) -> list[str]:
        """An empty list: the model reads every word. Raises UserError where a prompt leaves no room for a picture."""
        grid = self.grid(height, width)
        mask = self.encode_prompt(check_prompts(prompt), grid)[1]
        check_context(self.model.config, mask, self.family.num_tokens(grid))
        return []

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        height: int | Sequence[int] | None = None,
        width: int | Sequence[int] | None = None,
        ratio: str | Sequence[str] | None = None,
        image_area: int | None = None,
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
        reference_images: ReferenceInput = None,
        **unknown: Any,
    ) -> CallResult:
        """Draw pictures.

        Args:
            prompt: what to draw, one sentence or several.
            input_ids: [B, T] int64 instead of `prompt`, padded on the left, ending with what begins a picture, its size
                included, which must be that of the other arguments.
            attention_mask: [B, T] for `input_ids`, 0 at padding; None: nothing is padded.
            negative_prompt: what guidance leads away from: one for all prompts, or one for each; only where the family
                has words there. None: the family's own.
            negative_input_ids, negative_attention_mask: [B, T'] instead.
            height, width: in pixels; both or none. One for all prompts, or one for each.
            ratio: of width and height where these are not given, such as "16:9"; likewise.
            image_area: pixels, about, beside `ratio`, and of each of `reference_images`; None: those of the usual
                picture.
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
            output_type: "pil", "np", "pt", or "latent" for the codes [B, h, w].
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
            reference_images: pictures that the prompt speaks of, for families that read them (Emu3.5 and Anole): one or
                several for all prompts, or for each prompt a list. They stand before the words, or for Anole where the
                words have <image>. They have any size; Emu3.5 draws in that of the last one where a call gives none.
                Both rows of Emu3.5's guidance have them; Anole's has a third.
            **unknown: refused by name.

        Examples:
            ```py
            >>> import torch
            >>> from vargen import TokenImagePipeline

            >>> pipeline = TokenImagePipeline.from_pretrained("Alpha-VLLM/Lumina-mGPT-7B-768", dtype=torch.bfloat16)
            >>> generator = torch.Generator().manual_seed(0)
            >>> output = pipeline("a dog running under the rain", method="scd", generator=generator)
            >>> output.images[0].save("dog.png")
            ```

        Returns:
            `AutoregressivePipelineOutput`, or the tuple (images, tokens, trace). Tokens are int64 [B, N]: a row's
            codes, then the end-of-row token, whose number is the number of codes, where the family has one. None
            follows the last row.

        Raises:
            UserError: an argument cannot be used with this model, or the pipeline is drawing already; the message names
                it and says what can be used.
        """
        check_arguments(TokenImages.__call__, locals())
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
        height: int | Sequence[int] | None = None,
        width: int | Sequence[int] | None = None,
        ratio: str | Sequence[str] | None = None,
        image_area: int | None = None,
        reference_images: ReferenceInput = None,
    ) -> PictureRequest:
        """See `StreamingPipeline._request`; arguments as of a call."""
        copies, output_type, title = settings.num_images_per_prompt, settings.output_type, self.family.title
        count, side = count_prompts(prompt, input_ids), self.family.sizes.pixels_a_code
        references: list[list[Tensor]] = [[]] * count
        if reference_images is not None:
            if prompt is None:
                raise UserError("reference_images needs prompt; input_ids hold their pictures' tokens themselves")
            about = (self.family.references, self.family.sizes, image_area, self._encoder(), title)
            references = reference_codes(reference_images, check_prompts(prompt), *about)
            if settings.guidance_scale is None and isinstance(self.family.references, References):
                settings = replace(settings, guidance_scale=self.family.references.scale)
        guided = self._guidance(settings.guidance_scale) > 1
        heights, widths, ratios = (
            one_for_each(name, value, count) for name, value in (("height", height), ("width", width), ("ratio", ratio))
        )
        grids = [self._grid_of(*asked, image_area) for asked in zip(references, heights, widths, ratios, strict=True)]
        sizes, alike = [grid for grid in grids for _ in range(copies)], len(set(grids)) == 1
        row_tokens = [*map(self.family.num_tokens, sizes)]
        num_tokens = max(row_tokens)

        def checked(prompts: Prompts) -> Prompts:
            check_context(self.model.config, prompts[1], num_tokens)
            return prompts

        def given(name: str, ids: Tensor, mask: Tensor | None) -> Prompts:
            check_input_ids(ids, mask, self.model.config.get_text_config().vocab_size, name)
            return self._for_every_picture(ids, mask, copies)

        def encode() -> list[Prompts]:
            if input_ids is None:
                asked = self._encode(check_prompts(prompt), grids, copies, references)
            else:
                asked = given("input_ids", input_ids, attention_mask)
            rows = [checked(asked)]
            if guided and negative_input_ids is None:
                away = self._negative_prompts(negative_prompt, count)
                rows += [*self._pictures_alone(asked), self._encode(away, grids, copies, references, null=True)]
            elif guided and negative_input_ids is not None:
                null = given("negative_input_ids", negative_input_ids, negative_attention_mask)
                rows += [*self._pictures_alone(asked), null]
            return [*map(checked, rows)]

        def target_of(pictures: range, prompts: Sequence[Prompts], **given: Any) -> TokenImageTarget:
            part = sizes[:1] if alike else sizes[pictures.start : pictures.stop]
            others = [] if alike else [*dict.fromkeys(grids)]
            return self._target(part, prompts, other_grids=others, num_tokens=num_tokens, **given)

        def images(tokens: Tensor, pictures: range) -> Any:
            if alike:
                return self.decode_tokens(self.vocabulary.codes(tokens, *sizes[0]), output_type)
            drawn = [
                self.vocabulary.codes(row[None, : row_tokens[number]], *sizes[number])
                for row, number in zip(tokens, pictures, strict=True)
            ]
            return [self.decode_tokens(codes, output_type)[0] for codes in drawn]

        num_of_each = None if alike else row_tokens
        request = self._request_of(settings, count, num_tokens, encode, target_of, images, num_of_each)

        def forced(grid: Grid) -> Tensor:
            return self.vocabulary.forced_tokens(*grid, "cpu")

        return request.edited(settings, grids, side, self._encoder(), title, forced)

    def _grid_of(
        self, references: Sequence[Tensor], height: Any, width: Any, ratio: Any, image_area: int | None
    ) -> Grid:
        """See `grid`; the size of the last picture of a prompt may be drawn, too, and is where none is asked for."""
        if references and ratio is None:
            rows, columns = references[-1].shape
            side = self.family.sizes.pixels_a_code
            if (height, width) in ((None, None), (rows * side, columns * side)):
                return rows, columns
        return self.grid(height, width, ratio, image_area)

    def _encode(
        self,
        texts: Sequence[str],
        grids: Sequence[Grid],
        copies: int,
        references: Sequence[Sequence[Tensor]],
        null: bool = False,
    ) -> Prompts:
        """See `encode_prompt`, with a size and pictures for each prompt."""
        if len(set(grids)) == 1 and not any(references):
            return self.encode_prompt(texts, grids[0], copies, null)
        each = [
            self.encode_prompt(text, grid, copies, null, own)
            for text, grid, own in zip(texts, grids, references, strict=True)
        ]
        return _left_padded([row for ids, _ in each for row in ids])  # a single prompt has no padding

    def _negative_prompts(self, negative_prompt: str | Sequence[str] | None, num_prompts: int) -> list[str]:
        """A negative prompt for each prompt. Raises UserError for another number, or where there is no place for it."""
        if negative_prompt is None:
            return [self.family.negative_prompt] * num_prompts
        each = negative_prompts(negative_prompt, num_prompts) or [""] * num_prompts
        if any(each) and "{prompt}" not in self.family.null_prompt:
            raise UserError(
                f"negative_prompt cannot be used with {self.family.title}, whose null prompt has no words; leave it out"
            )
        return each

    def _players(self, method: ImageMethodConfig, target: Any, joins: bool) -> Method:
        vectors = self._code_vectors()
        offered = None if vectors is None else lambda: vectors
        components = self.components_class(self.model, target, self.reuse, joins, offered, self.family.title)
        players = method.build(components)
        if players.drafter is None or not self.vocabulary.has_row_end:
            return players
        row_end = [self.vocabulary.num_codes]
        known = ForcedTokensDrafter(players.drafter, target.forced_tokens, target.vocab_size, row_end)
        return replace(players, drafter=known)


class TokenImagePipeline(TokenImages):
    """Pictures from sentences by a family that `vargen.models.token_images` describes.

    Where a call gives no setting, the family's description does: its authors' guidance, temperature and filters.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        tokenizer: of transformers, makes tokens of prompts. Without it, prompts must come as `input_ids`.
        vqvae: makes pictures of codes; None: `output_type` must be "latent".
        family: a description or its name; None: what the model's configuration says.

    Raises:
        UserError: the model is of no family, or of another one.
    """

    model_cpu_offload_seq = "model->vqvae"
    _optional_components = ["tokenizer", "vqvae"]  # noqa: RUF012 (a diffusers convention)

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        vqvae: nn.Module | None = None,
        family: TokenImageFamily | str | None = None,
    ) -> None:
        check_module("model", model)
        self.family = find_family(family, model.config.to_dict() if isinstance(model, PreTrainedModel) else {})
        self.model_class = getattr(transformers, self.family.model_class)  # type: ignore[misc]
        super().__init__(model, tokenizer=tokenizer, vqvae=vqvae)
        self.vocabulary = vocabulary_of(self.family, model, tokenizer)
        if vqvae is not None and (found := len(code_vectors(vqvae))) != self.vocabulary.num_codes:
            raise UserError(f"vqvae must have the {self.vocabulary.num_codes:,} codes of the model, got {found:,}")

    def _guidance(self, guidance_scale: float | None = None) -> float:
        guidance = self.family.guidance
        scale = guidance.scale if guidance_scale is None else guidance_scale
        if guidance.least is not None and 1 < scale < guidance.least:
            raise UserError(
                f"guidance_scale must be at least {guidance.least:g} for {self.family.title}, whose authors raise "
                f"smaller ones to it, or 1, which is off; got {scale:g}"
            )
        return scale

    def _sampling(
        self, temperature: float | None, top_k: int | None, top_p: float | None, guidance_scale: float
    ) -> SamplingConfig:
        asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        own: dict[str, Any] = {
            name: getattr(self.family, name) if value is None else value for name, value in asked.items()
        }
        return check_sampling(**own, guidance_scale=guidance_scale)

    def _written(self, texts: list[str], grid: Grid, null: bool, references: Sequence[Tensor]) -> Prompts:
        if self.tokenizer is None:
            raise UserError(
                "prompt needs a pipeline with a tokenizer; give input_ids, and negative_input_ids for guidance, instead"
            )
        begins = self.tokenizer.bos_token or self.tokenizer.eos_token or ""
        side = self.family.sizes.pixels_a_code
        named = {"height": grid[0] * side, "width": grid[1] * side, "bos": begins}
        forms: Any = self.family.references if references else self.family
        form = forms.null_prompt if null else forms.prompt
        shown = [self._reference_ids(codes) for codes in references] if "{pictures}" in form else []
        rows = []
        for text in texts:
            if shown:
                pieces = pieces_of(form, text, len(shown), forms.among_words, named)
            else:
                pieces = [form.format(prompt=text, **named)]
            pieces[-1] += self.family.begin(*grid)
            words = [*map(self._ids, pieces)]
            rows.append(torch.cat([words[0], *(each for pair in zip(shown, words[1:], strict=True) for each in pair)]))
        return _left_padded(rows)

    def _ids(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.int64)

    def _reference_ids(self, codes: Tensor) -> Tensor:
        """[T] int64: a picture as it is written in a prompt, from its beginning to its end."""
        rows, columns = codes.shape
        tokens = self.vocabulary.forced_tokens(rows, columns, "cpu")
        tokens[tokens < 0] = codes.flatten()
        return torch.cat((self._ids(self.family.begin(rows, columns)), self.vocabulary.text(tokens[None])[0]))

    def _pictures_alone(self, prompts: Prompts) -> list[Prompts]:
        """See `TokenImages._pictures_alone`: codes, the tokens around them, and the one that begins the text."""
        ids, mask = prompts
        codes = self.vocabulary.ids_on(ids.device)
        if self.family.guidance.image_scale is None or not bool(torch.isin(ids, codes).any()):
            return []
        family, tokenizer = self.family, self.tokenizer
        begins = self.model.config.bos_token_id if tokenizer is None else tokenizer.bos_token_id
        begun = family.begin(*family.sizes.usual)
        around = [number for name, number in family.special_tokens.items() if name == family.end or name in begun]
        kept = torch.cat((codes, codes.new_tensor([number for number in (begins, *around) if number is not None])))
        rows = [row[seen.bool() & torch.isin(row, kept)] for row, seen in zip(ids, mask, strict=True)]
        return [_left_padded(rows)]

    def _code_vectors(self) -> Tensor | None:
        return None if self.vqvae is None else code_vectors(self.vqvae)

    def _encoder(self) -> Callable[[Tensor], Tensor] | None:
        if self.vqvae is None:
            return None
        return lambda pixels: encode_pictures(self.vqvae, pixels.to(self._execution_device), self.family.pixels.nearest)

    def decode_tokens(self, codes: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, h, w], as `output_type` asks; intensities become whole numbers as the authors do."""
        if output_type == "latent":
            return codes
        if self.vqvae is None:
            raise UserError(
                f"vqvae must be given to make pictures of codes (from {self.family.pixels.published}); without it use "
                f'output_type="latent"'
            )
        pictures = decode_codes(self.vqvae, codes)
        check_pixels(pictures)
        return as_images(intensities(pictures, self.family.pixels.rounded), output_type)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        family: TokenImageFamily | str | None = None,
        tokenizer: Any = None,
        vqvae: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Load from a folder or a name on the hub, in the layout that the authors publish.

        Args:
            pretrained_model_name_or_path: such as "Alpha-VLLM/Lumina-mGPT-7B-768".
            family: as in the constructor, where config.json fits several.
            tokenizer: a tokenizer, its folder or its name on the hub; None: the one beside the model.
            vqvae: a picture tokenizer, or the path of one; None: that in the folder "vqvae" beside the model, if any.
            **kwargs: for transformers' `from_pretrained`: dtype, device_map, quantization_config, attn_implementation,
                revision, token, ...

        Raises:
            UserError: there is no such model, it is of another family, weights are missing, or remote code is asked
                for.
        """
        model, found = load_family_model(pretrained_model_name_or_path, family, **kwargs)
        if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(
                pretrained_model_name_or_path if tokenizer is None else tokenizer, found, **kwargs
            )
        if vqvae is None and (beside := folder_of(pretrained_model_name_or_path, kwargs) / "vqvae").is_dir():
            vqvae = beside
        if isinstance(vqvae, str | os.PathLike):
            vqvae = load_pixels(vqvae, found, model.dtype)
        return cls(model, tokenizer, vqvae, found)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save in the layout of transformers, which `from_pretrained` reads; other arguments are for the model's."""
        self._refuse_adapters()
        save_family_model(self.model, self.family, save_directory, *args, **kwargs)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(save_directory)
        if hasattr(self.vqvae, "save_pretrained"):
            self.vqvae.save_pretrained(os.path.join(save_directory, "vqvae"))


def _left_padded(rows: Sequence[Tensor]) -> Prompts:
    """Token ids [T] of several texts as int64 [B, T] and their mask, padded on the left."""
    ids, mask = (
        pad_sequence([*each], batch_first=True, padding_side="left") for each in (rows, map(torch.ones_like, rows))
    )
    return ids, mask
