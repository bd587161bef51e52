"""What this world gives to jobs that know none: prompts, and what is true of them.

Belongs here: the sides of this world that the protocols of `vargen.jobs` and `vargen.training` ask for. Does not belong
here: judging (`vargen.world.judge`), files (`vargen.world.dataset`).
"""

from __future__ import annotations

from vargen.world.captions.captions import compose_caption
from vargen.world.scenes.scene import sample_scene


def scene_prompts(first_seed: int, count: int, split: str = "train") -> list[str]:
    """Captions of consecutive scenes of the project's own world."""
    return [compose_caption(sample_scene(seed, split), seed).text for seed in range(first_seed, first_seed + count)]
