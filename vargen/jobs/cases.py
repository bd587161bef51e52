"""Cases of jobs, and the protocol of a world that knows the meaning of prompts: cases, references, a judge.

Belongs here: data that passes between a job and a world, and the protocols of the world's side. Does not belong here:
any world, and finding the installed one (`vargen.base.world`); `vargen.commands` hands it to the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from metrics.errors import DataError
from metrics.prompt_formats import FORMATS, BenchmarkPrompt
from vargen.base.errors import UserError
from vargen.base.prompts import gather_prompts, lower_keys, prompt_of, read_records
from vargen.base.world import ShippedModels, missing_world

if TYPE_CHECKING:
    from diffusers.models.autoencoders.vq_model import VQModel
    from torch import Tensor

    from metrics.picture_readers import Detector
    from vargen.jobs.ranking import Ranker
    from vargen.models.description import ModelDescription


@dataclass(frozen=True)
class BenchmarkCase:
    """One picture to make.

    Args:
        prompt: for a text-conditional model.
        class_label: for a class-conditional one.
        claims: of the prompt, in the form that the judge takes; None where it cannot be judged.
        object_count: how many objects the picture ought to show though the prompt does not say so, for the judge.
        asked: the prompt as a public benchmark has it; None for any other.
        scene: what a world composed the prompt of, for its pictures; None where it did not.
    """

    prompt: str | None = None
    class_label: int | None = None
    claims: Any = None
    object_count: int | None = None
    asked: BenchmarkPrompt | None = None
    scene: Any = None


SPLITS = ("heldout", "all")
"""Prompts or videos that a comparison draws from. Training never shows those of "heldout"."""


def told_cases(cases: Sequence[BenchmarkCase]) -> list[str | int | None]:
    """The prompt or class of each picture, as identities hold it."""
    return [case.prompt if case.class_label is None else case.class_label for case in cases]


def class_labels_of(model: ModelDescription, given: list[int]) -> list[int]:
    """The classes to draw; none with a text-conditional model. Raises UserError for missing or impossible ones."""
    if model.num_classes is None:
        if given:
            raise UserError("class_labels cannot be used: the model is text-conditional; give prompts")
    elif not given:
        raise UserError("class_labels must be given: the model is class-conditional")
    elif wrong := [label for label in given if not 0 <= label < model.num_classes]:
        raise UserError(f"class_labels must lie between 0 and {model.num_classes - 1}, got {wrong[0]}")
    return given


def written_cases(prompts: Sequence[str], world: World | None) -> list[BenchmarkCase]:
    """Prompts that users wrote, with their claims where the world can read them."""
    return [BenchmarkCase(prompt, claims=None if world is None else world.claims(prompt)) for prompt in prompts]


def check_format(name: str | None, source: str | None) -> None:
    """Raises UserError for a format without a source; None is no format."""
    if name is not None and source is None:
        raise UserError("prompts_format needs prompts_file, the benchmark's file or folder; name it")


def read_benchmark(source: str, name: str) -> list[BenchmarkPrompt]:
    """The prompts of a public benchmark's file or folder, in their order.

    Args:
        source: as for `vargen.base.prompts.read_prompts`.
        name: of `FORMATS`.

    Raises:
        UserError: a source of another form; the row is named.
    """
    rows = ((where, {**lower_keys(row), "prompt": prompt_of(row, where)}) for where, row in read_records(source))
    try:
        prompts = FORMATS[name](rows)
    except DataError as error:
        raise UserError(str(error)) from error
    if not prompts:
        raise UserError(f"prompts_file: {source} holds no prompt")
    return prompts


def asked_cases(prompts: Sequence[BenchmarkPrompt], world: World | None) -> list[BenchmarkCase]:
    """Prompts of a public benchmark, likewise."""
    cases = written_cases([each.prompt for each in prompts], world)
    return [replace(case, asked=prompt) for case, prompt in zip(cases, prompts, strict=True)]


def prompt_cases(
    model: ModelDescription,
    world: World | None,
    prompts_file: str | None,
    count: int,
    seed: int,
    split: str = "heldout",
) -> list[BenchmarkCase]:
    """The cases of a comparison: the prompts of a file, or prompts that the world composes for a model that draws it.

    Args:
        model: which model draws.
        world: composes prompts, and reads those of a file.
        prompts_file: named by the user; None: there is none.
        count, seed, split: which prompts are composed, as for `World.sample_cases`.

    Raises:
        UserError: the file cannot be read; or there is none, and no world or one that the model does not draw.
    """
    if prompts_file is not None:
        return written_cases(gather_prompts([], prompts_file), world)
    if not model.draws_scenes:
        raise UserError(
            f"prompts_file must name prompts: composed ones describe the scenes that vargen's own models draw, and "
            f"this one is of the family {model.family}"
        )
    if world is None:
        raise missing_world("prompts_file", "name a file of prompts")
    return world.sample_cases(count, seed, split)


def fitting_judge(model: ModelDescription, judge: Callable[[], Judge]) -> Judge | None:
    """The judge of a model's pictures; None for a model of another world, or of pictures too small to read."""
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


class ReferencePictures(Protocol):
    """Pictures that others are compared with, read when they are needed."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        """Pictures by number, uint8 `[3, H, W]`."""

    def digest(self) -> str:
        """The same pictures, the same digest."""


class World(ShippedModels, Protocol):
    """What jobs and trainers ask of the package that knows what prompts mean; of videos, `vargen.video.jobs.cases`."""

    def sample_cases(self, count: int, seed: int = 0, split: str = "heldout") -> list[BenchmarkCase]:
        """So many prompts with their claims; of "heldout" things that training never showed, or of "all"."""

    def claims(self, prompt: str) -> Any:
        """The claims of a prompt, in the form that the judge takes; None where the prompt cannot be judged."""

    def reference(self, count: int, side: int) -> ReferencePictures:
        """So many pictures of so many pixels a side."""

    def renders(self, cases: Sequence[BenchmarkCase], side: int) -> list[Tensor]:
        """Pictures uint8 `[3, side, side]` of the scenes that composed prompts are of."""

    def claims_within(self, case: BenchmarkCase, drawn: Tensor) -> Any:
        """What a composed prompt claims about the part bool `[H, W]` of its scene's picture."""

    def judge(self) -> Judge:
        """Reads pictures of this world."""

    def detector(self) -> Detector:
        """Finds the things of this world in pictures, by the judge's eyes, for benchmarks that ask for objects."""

    def ranker(self, image_size: int) -> Ranker:
        """Ranks candidates of so many pixels a side. Raises UserError for a size that it cannot read."""

    def training_prompts(self, seed: int, count: int) -> list[str]:
        """So many prompts that a drafter learns from."""

    def stored_pictures(self, folder: str, count: int, vqvae: VQModel) -> tuple[Sequence[str], Tensor]:
        """Captions and codes int64 `[K, N]` of at most so many pictures of a store. Raises UserError for another."""
