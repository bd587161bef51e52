"""Janus's side of methods: its codebook, and a smaller Janus as draft model. `transformers.py` has the rest."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

from torch import Tensor
from transformers import JanusForConditionalGeneration

from specdecode.drafters.draft_model import MOST_WAITING
from specdecode.grid.positions import Lines
from specdecode.kernels.linears import serve_linears
from vargen.base.errors import UserError
from vargen.checkpoints.source import find_files
from vargen.checkpoints.transformers_folder import load_model
from vargen.methods.base import LoadedDrafter
from vargen.models.components import draft_passes
from vargen.models.janus.janus_target import JanusTarget, num_image_tokens
from vargen.models.janus.vq import unit_codebook
from vargen.models.transformers_components import TransformersComponents

_SAME_CODE = 0.99
"""The least cosine between two vectors of one code in two models, whose precisions round differently."""


class JanusComponents(TransformersComponents):
    """See `TransformersComponents`."""

    family: ClassVar[str] = "Janus"

    def _lines(self) -> Lines:
        return Lines(self.num_tokens, math.isqrt(self.num_tokens))  # pictures are square

    def codebook(self) -> Tensor:
        """Unit vectors [V, d] of the codes, on the target's device."""
        return unit_codebook(self.model).to(self.device)

    def load_draft_model(self, folder: str | None, most_nodes: int = 0) -> LoadedDrafter[JanusTarget]:
        """A smaller Janus in a folder or on the hub, fed with the same prompts."""
        if folder is None:
            raise UserError(
                "draft_model: Janus came without one; name a smaller Janus, such as "
                "--method_options.draft_model deepseek-community/Janus-Pro-1B"
            )
        if folder not in self.reuse.models:
            smaller = load_model(find_files(folder), JanusForConditionalGeneration, "janus", dtype=self.model.dtype)
            check_draft_model(smaller, self.model)
            serve_linears(smaller)
            self.reuse.models[folder] = smaller
        model = self.reuse.models[folder].to(self.device)
        self.reuse.quantize_drafts(model.model.language_model.layers)
        drafted_for: Any = self.target
        target = JanusTarget(
            model,
            *drafted_for.prompts,
            negative=drafted_for.negative,
            guidance_scale=drafted_for.guidance_scale,
            max_draft_nodes=max(MOST_WAITING + 2, most_nodes),
            longest_prompt=drafted_for.longest_prompt,
        )
        if not self.joins:
            self.reuse.compile_in_place(target, "draft_model")
        text = model.config.get_text_config()
        probe = functools.cache(lambda: target.half_way(MOST_WAITING + 2))
        return LoadedDrafter(target, f"janus-{text.num_hidden_layers}-{text.hidden_size}", draft_passes(probe))


def check_draft_model(smaller: JanusForConditionalGeneration, model: JanusForConditionalGeneration) -> None:
    """Refuse a Janus with other codes or another text tokenizer, naming what differs. Raises UserError."""

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
