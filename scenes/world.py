"""This world as vargen asks for one: the object behind the entry point of `vargen.worlds`.

Belongs here: which function of this package answers which question of `vargen.video.jobs.cases.VideoWorld`. Does not
belong here: any answer. What needs torch is imported when it is called, because `vargen --help` imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scenes.shipped import MODEL, VIDEO_FRAMES, VIDEO_MODEL, VIDEO_SIDE, WEIGHTS

if TYPE_CHECKING:
    from diffusers.models.autoencoders.vq_model import VQModel
    from torch import Tensor

    from metrics.picture_readers import Detector
    from vargen.jobs.cases import BenchmarkCase, Judge, ReferencePictures
    from vargen.jobs.ranking import Ranker
    from vargen.video.jobs.cases import VideoCase, VideoWorld
    from vargen.video.training.video_questions import VideoSource


class SceneWorld:
    """Plays `vargen.base.world.ShippedModels` and `vargen.video.jobs.cases.VideoWorld`, which say what names mean."""

    weights = WEIGHTS
    model = MODEL
    video_model = VIDEO_MODEL
    clip = WEIGHTS / "clip"
    video_frames, video_side = VIDEO_FRAMES, VIDEO_SIDE

    def sample_cases(self, count: int, seed: int = 0, split: str = "heldout") -> list[BenchmarkCase]:
        from scenes.cases import scene_cases

        return scene_cases(count, seed, split)

    def claims(self, prompt: str) -> Any:
        from scenes.cases import claims_of

        return claims_of(prompt)

    def reference(self, count: int, side: int) -> ReferencePictures:
        from scenes.cases import RenderedReference

        return RenderedReference(count, side)

    def renders(self, cases: Sequence[BenchmarkCase], side: int) -> list[Tensor]:
        from scenes.cases import renders

        return renders(cases, side)

    def claims_within(self, case: BenchmarkCase, drawn: Tensor) -> Any:
        from scenes.cases import claims_within

        return claims_within(case, drawn)

    def judge(self) -> Judge:
        from scenes.judge.claim_judge import ClaimJudge

        return ClaimJudge()

    def detector(self) -> Detector:
        from scenes.judge.object_detector import SceneDetector

        return SceneDetector()

    def ranker(self, image_size: int) -> Ranker:
        from scenes.judge.claim_judge import JudgeRanker

        return JudgeRanker(image_size)

    def video_cases(
        self, count: int, split: str, num_frames: int, image_size: int, seed: int = 0
    ) -> Sequence[VideoCase]:
        from scenes.cases import scene_video_cases

        return scene_video_cases(count, split, num_frames, image_size, seed)

    def judge_answer(self, truth: Any, text: str) -> Mapping[str, float]:
        from scenes.judge.claim_judge import judge_answer

        return judge_answer(truth, text)

    def training_prompts(self, seed: int, count: int) -> list[str]:
        from scenes.cases import scene_prompts
        from scenes.seeds import DRAFTER_SEED

        return scene_prompts(DRAFTER_SEED + seed, count)

    def stored_pictures(self, folder: str, count: int, vqvae: VQModel) -> tuple[Sequence[str], Tensor]:
        from scenes.training.code_store import stored_pictures

        return stored_pictures(folder, count, vqvae)

    def training_videos(self, num_frames: int, image_size: int, device: Any) -> tuple[VideoSource, Mapping[str, int]]:
        from scenes.seeds import DRAFTER_SEED, HELDOUT_SEED
        from scenes.training.video_data import RenderedVideoSource

        source = RenderedVideoSource(image_size, num_frames, device)
        return source, {"train": DRAFTER_SEED, "heldout": HELDOUT_SEED}


SCENES: VideoWorld = SceneWorld()
