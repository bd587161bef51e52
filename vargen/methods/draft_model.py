"""A draft model drafts a chain: speculative decoding as it began. The drafter: `specdecode.drafters.draft_model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.base.path_roles import READ_FOLDER
from vargen.methods.base import AUTO, Auto, ChainMethodConfig, Components, Method, SearchSpace

if TYPE_CHECKING:
    from specdecode.drafters.draft_size import DraftSize

_LENGTHS = (1, 2, 3, 4, 5, 6, 8)
_RATE = 0.5
"""The acceptance rate that is expected before any is measured."""


@dataclass(frozen=True)
class DraftModelConfig(ChainMethodConfig):
    """A draft model, a smaller one of the same vocabulary, drafts a chain."""

    name: ClassVar[str] = "draft-model"
    summary: ClassVar[str] = "a smaller model of the same vocabulary drafts a chain"
    exact: ClassVar[bool] = True
    weights: ClassVar[tuple[str, ...]] = ("draft_model",)
    draft_settings: ClassVar[tuple[str, ...]] = ("draft_length", "children")

    draft_model: str | None = option(None, path=READ_FOLDER)
    """Folder of its pipeline; null for the one that came with the model."""
    draft_length: int | Auto = option(AUTO, least=1, most=MAX_DRAFT)
    """Draft tokens of a step."""
    children: str = option("coupled", choices=("coupled", "sampled"))
    """Draft tokens are "coupled", drawn with the target's own random number of their place, so that a seed keeps plain
    decoding's picture; or "sampled" with other numbers."""

    def resolved(self, num_tokens: int) -> Self:
        """See `ImageMethodConfig.resolved`: only sampled draft tokens change a seed's picture."""
        return super().resolved(num_tokens) if self.children == "sampled" else self

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        if self.children != "sampled" and self.draft_length == AUTO:
            return self._chains(_LENGTHS, num_tokens)
        return super().sizes(num_tokens)

    def _players(self, components: Components) -> Method:
        from specdecode.drafters.draft_model import DraftModelDrafter
        from specdecode.verifiers.exact import ExactVerifier

        draft = components.load_draft_model(self.draft_model)
        sizes = self.sizes(components.num_tokens)
        sizer = components.draft_sizer(sizes, draft.kind, lambda: draft.draft_once(1), _RATE)
        return Method(DraftModelDrafter(draft.network, sizer, children=self.children), ExactVerifier())

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The chain's length."""
        return {"draft_length": space.integer("draft_length", 1, 8, log=True)}
