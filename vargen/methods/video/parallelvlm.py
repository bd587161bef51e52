"""ParallelVLM: settings and players; the drafter's side is `vargen.pipelines.video.parallel_pair`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.methods.base import AUTO, Auto
from vargen.methods.video.speculative import DRAFTERS, SpeculativeConfig

if TYPE_CHECKING:
    from vargen.pipelines.video.players import VideoDecoder
    from vargen.pipelines.video.prompt import Prompt

WORKERS = ("processes", "threads", "in_turn")


@dataclass(frozen=True)
class ParallelConfig(SpeculativeConfig):
    """ParallelVLM (arXiv 2603.19610): the drafter works while the target does, in a process of its own.

    Args:
        draft_length: tokens of a window; "auto" measures how many the drafter makes during one target pass.
        workers: "processes", two of them; "threads", two in one process, on a GPU each with a stream of its own;
            "in_turn", one after the other in one, with the same result.
    """

    name: ClassVar[str] = "parallelvlm"
    summary: ClassVar[str] = "ParallelVLM: drafter and target work at the same time, in two processes"
    exact: ClassVar[bool] = True

    draft_length: int | Auto = AUTO  # type: ignore[assignment]
    keep_ratio: float = 0.1
    pruning: str = "visual_gain"
    workers: str = "processes"

    def __post_init__(self) -> None:
        self._one_of("drafter", DRAFTERS)
        self._size("draft_length")
        self._share("keep_ratio")
        self._one_of("pruning", ("uniform", "visual_gain"))
        self._one_of("workers", WORKERS)
        if self.pruning_layer is not None:
            self._number("pruning_layer", 1, whole=True)

    def build(self, prompt: Prompt) -> VideoDecoder:
        """The target, and the drafter's side, which is started once for all answers."""
        from vargen.pipelines.video.parallel_pair import ParallelPair, ParallelPlayers

        prompt.check_single(self.name)
        apart = self.workers == "processes"
        drafter = prompt.draft_source(self.drafter) if apart else prompt.draft_weights(self.drafter)
        pair = ParallelPair(drafter, self.workers)
        return ParallelPlayers(
            prompt,
            prompt.lasting.setdefault((self.name, self.drafter, self.workers), pair),
            keep_ratio=self.keep_ratio,
            gain_layer=self.compared_layer(prompt.model) if self.pruning == "visual_gain" else None,
            compact=self.compact,
            draft_length=None if self.draft_length == AUTO else int(self.draft_length),
        )
