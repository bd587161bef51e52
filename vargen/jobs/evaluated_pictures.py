"""The pictures of an evaluation, made in shares that any number of processes take, or given.

Does not belong here: measuring (`vargen.jobs.measuring`), and files (`vargen.runs.batches`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.images import ImageArray, ImageFolder, open_images, read_image, unreadable
from metrics.speculation import CallRecord
from vargen.base.errors import UserError
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.jobs.calls import record_of_picture, stream_pipeline
from vargen.jobs.cases import told_cases
from vargen.jobs.measuring import Evaluation
from vargen.methods.base import ImageMethodConfig
from vargen.models.description import ModelDescription
from vargen.pipelines.arguments import PromptWarning
from vargen.pipelines.loading import load_pipeline
from vargen.runs.batches import PictureBatches
from vargen.runs.identity import digest
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
        "device": device.split(":")[0],
        "continuous_batches": run.continuous_batches,
        **model.sampling(**options.sampling),
        "captions": told_cases(run.cases),
    }
    jobs = {}
    for label, method in methods.items():
        described = method.to_dict()
        # A newly trained drafter does not change the pictures of methods without one.
        weights = weights_fingerprint(model.folder, apart_from=None if "drafter" in described else "drafter")
        settings = {"method": described, "weights": weights, **shared}
        jobs[label] = PictureBatches(run.output / label, settings, len(run.cases), run.batch_size)
    for job in jobs.values():
        job.check_identity()
    processes.wait()

    batches = sum(len(job.tokens.batches) for job in jobs.values())
    with run.progress(batches, "batches of pictures") as shown, warnings.catch_warnings():
        warnings.simplefilter("ignore", PromptWarning)
        for label, job in jobs.items():
            _make_share(run, job, methods[label], pipeline, shared, shown, model.pixels_from_tokens)
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
        kind = "latent" if pixels_from_tokens else "pil"
        for picture in stream_pipeline(
            pipeline, method, chosen, seeds, run.batch_size, continuous, output_type=kind, **sampling
        ):
            tokens = torch.as_tensor(picture.image) if pixels_from_tokens else picture.tokens
            index, record = indices[picture.index], record_of_picture(picture, pipeline.device)
            image = None if pixels_from_tokens else picture.image
            yield index, _Made(index, tokens.cpu().numpy().astype(np.int32), record, image)

    def bind(made: Sequence[_Made]) -> tuple[dict[str, Any], dict[str, Any]]:
        for each in made:
            if each.image is not None:
                job.keep_picture(each.index, each.image)
        record = CallRecord.of_pictures([each.record for each in made], waiting=not continuous)
        return {"tokens": np.stack([each.tokens for each in made])}, record.to_dict()

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
    """One picture of a batch: its number, tokens int32 `[N]` or `[rows, columns]`, cost, and pixels where tokens alone
    do not make them."""

    index: int
    tokens: np.ndarray
    record: CallRecord
    image: Image | None


@dataclass(frozen=True)
class EvaluatedPictures:
    """Pictures for measuring.

    Args:
        read: gives them by number, uint8 `[3, H, W]`.
        folder: for what is measured, from a key that stands for how.
        side: pixels along a side of the first.
    """

    read: Callable[[Sequence[int]], list[Tensor]]
    folder: Callable[[str], Path]
    side: int


def made_pictures(job: PictureBatches, side: int) -> EvaluatedPictures:
    """Pictures that were made here."""
    return EvaluatedPictures(
        lambda indices: [read_image(job.image_path(index)) for index in indices],
        lambda key: job.path / "measured" / key,
        side,
    )


def given_pictures(images: str, output: Path, count: int) -> EvaluatedPictures:
    """Pictures that were made elsewhere. Raises UserError for another number than there are captions, or for unreadable
    files, all of them counted."""
    pictures = open_given(images)
    if isinstance(pictures, ImageFolder) and (broken := unreadable(pictures.files)):
        names = ", ".join(str(path) for path in broken[:3]) + (", ..." if len(broken) > 3 else "")
        raise UserError(f"given_images: {len(broken)} of {len(pictures)} files cannot be read: {names}")
    if len(pictures) != count:
        raise UserError(f"given_images: {images} holds {len(pictures):,} pictures, but there are {count:,} captions")
    content = pictures.digest()
    return EvaluatedPictures(
        pictures.read,
        lambda key: output / GIVEN / "measured" / digest([key, content]),
        int(pictures.read([0])[0].shape[-1]),
    )


def open_given(images: str) -> ImageFolder | ImageArray:
    """The pictures of a folder or an .npz file. Raises UserError."""
    try:
        return open_images(Path(images))
    except DataError as error:
        raise UserError(f"given_images: {error}") from error
