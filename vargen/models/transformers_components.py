"""What every family of transformers offers methods: a trained head on its features, and sizes by the clock.

Belongs here: loading a head, and where a target stands whose steps are timed. Does not belong here: any family, and the
refusal of what none has (`vargen.models.components`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specdecode.draft_size import DraftSize, DraftSizer
from specdecode.targets.transformers import TransformersTarget
from vargen.errors import UserError
from vargen.methods.base import DraftNetwork
from vargen.models.components import KeptBetweenBatches, ModelComponents
from vargen.models.model_folder import check_component_folder

if TYPE_CHECKING:
    from vargen.models.draft_head import TransformersDraftHead


class TransformersComponents(ModelComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
        joins: the batch's rows take places in another one as soon as they have begun, so its passes are never compiled.
    """

    def __init__(self, model: Any, target: TransformersTarget, kept: KeptBetweenBatches, joins: bool = False) -> None:
        super().__init__(target.device, kept)
        self.model, self._target, self.joins = model, target, joins
        if kept.compiler is not None and not joins:
            kept.compile(target, kv_cache=None if kept.target is None else kept.target.kv_cache)
            kept.target = target

    @property
    def target(self) -> TransformersTarget:
        """The model, fed with the prompts."""
        return self._target

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture."""
        return self.target.max_new_tokens

    def draft_head(self, folder: str | None, most_new_pairs: int) -> DraftNetwork[TransformersDraftHead]:
        """The drafter in a folder beside the target; no family came with one."""
        if folder is None:
            raise UserError(
                f"drafter: {self.family} came without one; train one with `vargen train drafter` and name its folder "
                f"in the method's settings, such as --method_options.drafter runs/drafter/export"
            )
        # The network for every family is LlamaGen's, which is imported only where somebody drafts with one.
        from vargen.models.draft_head import TransformersDraftHead
        from vargen.models.llamagen.drafter import LlamaGenDrafter

        if folder not in self.kept.models:
            check_component_folder(folder, LlamaGenDrafter)
            self.kept.models[folder] = LlamaGenDrafter.from_pretrained(folder, torch_dtype=self.model.dtype).eval()
        drafter: LlamaGenDrafter = self.kept.models[folder].to(self.device)
        self.kept.draft_with(drafter.attn, drafter.ff)
        head = TransformersDraftHead(drafter, self.target, most_new_pairs, None if self.joins else self.kept.caches)
        if not self.joins:
            self.kept.compile(head)
        rates = {"top": drafter.config.acceptance_rate, "sampled": drafter.config.sampled_acceptance_rate}
        return DraftNetwork(head, f"eagle-{drafter.config.dim}", head.draft_once, rates)

    def draft_sizer(
        self,
        sizes: Sequence[DraftSize],
        drafter: str,
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
    ) -> DraftSizer:
        """See `Components.draft_sizer`."""
        is_cuda = self.device.type == "cuda"
        geometry = {
            "device": torch.cuda.get_device_name(self.device) if is_cuda else self.device.type,
            "model": self.model.config.get_text_config().to_dict(),
            "attention": self.model.config.get_text_config()._attn_implementation,
            "dtype": str(self.model.dtype),
            "quantization": str(getattr(self.model.config, "quantization_config", None)),
            "rows": self.target.batch_size * self.target.rows_per_sequence,
            "tokens": self.num_tokens,
            "drafter": drafter,
            **self.kept.told(self.model),
        }
        compiled = self.kept.compiler is not None
        return self.kept.draft_sizes.sizer(sizes, geometry, self.target.half_way, draft_step, expected, compiled)
