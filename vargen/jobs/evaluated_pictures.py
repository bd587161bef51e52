"""The pictures of an evaluation, made in shares that any number of processes take, or given.

Does not belong here: measuring (`vargen.jobs.measuring`), and files (`vargen.runs.batches`).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.images import IMAGE_SUFFIXES, ImageArray, ImageFolder, open_images, read_image, unreadable
from metrics.speculation import CallRecord
from vargen.base.errors import UserError
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.jobs.calls import condition_of, record_of_picture, stream_pipeline
from vargen.jobs.cases import told_cases
from vargen.jobs.measuring import Evaluation, Read
from vargen.methods.base import ImageMethodConfig
from vargen.models.description import ModelDescription
from vargen.pipelines.arguments import PromptWarning, warn_of_prompts
from vargen.pipelines.base import beside
from vargen.pipelines.loading import load_pipeline
from vargen.runs.batches import PictureBatches
from vargen.runs.identity import digest, kind_of_bits
from vargen.runs.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

    from vargen.pipelines.loading import ImagePipeline

GIVEN = "given"
"""The label of pictures that were not made here."""


def make_pictures(
    run: Evaluation, methods: Mapping[str, ImageMethodConfig], model: ModelDescription
) -> dict[str, PictureBatches]:
    """Make the missing pictures of every method. Returns the folders by label."""
    options, processes = run.options, run.processes
    place = options.device if options.device_map is not None else str(processes.device)
    pipeline, device, dtype = load_pipeline(model, replace(options, device=place), run.quiet)
    shared = {
        **options.identity,
        "seed": options.seed,
        "dtype": dtype,
        **kind_of_bits(device, dtype, bool(options.quantization or options.draft_quantization)),
        "device": device.split(":")[0],
        "continuous_batches": run.continuous_batches,
        **model.sampling(**options.sampling),
        "captions": told_cases(run.cases),
        **({} if run.edits is None else {"edit": run.edits.identity}),
    }
    jobs = {}
    for label, method in methods.items():
        described = method.to_dict()
        # A newly trained drafter does not change the pictures of methods without one.
        weights = weights_fingerprint(model.folder, apart_from=None if "drafter" in described else "drafter")
        settings = {"method": described, "weights": weights, **shared}
        jobs[label] = PictureBatches(run.output / label, settings, len(run.cases), run.batch_size)
        jobs[label].check_identity()
    processes.wait()

    warn_of_prompts(pipeline, [*(case.prompt for case in run.cases), options.negative_prompt] * processes.is_main)
    batches = sum(len(job.tokens.batches) for job in jobs.values())
    with run.progress(batches, "batches of pictures") as shown, warnings.catch_warnings():
        warnings.simplefilter("ignore", PromptWarning)
        pasted = run.edits is not None and run.edits.paste_back
        for label, job in jobs.items():
            _make_share(run, job, methods[label], pipeline, shared, shown, model.pixels_from_tokens and not pasted)
    processes.wait()
    return jobs


def _make_share(
    run: Evaluation,
    job: PictureBatches,
    method: ImageMethodConfig,
    pipeline: ImagePipeline,
    shared: Mapping[str, Any],
    shown: Progress,
    pixels_from_tokens: bool,
) -> None:
    """Make this process's batches of one method: tokens, then pictures, or both at once where tokens make no pixels."""
    sampling = {name: shared[name] for name in run.options.sampling}
    continuous = run.continuous_batches and hasattr(pipeline, "stream")

    def make(indices: Sequence[int]) -> Iterator[tuple[int, _Made]]:
        chosen, seeds = [run.cases[index] for index in indices], [shared["seed"] + index for index in indices]
        about = {} if run.edits is None else run.edits.arguments(indices)
        kind = "latent" if pixels_from_tokens else "pil"
        for picture in stream_pipeline(
            pipeline, method, chosen, seeds, run.batch_size, continuous, output_type=kind, **sampling, **about
        ):
            tokens = torch.as_tensor(picture.image) if pixels_from_tokens else picture.tokens
            index, record = indices[picture.index], record_of_picture(picture, pipeline.device)
            image = None if pixels_from_tokens else picture.image
            drawn = None if run.edits is None else picture.tokens
            yield index, _Made(index, tokens.cpu().numpy().astype(np.int32), record, image, drawn)

    def bind(made: Sequence[_Made]) -> tuple[dict[str, Any], dict[str, Any]]:
        for each in made:
            if each.image is not None:
                job.keep_picture(each.index, each.image)
        record = CallRecord.of_pictures([each.record for each in made], waiting=not continuous)
        arrays = {"tokens": np.stack([each.tokens for each in made])}
        if run.edits is not None:
            asked = condition_of([run.cases[each.index] for each in made])
            drawn = torch.stack([each.drawn for each in made if each.drawn is not None])
            likelihoods = beside(pipeline).log_likelihoods(drawn, method=method, **asked, **sampling)
            arrays["log_likelihood"] = np.array(likelihoods, np.float32)
        return arrays, record.to_dict()

    own = run.share.of(range(len(job.tokens.batches)))
    if not pixels_from_tokens:
        job.forget_without_pictures(own)
    job.tokens.collect(run.share, make, bind, shown)
    if pixels_from_tokens:
        for batch in own:
            job.save_pictures(
                batch,
                lambda tokens: pipeline.decode_tokens(torch.from_numpy(tokens).long()[None].to(pipeline.device))[0],
            )


@dataclass(frozen=True)
class _Made:
    """One picture of a batch: its number, tokens int32 `[N]` or `[rows, columns]`, cost, pixels where tokens alone do
    not make them, and for an edit the tokens int64 `[N]` as they were drawn."""

    index: int
    tokens: np.ndarray
    record: CallRecord
    image: Image | None
    drawn: Tensor | None = None


@dataclass(frozen=True)
class EvaluatedPictures:
    """Pictures for measuring.

    Args:
        read: gives them by number, uint8 `[3, H, W]`.
        folder: for what is measured, from a key that stands for how.
        side: pixels along a side of the first.
    """

    read: Read
    folder: Callable[[str], Path]
    side: int


def made_pictures(job: PictureBatches, side: int) -> EvaluatedPictures:
    """Pictures that were made here."""
    return EvaluatedPictures(
        lambda indices: [read_image(job.image_path(index)) for index in indices],
        lambda key: job.path / "measured" / key,
        side,
    )


def given_pictures(
    images: str, output: Path, count: int, captions: CaptionNames | None = None, argument: str = "given_images"
) -> EvaluatedPictures:
    """Pictures that were made elsewhere.

    Args:
        images: a folder, or an .npz file, whose pictures have the order of the captions.
        output: of the evaluation.
        count: of the captions.
        captions: what a picture of a folder is named by; None: no caption belongs to a picture.
        argument: that named them, for errors.

    Raises:
        UserError: another number than there are captions, a picture or a caption without its partner, or unreadable
            files, all of them counted.
    """
    pictures = open_given(images, argument)
    if isinstance(pictures, ImageFolder) and (broken := unreadable(pictures.files)):
        names = ", ".join(str(path) for path in broken[:3]) + (", ..." if len(broken) > 3 else "")
        raise UserError(f"{argument}: {len(broken)} of {len(pictures)} files cannot be read: {names}")
    if len(pictures) != count:
        raise UserError(f"{argument}: {images} holds {len(pictures):,} pictures, but there are {count:,} captions")
    if isinstance(pictures, ImageFolder) and captions is not None:
        pictures.files = paired(pictures.files, pictures.path, captions, argument)
    content = pictures.digest()
    return EvaluatedPictures(
        pictures.read,
        lambda key: output / GIVEN / "measured" / digest([key, content]),
        int(pictures.read([0])[0].shape[-1]),
    )


@dataclass(frozen=True)
class CaptionNames:
    """What captions are called.

    Args:
        names: of each, in their order; None: they are known by their numbers alone.
        are_files: whether names are of files, which pictures must have. Pictures of others may be numbered instead.
    """

    names: Sequence[str] | None = None
    are_files: bool = False


def paired(files: Sequence[Path], folder: Path, captions: CaptionNames, argument: str = "given_images") -> list[Path]:
    """As many pictures as captions in the order of these: by name, else by number, from 0 or 1 on.

    A number at the end of a name stands for it, as COCO's do. Where folders are numbered, too, one is a caption, and
    the files in it are its pictures, as GenEval has them. Raises UserError that names what has no partner.
    """
    wanted = [_name(name) for name in captions.names or ()]
    for name_of in (lambda file: _name(file.name), lambda file: (_numbers(Path(file.stem)) or (file.stem,))[-1]):
        found = {name_of(file): file for file in files}
        if wanted and len(found) == len(files) and found.keys() == {*wanted}:
            return [found[name] for name in wanted]
    numbers = {file: _numbers(file.relative_to(folder).with_suffix("")) for file in files}
    if not captions.are_files and _count_up([*numbers.values()]):
        return sorted(files, key=lambda file: numbers[file])
    told = [*(wanted or range(len(files)))]
    own = {_name(file.name) for file in files}
    lonely = (
        ("captions without a picture", [each for each in told if each not in own]),
        ("pictures without a caption", [file.name for file in files if _name(file.name) not in {*told}]),
    )
    listed = [
        f"{kind}: {', '.join(str(each) for each in some[:3])}{', ...' if len(some) > 3 else ''}"
        for kind, some in lonely
        if some
    ]
    raise UserError(
        f"{argument}: pictures and captions are paired by name; {'; '.join(listed) or 'some names are there twice'}; "
        f"name pictures as their captions are called{'' if captions.are_files else ', or number them from 0 on'}"
    )


def _name(name: str) -> str | int:
    """What must be equal of two names: they have no ending of a file, and a number is one, however it is written."""
    stem = Path(name).stem if Path(name).suffix.lower() in (*IMAGE_SUFFIXES, ".txt") else name
    return int(stem) if stem.isascii() and stem.isdecimal() else stem


def _numbers(path: Path) -> tuple[int, ...]:
    """The last number in each part of a path that has one."""
    return tuple(int(found[-1]) for part in path.parts if (found := re.findall("[0-9]+", part)))


def _count_up(numbers: Sequence[tuple[int, ...]]) -> bool:
    """Whether numbers run from 0 or 1 on without a gap: of files, or of folders with as many files in each. A number
    that all have, such as that of a run, says nothing."""
    if len({len(each) for each in numbers}) != 1 or len({*numbers}) != len(numbers):
        return False
    columns = [column for column in zip(*numbers, strict=True) if len({*column}) > 1]
    ranges = [range(min(column), max(column) + 1) for column in columns]
    is_whole = all(run.start in (0, 1) and {*column} == {*run} for run, column in zip(ranges, columns, strict=True))
    return 1 <= len(columns) <= 2 and is_whole and math.prod(map(len, ranges)) == len(numbers)


def open_given(images: str, argument: str = "given_images") -> ImageFolder | ImageArray:
    """The pictures of a folder or an .npz file. Raises UserError."""
    try:
        return open_images(Path(images))
    except DataError as error:
        raise UserError(f"{argument}: {error}") from error
