"""A causal language model of transformers that draws pictures token by token, as the Target of the speculative loop.

Belongs here: how image tokens become a pass, where rows end, and guidance by two rows or three, constant or decaying.
Does not belong here: the cache, masks and positions (`specdecode.targets.transformers`), sampling, prompts, and pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.places import Lines, Places
from specdecode.roles import TargetOutput
from specdecode.sampling import guide
from vargen.base.errors import UserError
from vargen.models.guided_target import GuidedTarget, Rows, side_by_side
from vargen.models.token_images.description import Guidance
from vargen.models.token_images.grammar import ImageVocabulary


class TokenImageTarget(GuidedTarget):
    """The Target role for one batch of pictures of one size.

    Published code mostly runs a null row apart, in a cache of its own, and some of it guides logarithms of
    probabilities. These differ from the logits by one number for all tokens, so the distribution is the same as here.
    Forced tokens are fed to every row.

    Args:
        model: in evaluation mode.
        vocabulary: its image tokens.
        prompts: of the pictures, with what begins a picture at their ends; then, where guidance is on, the pictures in
            these prompts alone (for three rows), and the null prompts.
        height, width: of the pictures, in codes.
        decoder: path of the decoder in the model.
        guidance: its form; None: two rows, a constant scale.
        guidance_scale: off at values <= 1.
        max_draft_nodes: nodes of the largest tree `forward` will be given, the root included.
        longest_prompt: T of the longest prompt that may take a row's place; None: none is longer than these.

    Attributes:
        prompt_ids: [R, T] int64, the prompts of all rows.
        ids: [V] int64, the vocabulary's name of each token that is drawn.

    Raises:
        ValueError: the shapes do not belong together, or the model cannot be served; see `TransformersTarget`.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: ImageVocabulary,
        prompts: Sequence[Rows],
        *,
        height: int,
        width: int,
        decoder: str = "model",
        guidance: Guidance | None = None,
        guidance_scale: float = 1.0,
        max_draft_nodes: int = 1,
        longest_prompt: int | None = None,
    ) -> None:
        device = prompts[0][0].device
        self.set_guidance(guidance_scale, device)
        # The scale of the picture's row; only guidance with such a row reads it.
        self._image_scale = 1.0 if guidance is None or guidance.image_scale is None else guidance.image_scale
        if self.is_guided:
            if len(prompts) == 1 or any(len(ids) != len(prompts[0][0]) for ids, _ in prompts):
                raise ValueError("negative_input_ids must be given for every prompt where guidance is on")
            self.rows_per_sequence = len(prompts)
        input_ids, attention_mask = side_by_side(prompts[: self.rows_per_sequence])
        self.known_tokens = vocabulary.known_tokens(height, width, device)  # [N]
        self._has_mark = vocabulary.has_mark
        self.lines = Lines(len(self.known_tokens), width, vocabulary.mark)
        """The rows of the grid."""
        least = None if guidance is None else guidance.least
        self._scales = None  # [N], one for each place; None: the same for all
        if self.is_guided and least is not None:
            scales = decaying_scales(guidance_scale, least, height, width, len(self.known_tokens))
            self._scales = torch.tensor(scales, device=device)
            self._scale = self._scales[0]
        ids, embed = vocabulary.ids.to(device), model.get_input_embeddings()
        self.prompt_ids, self.ids = input_ids, ids
        with torch.no_grad():
            embeds = embed(input_ids)
        codes = ids[:-1] if self._has_mark else ids
        super().__init__(
            model,
            attention_mask=attention_mask,
            inputs_embeds=embeds,
            max_new_tokens=len(self.known_tokens),
            max_draft_nodes=max_draft_nodes,
            longest_prompt=longest_prompt,
            vocab_size=len(ids),
            decoder=attrgetter(decoder)(model),
            output_head=partial(_logits_of_codes, model.lm_head, codes, self._has_mark),
            embed=partial(_embed_ids, embed, ids),
        )

    def change_guidance(self, guidance_scale: float) -> None:
        """See `GuidedTarget.change_guidance`. Raises UserError for a scale that decays from place to place, too."""
        if self._scales is not None:
            raise UserError("guidance_scale cannot be changed in a callback: this family lets it decay by itself")
        super().change_guidance(guidance_scale)

    def prefill(self) -> TargetOutput:
        """See `TransformersTarget.prefill`."""
        output = super().prefill()
        return self._with_ends_of_rows(output, torch.zeros(self.batch_size, 1, device=self.device).long())

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """See `TransformersTarget.forward`."""
        committed = (self._cache.allocated().lengths - self._prompt_lengths)[: self.batch_size, None]
        places = (committed + depths + 1).clamp(max=len(self.known_tokens) - 1)
        output = self.combine(self._run_new(tokens, mask, depths, self._length_with(tokens.shape[1])), places)
        return self._with_ends_of_rows(output, places)

    @torch.no_grad()
    def forward_places(self, tokens: Tensor, placed: Places) -> TargetOutput:
        """See `TransformersTarget.forward_places`."""
        places = (placed.positions + 1).clamp(max=len(self.known_tokens) - 1)
        return self._with_ends_of_rows(self.combine(self._run_places(tokens, placed), places), places)

    def combine(self, output: TargetOutput, places: Tensor | None = None) -> TargetOutput:
        """Guided logits, and the hidden states [B, n, rows * dim] of all rows of a picture, the conditional one first.

        Args:
            output: of all rows, [rows * B, n, ...].
            places: [1 or B, n] int64 of the logits, for a scale that decays; None: at the first place.
        """
        if not self.is_guided:
            return output
        hidden_states, count = output.hidden_states, self.rows_per_sequence
        if hidden_states is not None:
            hidden_states = torch.cat(hidden_states.chunk(count), dim=-1)
        decays = self._scales is not None and places is not None
        scale = self._scales[places][..., None] if decays else self._scale  # type: ignore[index]
        logits = output.logits[..., :-1] if self._has_mark else output.logits  # only codes are guided
        conditional, *pictures, null = logits.chunk(count)
        if pictures:
            guided = null + self._image_scale * (pictures[0] - null) + scale * (conditional - pictures[0])
        else:
            guided = guide(conditional, null, scale)
        return TargetOutput(_with_mark(guided) if self._has_mark else guided, hidden_states)

    def _with_ends_of_rows(self, output: TargetOutput, places: Tensor) -> TargetOutput:
        """Allow only the mark where a row ends, and only codes elsewhere.

        Args:
            output: logits [B, n, V].
            places: [1 or B, n] int64, their places among output tokens.
        """
        if not self._has_mark:
            return output
        known = self.known_tokens[places][..., None]  # [B, n, 1]
        is_mark = torch.arange(self.vocab_size, device=self.device) == self.vocab_size - 1
        return replace(
            output,
            logits=output.logits.masked_fill((known >= 0) != is_mark, -torch.inf).masked_fill_(
                (known >= 0) & is_mark, 0
            ),
        )


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


def _logits_of_codes(
    lm_head: Callable[[Tensor], Tensor], codes: Tensor, has_mark: bool, hidden_states: Tensor
) -> Tensor:
    """[..., V]: the model's logits of hidden states [..., dim] for the ids `codes` [C], and for a mark."""
    logits = lm_head(hidden_states)[..., codes]
    return _with_mark(logits) if has_mark else logits


def _with_mark(logits: Tensor) -> Tensor:
    """[..., C + 1] from logits of codes [..., C]: the mark is never drawn, nor drafted by a head from these logits.

    Its logit is the lowest finite number, because minus infinity has no expectation.
    """
    lowest = max(torch.finfo(dtype).min for dtype in (logits.dtype, torch.float32))  # they become float32
    return F.pad(logits, (0, 1), value=lowest)
