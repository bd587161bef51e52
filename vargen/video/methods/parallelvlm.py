"""ParallelVLM (arXiv 2603.19610): target and draft model work at the same time.

The default keeps evenly spread tokens, which serve the shipped pair best; the preset `parallelvlm-paper` has UV-Prune.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.base.options import option
from vargen.methods.base import AUTO, Auto
from vargen.video.methods.base import SPREADS, OwnLoop, VideoComponents
from vargen.video.methods.speculative import SpeculativeConfig

WORKERS = ("processes", "in_turn")


@dataclass(frozen=True)
class ParallelConfig(SpeculativeConfig):
    """ParallelVLM (arXiv 2603.19610): the draft model works while the target does, in a process of its own."""

    name: ClassVar[str] = "parallelvlm"
    summary: ClassVar[str] = "ParallelVLM on an even tenth of the video: drafter and target at once, two processes"
    one_at_a_time: ClassVar[bool] = True

    draft_length: int | Auto = AUTO  # type: ignore[assignment]
    """Tokens of a window; "auto" measures how many are drafted during one forward pass of the target."""
    keep_ratio: float = 0.1
    pruning: str = option("uniform", choices=(*SPREADS, "visual_gain"))
    workers: str = option("processes", choices=WORKERS)
    """Where both work: "processes", two of them; "in_turn", one after the other in one, with the same result."""

    def _players(self, components: VideoComponents) -> OwnLoop:
        length = None if self.draft_length == AUTO else int(self.draft_length)
        return components.parallel_pair(self.drafter, self.workers, self._pruning(components.num_layers), length)
