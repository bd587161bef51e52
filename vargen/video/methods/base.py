"""A method for videos: checked settings, and the players that it builds.

Belongs here: the base of all methods for videos, and `VideoComponents`, through which a method asks for models. Does
not belong here: any method (one file each, beside this one), any model, and decoding (`vargen.video.pipelines`).
Importing this imports no torch: players are imported where they are built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vargen.base.errors import UserError
from vargen.methods.base import Method, MethodConfig, Task

if TYPE_CHECKING:
    from torch import Tensor

    from specdecode.drafters.draft_size import DraftSize, DraftSizer
    from specdecode.roles import Target


SPREADS = ("uniform", "random", "jittered", "low_discrepancy")
"""Choices of visual tokens that look at nothing; see `vargen.video.models.pruning`."""


@dataclass(frozen=True)
class Pruning:
    """Which visual tokens a draft model is shown.

    Args:
        keep_ratio: share of the visual tokens, above 0 and at most 1.
        by: one of `SPREADS`, "attention" (SpecVLM) or "visual_gain" (ParallelVLM's UV-Prune).
        layer: of "visual_gain": the decoder layer whose hidden states are compared with the embeddings.
        seed: of what is drawn at random. Each request has a generator of its own, so neighbours in a batch change none.
    """

    keep_ratio: float
    by: str = "uniform"
    layer: int = 1
    seed: int = 0

    @property
    def captured(self) -> dict[str, Any]:
        """What the target must keep of its prefill, as options of `VideoComponents.target`."""
        if self.keep_ratio == 1 or self.by in SPREADS:
            return {}
        return {"capture_attention": True} if self.by == "attention" else {"capture_layers": (0, self.layer)}


@dataclass(kw_only=True)
class VideoMethod(Method):
    """The players of one decoding run.

    Args:
        target: the model, fed with the prompts.
        network: the draft model or draft head behind the drafter, which counts its `forward_passes`,
            `prompt_passes` and `flops`; None: the drafter has no network of its own.
    """

    target: Target
    network: Any = None


class OwnLoop(Protocol):
    """Decodes by a loop of its own. `VideoComponents` makes it, and `vargen.video.pipelines.decoding` runs it."""

    def decode(self, generation: Any) -> Any:
        """Decode the answers; see `vargen.video.pipelines.decoding`."""


class VideoComponents(Protocol):
    """What a method may ask for, for questions that are answered together. It asks only for what it needs.

    A `target` that is passed back is one that `target` returned.

    Raises:
        UserError, ValueError: from any of them: the models have no such thing; the message says what to do.
    """

    @property
    def batch_size(self) -> int:
        """Number of questions."""

    @property
    def num_layers(self) -> int:
        """Decoder layers of the target."""

    @property
    def protected_tokens(self) -> tuple[int, ...]:
        """Special tokens, which no relaxed verifier may replace."""

    def target(
        self,
        num_nodes: int,
        *,
        capture_layers: Sequence[int] = (),
        capture_attention: bool = False,
        states_after: int | None = None,
    ) -> Target:
        """The large model, fed with the prompts, for drafts of so many nodes.

        Args:
            capture_layers: keep the prefill's hidden states after so many decoder layers; 0 are the embeddings.
            capture_attention: keep what attention the text after the video pays to the video.
            states_after: the hidden states it gives are those after so many decoder layers; None: the final ones.
        """

    def visual_states(self, target: Any) -> list[Tensor]:
        """The hidden states [m, dim] that the target gives at the visual tokens of each prompt; after the prefill."""

    def pruned_draft(self, target: Any, drafter: str, pruning: Pruning, num_nodes: int) -> Any:
        """A `DraftModel` that is shown a part of the video, and counts its `forward_passes`.

        Args:
            target: made with `pruning.captured`.
            drafter: "pair" for the draft model, "self" for the target's own weights.
        """

    def load_draft_head(self, kind: str, folder: str | None) -> Any:
        """The network of a trained draft head: that in a folder, or (None) the one that came with the model.

        Its `config` says `draft_length`, the places it guesses in one forward pass, and `capture_layers`.
        """

    def draft_head(self, network: Any, target: Any) -> Any:
        """The network beside a target that was made with its `capture_layers`. Its `drafter(shape, sizer)` drafts."""

    def draft_sizer(self, sizes: Sequence[DraftSize], drafter: str) -> DraftSizer:
        """Chooses among sizes, and nothing, by measured seconds; where the host does not wait for the device,
        always the last. Only for drafts that change no answer.

        Args:
            sizes: rising.
            drafter: tells drafters apart whose steps cost differently.
        """

    def parallel_pair(self, drafter: str, workers: str, pruning: Pruning, draft_length: int | None) -> OwnLoop:
        """A target and a draft model that work at the same time; the draft model starts once for all answers.

        Args:
            drafter: as for `pruned_draft`.
            workers: "processes" or "in_turn".
            draft_length: tokens of a window; None measures how many are drafted during a forward pass of the target.
        """


@dataclass(frozen=True)
class VideoMethodConfig(MethodConfig, ABC):
    """Settings of a method that answers questions about videos.

    Attributes:
        one_at_a_time: whether it decodes one answer at a time.
    """

    task: ClassVar[Task] = "video"
    one_at_a_time: ClassVar[bool] = False

    @abstractmethod
    def _players(self, components: VideoComponents) -> VideoMethod | OwnLoop:
        """Do what `build` does, with ValueErrors of the players as they come."""

    def build(self, components: VideoComponents) -> VideoMethod | OwnLoop:
        """The players for one batch of questions.

        Raises:
            UserError: the settings do not fit the models, or something the method needs is missing.
        """
        if self.one_at_a_time and components.batch_size > 1:
            raise UserError(
                f"{self.name} answers one question at a time, got {components.batch_size}; ask one after the other"
            )
        with self._errors_by_name():
            return self._players(components)

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        """Refuse a method whose drafter is missing, before weights are fetched and loaded.

        Args:
            trained: kinds of draft heads that came with the model.
            paired: whether there is a draft model.

        Raises:
            UserError: what is missing.
        """

    def _need_draft_model(self, paired: bool, remedy: str = "") -> None:
        if not paired:
            raise UserError(f"{self.name}: draft_model must be given: this method needs one{remedy}")
