"""Janus as the Target of the speculative loop: text prompts, and image tokens with their own embedding and output head.

Belongs here: the null prompt of guidance, and how image tokens become a pass of `JanusForConditionalGeneration`. Does
not belong here: the cache, masks and positions (`specdecode.targets.transformers`), sampling, and pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, JanusForConditionalGeneration

from vargen.base.errors import UserError
from vargen.models.guided_target import GuidedTarget, Rows, side_by_side


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens of a null prompt: those that begin a text and an image, and padding in place of all others."""

    beginning: int
    image_beginning: int
    padding: int

    @classmethod
    def of(cls, generation_config: GenerationConfig) -> SpecialTokens:
        """The tokens that `generate` uses. Raises UserError if one is missing, so that there is no null prompt."""
        kwargs = getattr(generation_config, "generation_kwargs", None) or {}
        tokens = {
            "bos_token_id": generation_config.bos_token_id,
            "generation_kwargs.boi_token_id": kwargs.get("boi_token_id"),
            "pad_token_id": generation_config.pad_token_id,
        }
        if missing := [name for name, token in tokens.items() if token is None]:
            raise UserError(
                f"guidance_scale must be at most 1 (off): the model's generation_config.json lacks {missing[0]}, "
                f"without which there is no null prompt"
            )
        return cls(*tokens.values())

    def null_prompt(self, input_ids: Tensor) -> Tensor:
        """The unconditional prompts [B, T] beside these: only the tokens that begin text and image stay."""
        kept = (input_ids == self.beginning) | (input_ids == self.image_beginning)
        return input_ids.where(kept, self.padding)


class JanusTarget(GuidedTarget):
    """The Target role for one batch of pictures.

    A null prompt has the mask of its prompt, as in `generate`; a negative prompt has its own.

    Args:
        model: in evaluation mode.
        input_ids: [B, T] int64, prompts padded on the left, ending with the beginning of an image.
        attention_mask: [B, T], 0 at padding; None: nothing is padded.
        negative: what guidance leads away from, tokens [B, T'] and their mask, in place of null prompts.
        guidance_scale: classifier-free guidance on raw logits; off at values <= 1.
        guided_tokens: see `GuidedTarget`.
        max_draft_nodes: nodes of the largest tree `forward` will be given, the root included.
        longest_prompt: T of the longest prompt that may take a row's place; None: none is longer than these.

    Raises:
        ValueError: the shapes do not belong together, or the model cannot be served; see `TransformersTarget`.
        UserError: guidance without a null prompt; see `SpecialTokens.of`.
    """

    def __init__(
        self,
        model: JanusForConditionalGeneration,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        negative: Rows | None = None,
        guidance_scale: float = 1.0,
        guided_tokens: int | None = None,
        max_draft_nodes: int = 1,
        longest_prompt: int | None = None,
    ) -> None:
        self.set_guidance(guidance_scale, input_ids.device, guided_tokens)
        self.prompts, self.negative = (input_ids, attention_mask), negative  # as they were given, for a draft model
        if self.is_guided and negative is not None:
            if len(negative[0]) != len(input_ids):
                raise ValueError("negative must hold a prompt for each prompt")
            input_ids, attention_mask = side_by_side([self.prompts, negative])
        elif self.is_guided:
            null = SpecialTokens.of(model.generation_config).null_prompt(input_ids)
            input_ids = torch.cat((input_ids, null))
            attention_mask = None if attention_mask is None else torch.cat((attention_mask, attention_mask))
        with torch.no_grad():
            embeds = model.get_input_embeddings()(input_ids)
        super().__init__(
            model,
            attention_mask=attention_mask,
            inputs_embeds=embeds,
            max_new_tokens=num_image_tokens(model),
            max_draft_nodes=max_draft_nodes,
            longest_prompt=longest_prompt,
            vocab_size=model.model.vqmodel.config.num_embeddings,
            decoder=model.model.language_model,
            output_head=model.model.generation_head,
            embed=model.prepare_embeddings_for_image_generation,
        )


def num_image_tokens(model: JanusForConditionalGeneration) -> int:
    """Tokens of a picture, which is square."""
    vision: Any = model.config.vision_config
    return int(vision.num_image_tokens)
