"""Options that all jobs share that draw pictures: which model, the seed, guidance, temperature, filters.

Belongs here: these options and their checks. Does not belong here: the options of one job, which stand beside it.
Nothing here imports torch: a command reads its options, and refuses them, before it needs any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vargen.base.bounds import MAX_SEED, check_number, check_sampling
from vargen.models.options import ModelOptions


@dataclass(frozen=True)
class SamplingOptions(ModelOptions):
    """Options of every job that draws pictures.

    Args:
        seed: seed of the first picture. Picture i has `seed + i`, with every method.
        guidance_scale: how closely to follow the prompt, at the cost of variety; 1 is off; null for the model's own.
        temperature: below 1 for more likely, above 1 for more varied pictures; 0 always takes the likeliest token; null
            for the model's own.
        top_k: choose among this number of likeliest tokens only; 0 for all; null for the model's own.
        top_p: choose among the likeliest tokens that together have this probability; 1 for all; null for the model's
            own.
    """

    seed: int = 0
    guidance_scale: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("seed", self.seed, 0, MAX_SEED)
        check_sampling(self.temperature, self.top_k, self.top_p, self.guidance_scale)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling arguments by the names of a pipeline's call; None stands for the model's own."""
        return {name: getattr(self, name) for name in ("guidance_scale", "temperature", "top_k", "top_p")}
