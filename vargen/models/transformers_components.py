"""The side of methods of families of transformers: a trained draft head, and the sizes that their forward passes cost
by.

Belongs here: parts for every target of transformers. Does not belong here: one family, and parts for LlamaGen too
(`vargen.models.components`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdecode.drafters.eagle import DraftHead
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.checkpoints.model_folder import read_json
from vargen.methods.base import LoadedDrafter
from vargen.models.components import ModelComponents
from vargen.models.reuse import Reuse


def _class_name(folder: str) -> object:
    """The class of the network in a folder, where its config.json names one."""
    path = Path(folder) / "config.json"
    return read_json(path).get("_class_name") if path.is_file() else None


class TransformersComponents(ModelComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        reuse: the pipeline's.
        joins: see `BatchSlot`.
    """

    def __init__(self, model: Any, target: TransformersTarget, reuse: Reuse, joins: bool = False) -> None:
        super().__init__(target.device, reuse, joins)
        self.model, self._target = model, target
        if not joins:
            reuse.compile_in_place(target, "target")

    @property
    def target(self) -> TransformersTarget:
        """The model, fed with the prompts."""
        return self._target

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture."""
        return self.target.max_new_tokens

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """The draft head in a folder; no model of these families came with one."""
        if folder is None:
            return super().load_draft_head(folder, most_new_pairs)
        # Imported late: diffusers is needed only by a trained head.
        from vargen.drafters.chameleon_head import ChameleonHead
        from vargen.drafters.eagle_head import EagleHead
        from vargen.drafters.transformers_draft_head import ChameleonDraftHead, TransformersDraftHead

        is_chameleon = _class_name(folder) == ChameleonHead.__name__
        if is_chameleon and not hasattr(self.target, "ids"):
            raise UserError(f"drafter: {folder} drafts for Chameleons such as Anole, which {self.family} is not")
        kind: type[EagleHead | ChameleonHead] = ChameleonHead if is_chameleon else EagleHead
        drafter = self._loaded(folder, folder, kind, self.model.dtype)
        caches = None if self.joins else self.reuse.memory.caches
        beside = ChameleonDraftHead if is_chameleon else TransformersDraftHead
        head = beside(drafter, self.target, most_new_pairs, caches)
        self.reuse.quantize_drafts(drafter.attn, drafter.ff)
        if not self.joins:
            self.reuse.check_parts(head)
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
            "processes": self.model.tp_size or 1,
            **self.reuse.computed_by(self.model),
        }
