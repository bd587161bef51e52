"""The judge as jobs ask for it: claims of prompts counted on pictures, pictures ranked, answers about videos rated.

Belongs here: the sides of the judge that the protocols of `vargen.jobs` name. Does not belong here: reading a picture
(`network.py`), and what makes a claim right (`claim_checks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from scenes.captions.picture_caption_parser import CaptionError, parse_caption
from scenes.captions.story_captions import CLAIM_KINDS, written_accuracy
from scenes.judge.claim_checks import KINDS, Check, judge_claims
from scenes.judge.network import SceneJudge, load_judge, read_images
from scenes.rendering.story import Story
from vargen.base.errors import UserError
from vargen.jobs.cases import BenchmarkCase


class ClaimJudge:
    """Counts which claims of their prompts hold in pictures, as `vargen.jobs.cases.Judge` asks for.

    Args:
        reader: of the pictures; None for the shipped one, on the CPU.
    """

    kinds = KINDS

    def __init__(self, reader: SceneJudge | None = None) -> None:
        self.reader = load_judge(None, "cpu") if reader is None else reader

    @property
    def image_size(self) -> int:
        """Side of the pictures that the reader was trained on."""
        return self.reader.config.image_size

    def __call__(self, pictures: Tensor, cases: Sequence[BenchmarkCase]) -> Tensor:
        """Claims that hold and claims made, int64 `[B, kinds, 2]`, of pictures `[B, 3, H, W]` in [0, 1]."""
        counts = torch.zeros(len(cases), len(KINDS), 2, dtype=torch.long)
        for row, reading, case in zip(counts, read_images(self.reader, pictures), cases, strict=True):
            if case.claims is not None:
                verdict = judge_claims(reading, case.claims, case.object_count)
                for check in (*verdict.checks, Check("prompt", verdict.right)):
                    row[KINDS.index(check.kind)] += torch.tensor([check.right, True])
        return counts


class JudgeRanker:
    """Ranks pictures by the share of a prompt's claims that the recogniser finds in them.

    Where a prompt gives no count, as many objects as it names are expected. Among pictures with equal shares, the one
    with the clearest objects comes first: the score loses up to half a claim for the recogniser's remaining doubt about
    shape, colour, material, size and presence.

    Args:
        image_size: of the pictures to come.

    Raises:
        UserError: the pictures are smaller than those that the shipped recogniser reads.
    """

    def __init__(self, image_size: int) -> None:
        self.judge = load_judge(None, "cpu")
        if image_size < self.judge.config.image_size:
            raise UserError(
                f"ranker: the judge reads pictures of {self.judge.config.image_size} pixels or more, the model makes "
                f"{image_size}; use clip"
            )

    def check(self, prompts: Sequence[str]) -> None:
        for prompt in prompts:
            try:
                parse_caption(prompt)
            except CaptionError as error:
                raise UserError(f"ranker: the judge cannot tell what {prompt!r} claims ({error}); use clip") from error

    def score(self, images: Sequence[Image], prompts: Sequence[str]) -> list[float]:
        pixels = torch.stack([torch.from_numpy(np.array(image.convert("RGB"))) for image in images])
        readings = read_images(self.judge, pixels.permute(0, 3, 1, 2).float() / 255)
        scores = []
        for reading, prompt in zip(readings, prompts, strict=True):
            claims = parse_caption(prompt)
            verdict = judge_claims(reading, claims, object_count=len(claims.objects))
            found = [reading.objects[index] for index in verdict.match if index is not None]
            doubt = 1 - min((item.confidence * item.certainty for item in found), default=0.0)
            scores.append((sum(check.right for check in verdict.checks) - doubt / 2) / max(len(verdict.checks), 1))
        return scores


def judge_answer(video: Story, text: str) -> dict[str, float]:
    """How right a description of a video is, as `vargen.video.jobs.cases.VideoJudge` asks for."""
    return {kind: written_accuracy(video, text, kind) for kind in ("all", *CLAIM_KINDS)}
