"""The pictures of an evaluation, made in shares that any number of processes take, or given; and its reference.

Belongs here: making tokens and pictures batch by batch, and measuring them and the reference. Does not belong here: the
order of an evaluation (`vargen.jobs.evaluation`), one batch's features (`vargen.jobs.measuring`), files
(`vargen.runs.batches`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.frechet import GaussianStatistics
from metrics.images import ImageArray, ImageFolder, open_images, read_image, unreadable
from metrics.protocol import Protocol
from metrics.quality import Reference
from metrics.speculation import CallRecord
from vargen.base.errors import UserError
from vargen.jobs.calls import call_pipeline, record_of_picture, stream_pipeline
from vargen.jobs.cases import BenchmarkCase, ReferencePictures, told_cases
from vargen.jobs.measuring import (
    MEASURE_BATCH,
    Networks,
    gather,
    measure,
    reference_features,
    save_statistics,
    stored_statistics,
)
from vargen.jobs.sampling import SamplingOptions
from vargen.methods.base import ImageMethodConfig
from vargen.models.description import ModelDescription
from vargen.models.model_folder import weights_fingerprint
from vargen.pipelines.arguments import PromptWarning
from vargen.pipelines.loading import load_pipeline
from vargen.runs.batches import BatchStore, PictureBatches, Share
from vargen.runs.identity import digest
from vargen.runs.processes import Processes
from vargen.runs.progress import Progress, progress

if TYPE_CHECKING:
    from vargen.pipelines.loading import ImagePipeline

GIVEN = "given"
"""The label of pictures that were not made here."""


@dataclass(frozen=True)
class Evaluation:
    """What every step of an evaluation needs."""

    options: SamplingOptions
    output: Path
    batch_size: int
    continuous_batches: bool
    protocol: Protocol
    cases: Sequence[BenchmarkCase]
    networks: Networks
    processes: Processes
    quiet: bool

    @property
    def share(self) -> Share:
        return Share(self.processes.rank, self.processes.count)

    def progress(self, batches: int, unit: str) -> AbstractContextManager[Progress]:
        """Counts this process's share of this number of batches."""
        return progress(len(self.share.of(range(batches))), unit, self.quiet)


def make_pictures(
    run: Evaluation, methods: Mapping[str, ImageMethodConfig], model: ModelDescription
) -> tuple[dict[str, PictureBatches], int]:
    """Make the missing pictures of every method. Returns the folders by label, and the side of a picture."""
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
    return jobs, model.image_size


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

    def make(indices: range) -> tuple[dict[str, Any], dict[str, Any]]:
        chosen, seed = [run.cases[index] for index in indices], shared["seed"] + indices[0]
        kind = "latent" if pixels_from_tokens else "pil"
        output, record = call_pipeline(pipeline, method, chosen, seed, output_type=kind, **sampling)
        tokens = output.tokens
        if pixels_from_tokens:
            tokens = torch.as_tensor(output.images)  # codes [B, rows, columns]
        else:
            assert isinstance(output.images, list)
            job.keep_pictures(indices, output.images)
        return {"tokens": tokens.cpu().numpy().astype(np.int32)}, record.to_dict()

    def decode(tokens: Any) -> Any:
        return pipeline.decode_tokens(torch.from_numpy(tokens).long()[None].to(pipeline.device))[0]

    def make_all(indices: Sequence[int]) -> Iterator[tuple[int, tuple[np.ndarray, CallRecord]]]:
        chosen, seeds = [run.cases[index] for index in indices], [shared["seed"] + index for index in indices]
        size = run.batch_size
        for picture in stream_pipeline(pipeline, method, chosen, seeds, size, output_type="latent", **sampling):
            tokens = torch.as_tensor(picture.image).cpu().numpy().astype(np.int32)
            yield indices[picture.index], (tokens, record_of_picture(picture, pipeline.device))

    def bind(pictures: Sequence[tuple[np.ndarray, CallRecord]]) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens, records = zip(*pictures, strict=True)
        return {"tokens": np.stack(tokens)}, CallRecord.of_pictures(records).to_dict()

    own = run.share.of(range(len(job.tokens.batches)))
    if not pixels_from_tokens:
        job.forget_without_pictures(own)
        job.tokens.work(run.share, make, shown)
        return
    if run.continuous_batches and hasattr(pipeline, "stream"):
        job.tokens.collect(run.share, make_all, bind, shown)
    else:
        job.tokens.work(run.share, make, shown)
    for batch in own:
        job.save_pictures(batch, decode)


class MadePictures:
    """Pictures that were made here, for measuring."""

    def __init__(self, job: PictureBatches) -> None:
        self.job = job

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        return [read_image(self.job.image_path(index)) for index in indices]

    def store(self, key: str, batch_size: int) -> BatchStore:
        return BatchStore(self.job.path / "measured" / key, self.job.count, batch_size)


class GivenPictures:
    """Pictures that were made elsewhere, for measuring. Raises UserError for another number than there are captions, or
    for unreadable files, all of them counted."""

    def __init__(self, images: str, output: Path, count: int) -> None:
        self.pictures = open_given(images)
        self.output = output
        if isinstance(self.pictures, ImageFolder) and (broken := unreadable(self.pictures.files)):
            names = ", ".join(str(path) for path in broken[:3]) + (", ..." if len(broken) > 3 else "")
            raise UserError(f"given_images: {len(broken)} of {len(self.pictures)} files cannot be read: {names}")
        if len(self.pictures) != count:
            raise UserError(
                f"given_images: {images} holds {len(self.pictures):,} pictures, but there are {count:,} captions"
            )
        self.digest = self.pictures.digest()
        self.side = int(self.pictures.read([0])[0].shape[-1])

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        return self.pictures.read(indices)

    def store(self, key: str, batch_size: int) -> BatchStore:
        return BatchStore(self.output / GIVEN / "measured" / digest([key, self.digest]), len(self.pictures), batch_size)


def open_given(images: str) -> ImageFolder | ImageArray:
    """The pictures of a folder or an .npz file. Raises UserError."""
    try:
        return open_images(Path(images))
    except DataError as error:
        raise UserError(f"given_images: {error}") from error


def measure_pictures(run: Evaluation, label: str, source: MadePictures | GivenPictures) -> dict[str, Tensor]:
    """All features of one method's pictures, in their order."""
    protocol, networks = run.protocol, run.networks
    how = [protocol.to_dict(), networks.identity(), told_cases(run.cases), networks.judge is not None]
    store = source.store(digest(how), MEASURE_BATCH)

    def make(indices: range) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            return measure(source.read(indices), [run.cases[index] for index in indices], protocol, networks), {}
        except DataError as error:
            raise UserError(f"{label}: {error}") from error

    with run.progress(len(store.batches), f"batches of {label} measured") as shown:
        store.work(run.share, make, shown)
    run.processes.wait()
    return gather(store, run.share, len(run.cases), run.processes.device)


def stored_reference(run: Evaluation, path: Path) -> tuple[Reference, list[str]]:
    """The reference of a file of statistics, and warnings about it."""
    statistics, notes = stored_statistics(path, run.protocol, run.networks)
    if run.protocol.manifold_extractor is not None:
        notes.append("reference: statistics hold no features; precision and recall are left out")
    return Reference(statistics, None), notes


def measured_reference(run: Evaluation, pictures: ReferencePictures) -> Reference:
    """The reference of pictures. Its statistics are written beside the scores."""
    protocol, networks, processes = run.protocol, run.networks, run.processes
    with run.progress(-(-len(pictures) // MEASURE_BATCH), "batches of the reference") as shown:
        features = reference_features(pictures, protocol, networks, run.share, processes.wait, processes.device, shown)
    try:
        statistics = GaussianStatistics.of(features[protocol.extractor])
    except DataError as error:
        raise UserError(f"reference: {error}") from error
    if processes.is_main:
        save_statistics(run.output / "reference.npz", statistics, protocol, networks)
    return Reference(statistics, None if protocol.manifold_extractor is None else features[protocol.manifold_extractor])
