"""Emu3 as the Target of the speculative loop: text prompts, and pictures as lines of codes.

Belongs here: how image tokens become a pass of `Emu3ForConditionalGeneration`, and where lines end. Does not belong
here: the cache, masks and positions (`specdecode.targets.transformers`), sampling, and pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Emu3ForConditionalGeneration

from specdecode.roles import TargetOutput
from vargen.models.emu3.vocabulary import ImageVocabulary
from vargen.models.guided_target import GuidedTarget


class Emu3Target(GuidedTarget):
    """The Target role for one batch of pictures of one size.

    `generate` runs the model twice, with two caches, and guides logarithms of probabilities. These differ from the
    logits by one number for all tokens, so the distribution is the same as here.

    Args:
        model: in evaluation mode.
        input_ids: [B, T] int64, prompts padded on the left, ending as the processor ends them.
        attention_mask: [B, T], 0 at padding; None: nothing is padded.
        height, width: of the pictures, in codes.
        negative_input_ids, negative_attention_mask: [B, T'], the prompts that guidance leads away from.
        guidance_scale: off at values <= 1.
        max_draft_nodes: nodes of the largest tree `forward` will be given, the root included.
        longest_prompt: T or T' of the longest prompt that may take a row's place; None: none is longer than these.

    Raises:
        ValueError: the shapes do not belong together, or the model cannot be served; see `TransformersTarget`.
        UserError: the model has no image tokens.
    """

    def __init__(
        self,
        model: Emu3ForConditionalGeneration,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        height: int,
        width: int,
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        guidance_scale: float = 1.0,
        max_draft_nodes: int = 1,
        longest_prompt: int | None = None,
    ) -> None:
        self.set_guidance(guidance_scale, input_ids.device)
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if self.is_guided:
            if negative_input_ids is None or len(negative_input_ids) != len(input_ids):
                raise ValueError("negative_input_ids must be given for every prompt where guidance is on")
            if negative_attention_mask is None:
                negative_attention_mask = torch.ones_like(negative_input_ids)
            length = max(input_ids.shape[1], negative_input_ids.shape[1])
            input_ids, attention_mask = (
                torch.cat([F.pad(rows, (length - rows.shape[1], 0)) for rows in both])
                for both in ((input_ids, negative_input_ids), (attention_mask, negative_attention_mask))
            )
        vocabulary = ImageVocabulary.of(model)
        names, embed = vocabulary.names.to(input_ids.device), model.get_input_embeddings()
        self.known_tokens = vocabulary.known_tokens(height, width, input_ids.device)  # [N]
        with torch.no_grad():
            embeds = embed(input_ids)
        super().__init__(
            model,
            attention_mask=attention_mask,
            inputs_embeds=embeds,
            max_new_tokens=len(self.known_tokens),
            max_draft_nodes=max_draft_nodes,
            longest_prompt=longest_prompt,
            vocab_size=len(names),
            decoder=model.model.text_model,
            output_head=partial(_logits_of_names, model.lm_head, names),
            embed=partial(_embed_names, embed, names),
        )

    def prefill(self) -> TargetOutput:
        """See `TransformersTarget.prefill`."""
        output = super().prefill()
        return self._with_ends_of_lines(output, torch.zeros(self.batch_size, 1, device=self.device).long())

    def _pass(self, tokens: Tensor, mask: Tensor, depths: Tensor, reach: Tensor) -> TargetOutput:
        """See `TransformersTarget._pass`."""
        committed = (self._cache.allocated().lengths - self._prompt_lengths)[: self.batch_size, None]
        return self._with_ends_of_lines(super()._pass(tokens, mask, depths, reach), committed + depths + 1)

    def guided_logits(self, logits: Tensor) -> Tensor:
        """See `GuidedTarget.guided_logits`; only codes are guided."""
        return _with_mark(super().guided_logits(logits[..., :-1]))

    def _with_ends_of_lines(self, output: TargetOutput, places: Tensor) -> TargetOutput:
        """Allow only the mark where a line ends, and only codes elsewhere.

        Args:
            output: logits [B, n, C + 1].
            places: [B, n] int64, their places among output tokens.
        """
        known = self.known_tokens[places.clamp(max=len(self.known_tokens) - 1)][..., None]  # [B, n, 1]
        is_mark = torch.arange(self.vocab_size, device=self.device) == self.vocab_size - 1
        return replace(
            output,
            logits=output.logits.masked_fill((known >= 0) != is_mark, -torch.inf).masked_fill_(
                (known >= 0) & is_mark, 0
            ),
        )


def _embed_names(embed: Callable[[Tensor], Tensor], names: Tensor, tokens: Tensor) -> Tensor:
    """Embeddings of tokens [...], which are numbers of `names` [C + 1]."""
    return embed(names[tokens])


def _logits_of_names(lm_head: Callable[[Tensor], Tensor], names: Tensor, hidden_states: Tensor) -> Tensor:
    """[..., C + 1]: the model's logits of hidden states [..., dim] for the tokens `names` [C + 1]."""
    return _with_mark(lm_head(hidden_states)[..., names[:-1]])


def _with_mark(logits: Tensor) -> Tensor:
    """[..., C + 1] from logits of codes [..., C]: the mark is never drawn, nor drafted by a head from these logits.

    Its logit is the lowest finite number, because minus infinity has no expectation.
    """
    lowest = max(torch.finfo(dtype).min for dtype in (logits.dtype, torch.float32))  # they become float32
    return F.pad(logits, (0, 1), value=lowest)
