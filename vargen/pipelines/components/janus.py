"""What Janus offers methods: its codebook, and a smaller Janus that drafts. The rest is as for all of transformers."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor
from transformers import JanusForConditionalGeneration

from specdecode.drafters.draft_model import MOST_WAITING
from specdecode.kernels.linears import serve_linears
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.methods.base import LoadedDrafter
from vargen.models.janus.target import JanusTarget, num_image_tokens
from vargen.models.janus.vq import unit_codebook
from vargen.models.source import find_files
from vargen.models.transformers_folder import load_model
from vargen.pipelines.components.base import KeptBetweenBatches
from vargen.pipelines.components.transformers import TransformersComponents

_SAME_CODE = 0.99
"""Least cosine of two vectors of one code: precisions round."""


class JanusComponents(TransformersComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
        joins: the batch's rows take places in another one as soon as they have begun.
    """

    family: ClassVar[str] = "Janus"

    def __init__(
        self,
        model: JanusForConditionalGeneration,
        target: JanusTarget,
        kept: KeptBetweenBatches,
        joins: bool = False,
    ) -> None:
        super().__init__(model, target, kept, joins)
        self._janus = target

    def codebook(self) -> Tensor:
        """The tokens' unit vectors [V, d], beside the target."""
        return unit_codebook(self.model).to(self.device)

    def load_draft_model(self, folder: str | None) -> LoadedDrafter[JanusTarget]:
        """A smaller Janus in a folder or on the hub, fed with the same prompts."""
        if folder is None:
            raise UserError(
                "draft_model: Janus came without one; name a smaller Janus, such as "
                "--method_options.draft_model deepseek-community/Janus-Pro-1B"
            )
        if folder not in self.kept.models:
            smaller = load_model(find_files(folder), JanusForConditionalGeneration, "janus", dtype=self.model.dtype)
            check_draft_model(smaller, self.model)
            serve_linears(smaller)
            self.kept.models[folder] = smaller
        model = self.kept.models[folder].to(self.device)
        self.kept.draft_with(model.model.language_model.layers)
        input_ids, attention_mask = self._janus.prompts
        target = JanusTarget(
            model,
            input_ids,
            attention_mask,
            guidance_scale=self._janus.guidance_scale,
            max_draft_nodes=MOST_WAITING + 2,
            longest_prompt=self._janus.longest_prompt,
        )
        if not self.joins:
            self.kept.compile_in_place(target, "draft_model")

        @functools.cache
        def probe() -> TransformersTarget:
            return target.half_way(MOST_WAITING + 2)

        def draft_once(num_tokens: int) -> None:
            tokens = torch.zeros(target.batch_size, num_tokens, dtype=torch.long, device=target.device)
            mask = torch.eye(num_tokens, dtype=torch.bool, device=target.device).expand(len(tokens), -1, -1)
            probe().forward(tokens, mask, torch.zeros_like(tokens))

        text = model.config.get_text_config()
        return LoadedDrafter(target, f"janus-{text.num_hidden_layers}-{text.hidden_size}", draft_once)


def check_draft_model(smaller: JanusForConditionalGeneration, model: JanusForConditionalGeneration) -> None:
    """Refuse a Janus of another tokenizer of pictures or of texts, naming what differs. Raises UserError."""

    def facts(each: JanusForConditionalGeneration) -> dict[str, int]:
        return {
            "tokens of text": int(each.config.get_text_config().vocab_size),
            "tokens a picture": num_image_tokens(each),
            "codes": len(unit_codebook(each)),
        }

    for (name, theirs), ours in zip(facts(smaller).items(), facts(model).values(), strict=True):
        if theirs != ours:
            raise UserError(f"draft_model was made for another model: it has {theirs} {name}, this model has {ours}")
    books = [unit_codebook(each).cpu() for each in (smaller, model)]
    if books[0].shape != books[1].shape or (books[0] * books[1]).sum(1).min() < _SAME_CODE:
        raise UserError("draft_model was made for another model: its codes are not those of this model's tokenizer")
