"""Training of drafters for Video-LLMs on the target's own answers.

This file names the recipes for the entry points of `vargen.recipes`; it imports nothing that is slow.
"""

from vargen.base.world import Recipe

DRAFTER = Recipe(
    90,
    "a one-layer drafter for a Video-LLM: EAGLE, MSD, ViSpec, Sparrow or FLASH",
    "vargen.video.jobs.training",
    "VideoDrafterTrainingConfig",
    "train_drafter",
)
DRAFT_MODEL = Recipe(
    92,
    "a smaller Video-LLM that drafts, on the target's own answers",
    "vargen.video.jobs.training",
    "VideoDraftModelTrainingConfig",
    "train_draft_model",
)
