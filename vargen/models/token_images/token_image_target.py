"""A causal language model of transformers that draws pictures token by token, as the Target of the speculative loop.

Belongs here: how image tokens become a pass, where rows end, and guidance by two rows or three, constant or decaying.
Does not belong here: the cache, masks and positions (`specdecode.targets.transformers`), sampling, prompts, and pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdecode.grid.mixed_grids import MixedGrids
from specdecode.grid.positions import Lines
from specdecode.kernels.as_written import untouched
from specdecode.kernels.linears import is_plain_linear
from specdecode.roles import TargetOutput
from specdecode.sampling import guide
from vargen.base.errors import UserError
from vargen.models.guided_target import GuidedTarget, Rows, side_by_side
from vargen.models.picture_size import Grid
from vargen.models.token_images.description import Guidance
from vargen.models.token_images.grammar import ImageVocabulary


class TokenImageTarget(GuidedTarget):
    """The Target role for one batch of pictures.

    Published code mostly runs a null row apart, in a cache of its own, and some of it guides logarithms of
    probabilities. These differ from the logits by one number for all tokens, so the distribution is the same as here.
    Forced tokens are fed to every row.

    Args:
        model: in evaluation mode.
        vocabulary: its image tokens.
        prompts: of the pictures, with what begins a picture at their ends; then, where guidance is on, the pictures in
            these prompts alone (for three rows), and the null prompts.
        grids: rows and columns of codes, of each picture, or one for all.
        other_grids: of pictures that may take a row's place later, where sizes differ.
        num_tokens: of a picture, at most; None: those of the largest of these.
        decoder: path of the decoder in the model.
        guidance: its form; None: two rows, a constant scale.
        guidance_scale: off at values <= 1.
        guided_tokens: see `GuidedTarget`.
        max_draft_nodes: nodes of the largest tree `forward` will be given, the root included.
        longest_prompt: T of the longest prompt that may take a row's place; None: none is longer than these.

    Attributes:
        prompt_ids: [R, T] int64, the prompts of all rows.
        ids: [V] int64, the vocabulary's name of each token that is drawn.
        forced_tokens: [B, num_tokens] int64, the end-of-row token where a row of codes ends, -1 elsewhere.

    Raises:
        ValueError: the shapes do not belong together, or the model cannot be served; see `TransformersTarget`.
    """

    graph_state = (*GuidedTarget.graph_state, "forced_tokens", "_scales")

    def __init__(
        self,
        model: Any,
        vocabulary: ImageVocabulary,
        prompts: Sequence[Rows],
        *,
        grids: Sequence[Grid],
        other_grids: Sequence[Grid] = (),
        num_tokens: int | None = None,
        decoder: str = "model",
        guidance: Guidance | None = None,
        guidance_scale: float = 1.0,
        guided_tokens: int | None = None,
        max_draft_nodes: int = 1,
        longest_prompt: int | None = None,
    ) -> None:
        device = prompts[0][0].device
        self.set_guidance(guidance_scale, device, guided_tokens)
        # The scale of the picture's row; only guidance with such a row reads it.
        self._image_scale = 1.0 if guidance is None or guidance.image_scale is None else guidance.image_scale
        if self.is_guided:
            if len(prompts) == 1 or any(len(ids) != len(prompts[0][0]) for ids, _ in prompts):
                raise ValueError("negative_input_ids must be given for every prompt where guidance is on")
            self.rows_per_sequence = len(prompts)
        input_ids, attention_mask = side_by_side(prompts[: self.rows_per_sequence])
        if len(grids) not in (1, len(prompts[0][0])):
            raise ValueError(f"grids must be one for each of {len(prompts[0][0])} prompts, got {len(grids)}")
        each = grids if len(grids) > 1 else [*grids] * len(prompts[0][0])
        known = {grid: vocabulary.forced_tokens(*grid, device) for grid in each}
        longest = num_tokens or max(map(len, known.values()))
        self.forced_tokens = torch.stack(
            [F.pad(known[grid], (0, longest - len(known[grid])), value=-1) for grid in each]
        )
        self._has_row_end = vocabulary.has_row_end
        alike = len({*each, *other_grids}) == 1
        rows, others = ([_lines(grid, vocabulary.row_end) for grid in some] for some in (each, other_grids))
        self.lines = rows[0] if alike else MixedGrids(rows, others)
        """The rows of the pictures' grids."""
        least = None if guidance is None else guidance.least
        self._scales = None  # [B, N], one for each place; None: the same for all
        if self.is_guided and least is not None:
            scales = {grid: decaying_scales(guidance_scale, least, *grid, longest) for grid in known}
            self._scales = torch.tensor([scales[grid] for grid in each], device=device)
        ids, embed = vocabulary.ids_on(device), model.get_input_embeddings()
        self.ids = ids
        with torch.no_grad():
            embeds = embed(input_ids)
        super().__init__(
            model,
            attention_mask=attention_mask,
            inputs_embeds=embeds,
            max_new_tokens=longest,
            max_draft_nodes=max_draft_nodes,
            longest_prompt=longest_prompt,
            vocab_size=len(ids),
            decoder=attrgetter(decoder)(model),
            output_head=partial(
                _logits_of_codes, *_head_of_codes(model.lm_head, vocabulary, device), self._has_row_end
            ),
            embed=partial(_embed_ids, embed, ids),
        )
        self.prompt_ids = input_ids

    def change_guidance(self, guidance_scale: float) -> None:
        """See `GuidedTarget.change_guidance`. Raises UserError for a scale that decays from place to place, too."""
        if self._scales is not None:
            raise UserError("guidance_scale cannot be changed in a callback: this family lets it decay by itself")
        super().change_guidance(guidance_scale)

    def prefill(self) -> TargetOutput:
        """See `TransformersTarget.prefill`."""
        output = super().prefill()
        return self._with_ends_of_rows(output, torch.zeros(self.batch_size, 1, device=self.device).long())

    def combine_at(self, output: TargetOutput, places: Callable[[], Tensor]) -> TargetOutput:
        """See `GuidedTarget.combine_at`; ends of rows are known."""
        at = places().clamp(max=self.forced_tokens.shape[1] - 1)
        return self._with_ends_of_rows(self.combine(output, at), at)

    def replace_rows(self, rows: Tensor, other: TokenImageTarget) -> None:  # type: ignore[override]
        """See `TransformersTarget.replace_rows`; the rows' sizes come along."""
        super().replace_rows(rows, other)
        self.forced_tokens[rows] = other.forced_tokens  # in place: a captured step reads it where it lies
        if self._scales is not None and other._scales is not None:
            self._scales[rows] = other._scales

    def combine(self, output: TargetOutput, places: Tensor | None = None) -> TargetOutput:
        """Guided logits, and the hidden states [B, n, rows * dim] of all rows of a picture, the conditional one first.

        Args:
            output: of all rows, [rows * B, n, ...]; of the conditional ones alone, it stays as it is.
            places: [1 or B, n] int64 of the logits, for a scale that decays or guidance that ends; None: at the first
                place.
        """
        if not self.is_guided or len(output.logits) == self.batch_size:
            return output
        hidden_states, count = output.hidden_states, self.rows_per_sequence
        if hidden_states is not None:
            hidden_states = torch.cat(hidden_states.chunk(count), dim=-1)
        scale = self._scale
        if self._scales is not None:
            first = self.forced_tokens.new_zeros(1, 1)
            scale = _at(self._scales, first if places is None else places)[..., None]
        logits = output.logits[..., :-1] if self._has_row_end else output.logits  # only codes are guided
        conditional, *pictures, null = logits.chunk(count)
        if pictures:
            guided = null + self._image_scale * (pictures[0] - null) + scale * (conditional - pictures[0])
        else:
            guided = guide(conditional, null, scale)
        guided = self.where_guided(guided, logits, places)
        return TargetOutput(_with_row_end(guided) if self._has_row_end else guided, hidden_states)

    def _with_ends_of_rows(self, output: TargetOutput, places: Tensor) -> TargetOutput:
        """Allow only the end-of-row token where a row ends, and only codes elsewhere.

        Args:
            output: logits [B, n, V].
            places: [1 or B, n] int64, their places among output tokens.
        """
        if not self._has_row_end:
            return output
        known = _at(self.forced_tokens, places)[..., None]  # [B, n, 1]
        is_row_end = torch.arange(self.vocab_size, device=self.device) == self.vocab_size - 1
        return replace(
            output,
            logits=output.logits.masked_fill((known >= 0) != is_row_end, -torch.inf).masked_fill_(
                (known >= 0) & is_row_end, 0
            ),
        )


def _at(values: Tensor, places: Tensor) -> Tensor:
    """[B, n] of values [B, N] at places [1 or B, n]."""
    return values.gather(1, places.expand(len(values), -1))


def _lines(grid: Grid, row_end: int | None) -> Lines:
    """Rows of a picture's grid; the last one has no end-of-row token."""
    height, width = grid
    return Lines(height * width + (0 if row_end is None else height - 1), width, row_end)


def decaying_scales(scale: float, least: float, height: int, width: int, count: int) -> list[float]:
    """The scale of guidance at each of `count` places, as Lumina-mGPT 2.0 lets it decay.

    Each place multiplies what the one before left. Two tokens with the size have gone by at the first place, and rows
    and columns are halves of the true ones.
    """
    scales = []
    for place in range(count):
        scale = max(least, scale * (1 - (place + 2) / ((height // 2) * (width // 2))))
        scales.append(scale)
    return scales


def _embed_ids(embed: Callable[[Tensor], Tensor], ids: Tensor, tokens: Tensor) -> Tensor:
    """Embeddings of tokens [...], which are numbers of `ids` [V]."""
    return embed(ids[tokens])


def _head_of_codes(
    lm_head: nn.Module, vocabulary: ImageVocabulary, device: torch.device
) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
    """The layer that makes logits of hidden states, and the columns [C] of codes in them; None: it makes no others.

    Where codes follow each other, a plain layer's rows of them are a layer of their own, in the same memory: Emu3.5's
    vocabulary is twice its codes.
    """
    codes = vocabulary.ids[: vocabulary.num_codes]
    first, count = int(codes[0]), len(codes)
    follows = torch.equal(codes, torch.arange(first, first + count))
    if not follows or not is_plain_linear(lm_head) or not untouched((lm_head,)):
        return lm_head, vocabulary.ids_on(device)[: vocabulary.num_codes]
    head: Any = copy.copy(lm_head)
    head._parameters = {
        name: None if each is None else nn.Parameter(each.detach()[first : first + count], requires_grad=False)
        for name, each in lm_head._parameters.items()
    }
    head.out_features = count
    return head, None


def _logits_of_codes(
    head: Callable[[Tensor], Tensor], codes: Tensor | None, has_row_end: bool, hidden_states: Tensor
) -> Tensor:
    """[..., V]: logits of hidden states [..., dim] for codes, see `_head_of_codes`, and for an end-of-row token."""
    logits = head(hidden_states)
    if codes is not None:
        logits = logits[..., codes]
    return _with_row_end(logits) if has_row_end else logits


def _with_row_end(logits: Tensor) -> Tensor:
    """[..., C + 1] from logits of codes [..., C]: the end-of-row token is never drawn, nor drafted by a head from
    these logits.

    Its logit is the lowest finite number, because minus infinity has no expectation.
    """
    lowest = max(torch.finfo(dtype).min for dtype in (logits.dtype, torch.float32))  # they become float32
    return F.pad(logits, (0, 1), value=lowest)
