"""What jobs work on, and what they ask of a world that knows what prompts mean: cases, references, a judge.

Belongs here: data that passes between a job and such a world, and the protocols of the world's side. Does not belong
here: any world. `vargen.commands` hands this project's own to the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vargen.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vargen.models.description import ModelDescription
    from vargen.video.frames import VideoFrames


@dataclass(frozen=True)
class BenchmarkCase:
    """One picture to make.

    Args:
        prompt: for a text-conditional model.
        class_label: for a class-conditional one.
        claims: what the prompt says, in whatever form the judge takes it; None where nobody can say.
        object_count: how many objects the picture ought to show though the prompt does not say so, for the judge.
    """

    prompt: str | None = None
    class_label: int | None = None
    claims: Any = None
    object_count: int | None = None


def told_cases(cases: Sequence[BenchmarkCase]) -> list[str | int | None]:
    """What each picture is made from, as identities hold it."""
    return [case.prompt if case.class_label is None else case.class_label for case in cases]


@dataclass(frozen=True)
class VideoCase:
    """One video to describe.

    Args:
        frames: to look at.
        truth: to judge by, in whatever form the judge takes it; None where nobody can.
        question: asked about it; None: what is asked about all.
    """

    frames: VideoFrames
    truth: Any
    question: str | None = None

    def forget(self) -> None:
        """Its turn is over. Nothing to do: the frames were there before."""


def prompt_cases(
    model: ModelDescription,
    prompts_file: str | None,
    read: Callable[[str], list[BenchmarkCase]],
    compose: Callable[[], list[BenchmarkCase]],
) -> list[BenchmarkCase]:
    """What a comparison draws: the prompts of a file, or composed ones for a model of the world they speak of.

    Args:
        model: which model draws.
        prompts_file: of the user's; None: there is none.
        read: gives the prompts of a file.
        compose: gives prompts of a world.

    Raises:
        UserError: no file, and the model is of another world.
    """
    if prompts_file is not None:
        return read(prompts_file)
    if not model.draws_scenes:
        raise UserError(
            f"prompts_file must name prompts: composed ones speak of the scenes that vargen's own models draw, and "
            f"this one is of the family {model.family}"
        )
    return compose()


def fitting_judge(model: ModelDescription, judge: Callable[[], Judge]) -> Judge | None:
    """What reads the pictures of a model; None for a model of another world, or of pictures too small to read."""
    if not model.draws_scenes:
        return None
    reader = judge()
    return reader if can_read(reader, model.image_size) else None


def can_read(judge: Judge, image_size: int) -> bool:
    """Whether a judge reads pictures of this side: its own, or a larger one, which it resizes to its own."""
    return image_size >= judge.image_size


class Judge(Protocol):
    """Says which claims of their prompts pictures bear out.

    Attributes:
        kinds: what is judged. "prompt" is right where everything that a prompt says is; "object_count", which not every
            judge has, is what a prompt leaves open. All others are what prompts claim.
        image_size: side of the pictures it was made for, in pixels. Larger ones are resized to it.
    """

    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def image_size(self) -> int: ...

    def __call__(self, pictures: Tensor, cases: Sequence[BenchmarkCase]) -> Tensor:
        """Claims borne out and made, int64 `[B, kinds, 2]`, of pictures `[B, 3, H, W]` in [0, 1].

        All are 0 for a case without claims.
        """
        ...


VideoJudge = Callable[[Any, str], Mapping[str, float]]
"""How right an answer is about a truth, 0 to 1: under "all" as a whole, and by kind."""


class ReferencePictures(Protocol):
    """Pictures that others are compared with, read when they are needed."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        """Pictures by number, uint8 `[3, H, W]`."""
        ...

    def digest(self) -> str:
        """The same pictures, the same digest."""
        ...


@dataclass(frozen=True)
class World:
    """What an evaluation is given by whoever knows what prompts mean.

    Args:
        sample_cases: so many prompts and what they claim, by count and seed.
        read_cases: the prompts of a file, with what they claim where that can be told.
        reference: so many pictures of so many pixels a side.
        judge: reads pictures of this world; called where a protocol asks for it.
    """

    sample_cases: Callable[[int, int], list[BenchmarkCase]]
    read_cases: Callable[[str], list[BenchmarkCase]]
    reference: Callable[[int, int], ReferencePictures]
    judge: Callable[[], Judge]
