"""The best of several pictures of one prompt.

Belongs here: scores, and which picture has the highest. Does not belong here: making candidates
(`vargen.jobs.generation`), and judging a method: a score flatters pictures that the same score has chosen.

Ramesh et al. 2021 ("Zero-shot text-to-image generation", arXiv 2102.12092) draw 512 candidates a caption and keep the
one with the highest CLIP score. Seeds of candidates are far apart, so that each can be drawn again alone by its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vargen.base.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

RANKERS = ("judge", "clip", "likelihood")
_STRIDE = 2_654_435_761  # odd, near 2^32 / golden ratio; torch's CPU generator reads the lower 32 bits of a seed
_SEEDS = 2**63


def candidate_seed(seed: int, candidate: int) -> int:
    """The seed of a candidate. Candidate 0 has the picture's own."""
    return (seed + candidate * _STRIDE) % _SEEDS


class Ranker(Protocol):
    """Scores pictures against prompts; higher is better."""

    def check(self, prompts: Sequence[str]) -> None:
        """Raises UserError for a prompt that cannot be scored."""

    def score(self, images: Sequence[Image], prompts: Sequence[str]) -> list[float]:
        """One score for each picture."""


class ClipScorer:
    """CLIP score of picture and prompt, 100 times the cosine. It is a `Ranker`, and a measure in comparisons.

    Args:
        folder: a transformers `CLIPModel` with tokenizer and image processor.

    Raises:
        UserError: no CLIP there.
    """

    def __init__(self, folder: Path) -> None:
        from metrics.errors import DataError
        from metrics.extractors import CLIPFeatures
        from vargen.checkpoints.model_folder import check_stored

        check_stored(folder, "clip")
        try:
            self.features = CLIPFeatures(folder)
        except DataError as error:
            raise UserError(f"clip: {error}") from error

    def check(self, prompts: Sequence[str]) -> None:
        """Accepts every prompt."""

    @property
    def identity(self) -> str:
        """Digest of the network."""
        return self.features.identity

    def score(self, images: Sequence[Image], prompts: Sequence[str]) -> list[float]:
        import numpy as np
        import torch

        pixels = [torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) for image in images]
        return self.score_pixels(torch.stack(pixels), prompts)

    def score_pixels(self, pixels: Tensor, prompts: Sequence[str]) -> list[float]:
        """One score for each picture of uint8 `[B, 3, H, W]`. Raises UserError for a CLIP whose features are no
        numbers."""
        from metrics.clip_score import clip_scores
        from metrics.errors import DataError

        try:
            return clip_scores(self.features(pixels), self.features.encode_text(list(prompts))).tolist()
        except DataError as error:
            raise UserError(f"clip: {error}") from error


def best(scores: Sequence[float]) -> int:
    """The number of the picture with the highest score, the first of equal ones."""
    return max(range(len(scores)), key=lambda number: (scores[number], -number))
