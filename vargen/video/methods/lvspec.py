"""LVSpec (arXiv 2604.05650). The rule is `specdecode.verifiers.loose`, measured against the visual tokens.

The defaults read relevance one row earlier than the printed rule: there it tells words about the video best on the
shipped pair. Two floors on probability are not the paper's: a low one for the loosened tokens, a high one for the
others. Presets: `lvspec-paper`, the rule as printed; `lvspec-min-p`, where one floor decides alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT, check_number
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.methods.base import LARGEST
from vargen.video.methods.base import VideoComponents
from vargen.video.methods.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from specdecode.drafters.tree_shapes import StaticTree
    from specdecode.roles import Target, Verifier


@dataclass(frozen=True)
class LVSpecConfig(SpeculativeConfig):
    """LVSpec (arXiv 2604.05650): draft tokens that have little to do with the video are accepted as they are."""

    name: ClassVar[str] = "lvspec"
    summary: ClassVar[str] = "LVSpec with floors: tokens that are nearly as likely stay, sooner if they are not visual"
    exact: ClassVar[bool] = False

    draft_length: int = 10
    keep_ratio: float = 0.1
    loose_ratio: float = option(0.6, least=0.0, most=1.0)
    """Lambda, the share of a window that is accepted as drafted; 0 is exact."""
    num_nearest: int = option(10, least=1, most=LARGEST)
    """N, the visual tokens whose mean cosine is a token's relevance."""
    position_shift: bool = True
    """Also accept a token that the target says elsewhere in the window."""
    relevance_from: str = option("prediction", choices=("token", "prediction"))
    """Whose hidden state is compared: "token", the draft token's own; "prediction", the one that predicted it."""
    relevance_layer: int = option(-1, least=-LARGEST, most=LARGEST)
    """After which decoder layer, counted from 1, or from the end below 0. -1 is the last, normed, as in the paper; -2
    the last but one."""
    relevance_centred: bool = False
    """Take a token's mean cosine to all visual tokens off, so that a sharp likeness counts."""
    loosened_by: str = option("relevance", choices=("relevance", "entropy"))
    """What is loosened by: "relevance"; or "entropy", which is not the paper's: where the target is least sure is
    loosened."""
    min_p: float = option(0.3, least=0.0, most=1.0)
    """Not the paper's either: a token is loosened only if the target finds it at least this share as likely as its
    likeliest token. 0 asks for nothing, as the paper."""
    relevant_min_p: float = option(0.7, least=0.0, most=1.0)
    """The same for the other tokens, which have more to do with the video: they are accepted, too, from this share on.
    1 accepts only what the target says, as the paper."""
    branches: int = option(1, least=1, most=MAX_DRAFT)
    """Chains of `draft_length` below each token; the one with most accepted tokens is kept. The paper's appendix E has
    2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(f"{self.name}.branches", self.branches, 1, MAX_DRAFT // self.draft_length)

    @property
    def num_nodes(self) -> int:
        """Nodes of a draft, its root included."""
        return 1 + self.branches * self.draft_length

    def _tree(self) -> StaticTree | None:
        from specdecode.drafters.tree_shapes import StaticTree

        return None if self.branches == 1 else StaticTree.branches(self.branches, self.draft_length)

    def _verifier(self, components: VideoComponents, target: Target) -> Verifier:
        from specdecode.verifiers.loose import LooseVerifier

        return LooseVerifier(
            lambda: components.visual_states(target),
            self.loose_ratio,
            self.num_nearest,
            self.position_shift,
            components.protected_tokens,
            self.relevance_from,
            self.relevance_centred,
            self.loosened_by,
            self.min_p,
            self.relevant_min_p,
        )

    def target_options(self, num_layers: int) -> dict[str, Any]:
        layer = self.relevance_layer + (num_layers + 1 if self.relevance_layer < 0 else 0)
        if not 1 <= layer <= num_layers:
            raise UserError(
                f"{self.name}.relevance_layer must lie between 1 and the model's {num_layers}, or between "
                f"-{num_layers} and -1, got {self.relevance_layer}"
            )
        return {} if layer == num_layers else {"states_after": layer}
