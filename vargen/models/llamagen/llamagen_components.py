"""LlamaGen's side of methods: its target on the cache of the last batch, its draft head, draft model and codebook.

Belongs here: finding and loading what a method asks for. Does not belong here: a method, and how prompts become
features (`vargen.pipelines.llamagen`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor

from specdecode.drafters.draft_model import MOST_WAITING, DraftModel
from specdecode.drafters.eagle import DraftHead
from specdecode.grid.positions import Lines
from vargen.base.errors import UserError
from vargen.checkpoints.offloading import move_offloaded
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.base import LoadedDrafter, MethodConfig
from vargen.models.components import SINGLE_BATCH, BatchSlot, ModelComponents, draft_passes
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget, cache_length, cache_sizes
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.llamagen.vq import unit_codebook
from vargen.models.reuse import Reuse


class LlamaGenComponents(ModelComponents):
    """Plays `Components` for one batch of pictures. The target is there once `start` has been called.

    Args:
        transformer, vqvae, drafter, draft_model: as the pipeline has them; any but the first may be missing.
        device: where everything computes.
        reuse: the pipeline's.
    """

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vqvae: VQModel | None,
        drafter: EagleHead | None,
        draft_model: LlamaGenTransformer | None,
        device: torch.device,
        reuse: Reuse,
    ) -> None:
        self.transformer = transformer
        self.vqvae = vqvae
        self.drafter = drafter
        self.draft_model = draft_model
        super().__init__(device, reuse)

    def wants_full_prompt(self, method: MethodConfig) -> bool:
        """Whether the method's drafter was trained on prompts in their full length, padding included."""
        if "drafter" not in method.weights:
            return False
        drafter = self._drafter(method.to_dict()["drafter"])
        return drafter is not None and drafter.config.attend_to_padding

    def start(
        self,
        condition: Mapping[str, Tensor],
        mask: Tensor | None,
        guidance_scale: float,
        max_draft_nodes: int,
        place: BatchSlot = SINGLE_BATCH,
        negative: tuple[Tensor, Tensor] | None = None,
        guided_tokens: int | None = None,
    ) -> LlamaGenTarget:
        """Begin a batch: its target, on the cache of the last batch, or on a new one where that does not fit.

        Args:
            condition: what `LlamaGenTransformer.embed_condition` takes.
            mask: [B, T] bool of a prompt, None for classes.
            guidance_scale: as for `LlamaGenTarget`.
            max_draft_nodes: of the method.
            place: of the batch in a queue of batches.
            negative: text features [B, T', caption_dim] that guidance leads away from, and their mask [B, T']; None:
                the model's null condition.
            guided_tokens: as for `LlamaGenTarget`.
        """
        self._condition, self._mask, self._negative = condition, mask, negative
        self._place, self.joins = place, place.joins
        self._guidance_scale, self._guided_tokens = guidance_scale, guided_tokens
        self._target = self._new_target(self.transformer, "target", max_draft_nodes)
        return self._target

    def _new_target(self, transformer: LlamaGenTransformer, role: str, max_draft_nodes: int) -> LlamaGenTarget:
        """A transformer, fed with the condition, on the cache that is kept for its role."""
        move_offloaded(transformer)  # asked for embeddings before it is called
        embeds, mask = embed_each(transformer, self._condition, self._mask), self._mask
        negative_embeds = negative_mask = None
        if self._negative is not None and mask is not None:
            features, negative_mask = self._negative
            negative_embeds = embed_each(transformer, {"caption_embeds": features}, negative_mask)
            length = max(embeds.shape[1], negative_embeds.shape[1])
            embeds, negative_embeds = (
                F.pad(each, (0, 0, length - each.shape[1], 0)) for each in (embeds, negative_embeds)
            )
            mask, negative_mask = (F.pad(each, (length - each.shape[1], 0)) for each in (mask, negative_mask))
        longest = max(embeds.shape[1], min(self._place.longest_prompt, transformer.config.condition_length))
        kv_cache = None
        if not self.joins:
            rows = len(embeds) * (2 if self._guidance_scale > 1 else 1)
            num_slots = cache_length(transformer, longest, max_draft_nodes)
            # For the longest condition, so that the next prompts, of another length, fit as well.
            most_slots = cache_length(transformer, transformer.config.condition_length, max_draft_nodes)
            kv_cache = self.reuse.memory.caches.get(role, most_slots, **cache_sizes(transformer, rows, num_slots))
        target = LlamaGenTarget(
            transformer,
            embeds,
            mask,
            guidance_scale=self._guidance_scale,
            guided_tokens=self._guided_tokens,
            negative_embeds=negative_embeds,
            negative_mask=negative_mask,
            max_draft_nodes=max_draft_nodes,
            kv_cache=kv_cache,
            longest_condition=longest,
            prompt_only=self.joins,
            num_given=self._place.num_given,
        )
        if not self.joins:
            self.reuse.compile(target)
        return target

    @property
    def target(self) -> LlamaGenTarget:
        """The transformer, fed with the condition."""
        return self._target

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture."""
        return self.transformer.num_image_tokens

    def _lines(self) -> Lines:
        return Lines(self.num_tokens, self.transformer.config.grid_size)

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """The draft head in a folder, or the pipeline's own."""
        drafter = self._drafter(folder)
        if drafter is None:
            return super().load_draft_head(folder, most_new_pairs)
        self.reuse.quantize_drafts(drafter.attn, drafter.ff)
        caches = None if self.joins else self.reuse.memory.caches
        head = LlamaGenDraftHead(drafter, self.target, most_new_pairs, caches)
        self.reuse.check_parts(head)
        return LoadedDrafter(head, head.kind, head.draft_once, head.acceptance_rates)

    def load_draft_model(self, folder: str | None, most_nodes: int = 0) -> LoadedDrafter[DraftModel]:
        """The draft model in a folder (or in `transformer/` there), or the pipeline's own."""
        transformer = self._own_draft_model(folder)
        self.reuse.quantize_drafts(transformer.transformer_blocks)
        target = self._new_target(transformer, "draft model", max(MOST_WAITING + 2, most_nodes))
        kind = f"transformer-{transformer.config.num_layers}-{transformer.config.dim}"
        return LoadedDrafter(target, kind, draft_passes(lambda: target))

    def codebook(self) -> Tensor:
        """Unit vectors [V, d] of the codes, on the transformer's device."""
        if self.vqvae is None:
            raise UserError(
                "this method compares the codes of the image tokenizer, and this pipeline has none (vqvae); use an "
                "exact one such as eagle"
            )
        return unit_codebook(self.vqvae).to(self.device)

    def _probe(self, num_tokens: int) -> LlamaGenTarget:
        return self._target.half_way(num_tokens)

    def _pass_geometry(self) -> dict[str, Any]:
        transformer = self.transformer
        return {
            "model": {name: value for name, value in transformer.config.items() if not name.startswith("_")},
            "dtype": str(transformer.dtype),
            "rows": self.target.kv_cache.batch_size,
            **self.reuse.computed_by(transformer.transformer_blocks),
        }

    def _drafter(self, folder: str | None) -> EagleHead | None:
        return self.drafter if folder is None else self._loaded(folder, folder, EagleHead, self.transformer.dtype)

    def _own_draft_model(self, folder: str | None) -> LlamaGenTransformer:
        if folder is None:
            if self.draft_model is None:
                raise UserError("draft_model: this model came without one; name a folder in the method's settings")
            return self.draft_model
        inner = os.path.join(folder, "transformer")
        path = inner if os.path.isdir(inner) else folder
        draft_model = self._loaded(folder, path, LlamaGenTransformer, self.transformer.dtype)
        check_draft_model(draft_model, self.transformer)
        return draft_model


def embed_each(transformer: LlamaGenTransformer, condition: Mapping[str, Tensor], mask: Tensor | None) -> Tensor:
    """`LlamaGenTransformer.embed_condition`, [B, T, dim], of each prompt alone, without its padding.

    So a prompt's condition tokens are the same bits in every batch, as its features are (`text_encoder.encode_each`).
    """
    if mask is None:
        return transformer.embed_condition(**condition)
    embeds = [
        F.pad(transformer.embed_condition(caption_embeds=features[None, -length:]), (0, 0, len(features) - length, 0))
        for features, length in zip(condition["caption_embeds"], mask.sum(1).tolist(), strict=True)
    ]
    return torch.cat(embeds)


def check_draft_model(draft_model: LlamaGenTransformer, transformer: LlamaGenTransformer) -> None:
    """Refuse a draft model with other tokens or another kind of prompt, naming what differs. Raises UserError."""
    kind = "caption_dim" if transformer.config.condition_type == "text" else "num_classes"
    for name in ("vocab_size", "grid_size", "condition_type", kind):
        if draft_model.config[name] != transformer.config[name]:
            raise UserError(
                f"draft_model was made for another model: its {name} is {draft_model.config[name]!r}, this model has "
                f"{transformer.config[name]!r}"
            )
