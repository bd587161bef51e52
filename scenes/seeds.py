"""First seeds of scenes and videos by purpose, far apart, so that nothing is judged on what was trained on.

Training counts from a run's own small seed.
"""

RECONSTRUCTION_SEED = 500_000_000
"""Scenes that a judge in training reads off reconstructions."""
HELDOUT_SEED = 1_000_000_000
"""Scenes and videos for evaluation while training."""
VIDEO_SEED = HELDOUT_SEED + 100_000
"""Videos that methods are compared on, apart from those of evaluation while training."""
PROMPT_SEED = 2_000_000_000
"""Scenes behind prompts."""
REFERENCE_SEED = PROMPT_SEED + 500_000_000
"""Scenes that are rendered as a reference, away from those behind prompts."""
CAPTION_SEED = 3_000_000_000
"""Scenes that are only described."""
DRAFTER_SEED = 4_000_000_000
"""Captions and videos that a drafter learns from."""
STORE_SEED = 5_000_000_000
"""Scenes in a store of codes."""
