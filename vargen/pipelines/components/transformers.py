"""What every family of transformers offers methods: a trained head on its features, and what its passes cost by.

Belongs here: a head beside a target of transformers. Does not belong here: any family, and what LlamaGen shares
(`vargen.pipelines.components.base`).
"""

from __future__ import annotations

from typing import Any

from specdecode.drafters.eagle import DraftHead
from specdecode.targets.transformers import TransformersTarget
from vargen.methods.base import LoadedDrafter
from vargen.pipelines.components.base import KeptBetweenBatches, ModelComponents


class TransformersComponents(ModelComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
        joins: the batch's rows take places in another one as soon as they have begun, so its passes are never compiled.
    """

    def __init__(self, model: Any, target: TransformersTarget, kept: KeptBetweenBatches, joins: bool = False) -> None:
        super().__init__(target.device, kept, joins)
        self.model, self._target = model, target
        if not joins:
            kept.compile_in_place(target, "target")

    @property
    def target(self) -> TransformersTarget:
        """The model, fed with the prompts."""
        return self._target

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture."""
        return self.target.max_new_tokens

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """The drafter in a folder beside the target; no family came with one."""
        if folder is None:
            return super().load_draft_head(folder, most_new_pairs)
        # Imported late: diffusers is needed only by a trained head.
        from vargen.drafters.eagle_head import EagleHead
        from vargen.drafters.transformers_draft_head import TransformersDraftHead

        drafter = self._loaded(folder, folder, EagleHead, self.model.dtype)
        self.kept.draft_with(drafter.attn, drafter.ff)
        head = TransformersDraftHead(
            drafter, self.target, most_new_pairs, None if self.joins else self.kept.memory.caches
        )
        if not self.joins:
            self.kept.compile(head)
        return LoadedDrafter(head, head.kind, head.draft_once, head.acceptance_rates)

    def _probe(self, num_tokens: int) -> TransformersTarget:
        return self.target.half_way(num_tokens)

    def _pass_geometry(self) -> dict[str, Any]:
        text = self.model.config.get_text_config()
        return {
            "model": text.to_dict(),
            "attention": text._attn_implementation,
            "dtype": str(self.model.dtype),
            "quantization": str(getattr(self.model.config, "quantization_config", None)),
            "rows": self.target.batch_size * self.target.rows_per_sequence,
            "tokens": self.num_tokens,
            **self.kept.told(self.model),
        }
