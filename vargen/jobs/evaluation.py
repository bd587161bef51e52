"""The run behind `vargen evaluate`: make, measure, score, each in shares that any number of processes take.

The order of work: refuse what can be refused; make the pictures of every method; measure them and the reference; score.
Every step is cut into batches that one process makes whole (`vargen.runs.batches`), so that a run can be killed at any
moment and begun again, under any number of processes, and ends in the same scores.

Belongs here: the order of work and what a run's folder holds. Does not belong here: options and reports
(`vargen.commands.evaluate`), measuring and the reference (`vargen.jobs.quality`), files (`vargen.runs.batches`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.frechet import GaussianStatistics
from metrics.images import ImageArray, ImageFolder, open_images, read_image, unreadable
from metrics.protocol import Protocol
from metrics.provenance import provenance
from metrics.quality import Reference
from metrics.speculation import CallRecord, summarise
from vargen.base.errors import UserError
from vargen.base.prompts import gather_prompts, read_column
from vargen.base.resources import shipped_clip
from vargen.base.world import missing_world
from vargen.jobs.benchmark import call_pipeline, record_of_picture, stream_pipeline
from vargen.jobs.cases import BenchmarkCase, ReferencePictures, World, told_cases, written_cases
from vargen.jobs.options import EvaluateConfig
from vargen.jobs.quality import (
    MEASURE_BATCH,
    Networks,
    against_plain,
    gather,
    load_networks,
    measure,
    open_reference,
    reference_features,
    save_statistics,
    score,
    stored_statistics,
)
from vargen.methods.base import MethodConfig
from vargen.models.description import ModelDescription
from vargen.models.model_folder import weights_fingerprint
from vargen.pipelines.common import PromptWarning
from vargen.pipelines.loading import load_pipeline
from vargen.runs.batches import BatchStore, PictureBatches, Share
from vargen.runs.files import own_folder
from vargen.runs.identity import digest
from vargen.runs.processes import Processes
from vargen.runs.progress import Progress, progress

if TYPE_CHECKING:
    from vargen.pipelines.common import AutoregressivePipelineOutput
    from vargen.pipelines.loading import ImagePipeline

GIVEN = "given"
"""The label of pictures that were not made here."""


@dataclass(frozen=True)
class _Run:
    """What every step of one evaluation needs."""

    config: EvaluateConfig
    protocol: Protocol
    cases: Sequence[BenchmarkCase]
    networks: Networks
    processes: Processes
    quiet: bool

    @property
    def share(self) -> Share:
        return Share(self.processes.rank, self.processes.count)

    def progress(self, batches: int, unit: str) -> AbstractContextManager[Progress]:
        """Counts this process's share of so many batches."""
        return progress(len(self.share.of(range(batches))), unit, self.quiet)


def evaluate_quality(
    config: EvaluateConfig,
    protocol: Protocol,
    model: ModelDescription | None,
    methods: Mapping[str, MethodConfig],
    world: World | None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """One row a method, on the main process; none on the others.

    Args:
        config: what to evaluate, and where.
        protocol: how.
        model: what draws, of `vargen.models.description.open_model(config)`; None: given pictures.
        methods: by label; of given pictures there are none.
        world: what composed captions, rendered references and the judge come from; None where none is installed.
        quiet: show no progress.

    Raises:
        UserError: data that does not fit the protocol, a network that is missing, a folder of other pictures.
    """
    inside = [f"{escape(label)}{rest}" for label in (methods or (GIVEN,)) for rest in PictureBatches.INSIDE]
    processes = Processes.start(config.device)
    try:
        with own_folder(config.output, inside) if processes.is_main else nullcontext():
            rows = _evaluate(config, protocol, model, methods, world, processes, quiet or not processes.is_main)
            processes.wait()
        return rows
    finally:
        processes.leave()


def _evaluate(
    config: EvaluateConfig,
    protocol: Protocol,
    model: ModelDescription | None,
    methods: Mapping[str, MethodConfig],
    world: World | None,
    processes: Processes,
    quiet: bool,
) -> list[dict[str, Any]]:
    cases = _cases(config, protocol, model, world)
    run = _Run(config, protocol, cases, _networks(config, protocol, model, processes, world), processes, quiet)
    path = None if config.reference is None else Path(config.reference)
    given = open_reference(protocol, path)  # before anything is made, so that a wrong one costs nothing

    jobs: dict[str, PictureBatches] = {}
    if model is None:
        pictures = _GivenPictures(config, cases)
        sources: dict[str, _MadePictures | _GivenPictures] = {GIVEN: pictures}
        side = pictures.side
    else:
        jobs, side = _make_pictures(run, methods, model)
        sources = {label: _MadePictures(job) for label, job in jobs.items()}
    measured = {label: _measure(run, label, source) for label, source in sources.items()}
    reference: Reference | None
    if protocol.reference == "none":
        reference, notes = None, ["no reference: Frechet distance, precision and recall are left out"]
    elif given is None and path is not None:
        reference, notes = _stored_reference(run, path)
    else:
        count, resolution = protocol.reference_count or 0, protocol.resolution or side
        shown = given or _needed(world, protocol).reference(count, resolution)
        reference, notes = _measured_reference(run, shown), []
    if not processes.is_main:
        return []

    dimensions = run.networks.extractors[protocol.extractor].num_features
    compared = None
    if reference is not None:
        compared = {"source": config.reference or protocol.reference, "count": reference.statistics.count}
        notes += protocol.warnings(len(cases), dimensions, reference.statistics.count)
    if model is None and protocol.captions == "scenes":
        notes.append(
            f"images: picture i is taken to show caption i of those that {protocol.name} composes with seed "
            f"{config.seed}; for pictures of other captions name a preset that reads a --captions_file"
        )
    calls = {label: [CallRecord(**record) for record in job.call_records()] for label, job in jobs.items()}
    kinds = () if run.networks.judge is None else run.networks.judge.kinds
    rows = []
    for label in sources:
        row = {
            "method": label,
            "count": len(cases),
            "protocol": protocol.to_dict(),
            "resolution": protocol.resolution or side,
            "reference": compared,
            **score(protocol, measured[label], reference, kinds, config.bootstrap),
            "networks": run.networks.identity(),
            "warnings": notes,
        }
        if "ar" in measured and label != "ar":
            row["against_plain"] = against_plain(measured[label], measured["ar"], protocol, kinds, config.bootstrap)
        if label in jobs:
            row["exact"] = methods[label].exact
            row["decoding"] = summarise(calls[label], calls.get("ar"))
            row["settings"] = {name: value for name, value in jobs[label].settings.items() if name != "captions"}
        rows.append({**row, "provenance": provenance()})
    for note in notes:
        print(f"vargen: warning: {note}", file=sys.stderr)
    return rows


def _cases(
    config: EvaluateConfig, protocol: Protocol, model: ModelDescription | None, world: World | None
) -> list[BenchmarkCase]:
    """What each picture shows. Raises UserError where the protocol asks for others."""
    count = config.count or protocol.count
    if protocol.captions == "scenes":
        if config.captions_file is not None:
            raise UserError(f"captions_file: {protocol.name} composes its own captions; use another preset for a file")
        if model is not None and not model.draws_scenes:
            raise UserError(
                f"preset: {protocol.name} asks for vargen's own scenes, which a model of the family {model.family} "
                f"does not draw; use prompts, or another preset for captions of a file"
            )
        count = count or (len(_open_given(config)) if config.images else 2000)
        cases = _needed(world, protocol).sample_cases(count, config.seed)
    elif protocol.captions == "class_labels":
        cases = _class_cases(config, count, 1000 if model is None else model.num_classes or 1000)
    else:
        if config.captions_file is None:
            raise UserError(f"captions_file: {protocol.name} needs captions; name a .txt, .csv, .tsv or .jsonl file")
        cases = written_cases(gather_prompts([], config.captions_file), world)
        if count is not None and len(cases) < count:
            raise UserError(f"captions_file: {config.captions_file} holds {len(cases):,} captions, {count:,} are asked")
        cases = cases[:count]
    try:
        protocol.check_count(len(cases))
        if protocol.captions == "file":
            assert config.captions_file is not None
            groups = read_column(config.captions_file, ("image_id", "id", "file_name"))
            groups = None if groups is None else groups[: len(cases)]
            protocol.check_captions([case.prompt or "" for case in cases], groups)
    except DataError as error:
        raise UserError(str(error)) from error
    if model is not None:
        by_class = model.num_classes is not None
        if by_class != (protocol.captions == "class_labels"):
            kind = "class labels" if by_class else "text"
            raise UserError(f"preset: the model is conditioned on {kind}, which {protocol.name} does not give")
    if len(cases) < 2:
        raise UserError("count: one picture has no spread; give 2 or more")
    return cases


def _needed(world: World | None, protocol: Protocol) -> World:
    """The world, for a protocol that asks for its captions, pictures or judge."""
    if world is None:
        raise missing_world(f"preset {protocol.name}", "use another preset, such as prompts")
    return world


def _class_cases(config: EvaluateConfig, count: int | None, num_classes: int) -> list[BenchmarkCase]:
    """Random labels, as the published protocol draws them (not so many of each class)."""
    count = count or 2000
    generator = torch.Generator().manual_seed(config.seed)
    labels = torch.randint(num_classes, (count,), generator=generator).tolist()
    return [BenchmarkCase(class_label=label) for label in labels]


def _networks(
    config: EvaluateConfig,
    protocol: Protocol,
    model: ModelDescription | None,
    processes: Processes,
    world: World | None,
) -> Networks:
    clip = None if config.clip is None else Path(config.clip)
    if clip is None and protocol.captions == "scenes":
        clip = shipped_clip()
    judge = _needed(world, protocol).judge() if protocol.judge else None
    if judge is not None and model is not None and judge.image_size != model.image_size:
        raise UserError(
            f"preset: the judge of {protocol.name} reads pictures of {judge.image_size} pixels, this model makes "
            f"{model.image_size}; use prompts, or another preset without a judge"
        )
    return load_networks(
        protocol,
        processes.device,
        clip=clip,
        inception_weights=None if config.inception_weights is None else Path(config.inception_weights),
        vgg_weights=None if config.vgg_weights is None else Path(config.vgg_weights),
        judge=judge,
    )


def _make_pictures(
    run: _Run, methods: Mapping[str, MethodConfig], model: ModelDescription
) -> tuple[dict[str, PictureBatches], int]:
    """Every method's folder with all its pictures, and their side."""
    config, processes = run.config, run.processes
    place = config.device if config.device_map is not None else str(processes.device)
    pipeline, device, dtype = load_pipeline(model, replace(config, device=place), run.quiet)
    shared = {
        **config.identity,
        "seed": config.seed,
        "dtype": dtype,
        "device": device.split(":")[0],
        "continuous_batches": config.continuous_batches,
        **model.sampling(**config.sampling),
        "captions": told_cases(run.cases),
    }
    jobs = {}
    for label, method in methods.items():
        described = method.to_dict()
        # A drafter that was trained anew makes no other pictures of what draws without one.
        weights = weights_fingerprint(model.folder, apart_from=None if "drafter" in described else "drafter")
        settings = {"method": described, "weights": weights, **shared}
        jobs[label] = PictureBatches(Path(config.output) / label, settings, len(run.cases), config.batch_size)
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
    run: _Run,
    job: PictureBatches,
    method: MethodConfig,
    pipeline: ImagePipeline,
    shared: Mapping[str, Any],
    shown: Progress,
    pixels_from_tokens: bool,
) -> None:
    """This process's batches of one method: tokens, then their pictures; both at once where tokens make no pixels."""
    sampling = {name: shared[name] for name in run.config.sampling}

    def call(indices: range, output_type: str) -> tuple[AutoregressivePipelineOutput, CallRecord]:
        chosen = [run.cases[index] for index in indices]
        return call_pipeline(pipeline, method, chosen, shared["seed"] + indices[0], output_type=output_type, **sampling)

    def make(indices: range) -> tuple[dict[str, Any], dict[str, Any]]:
        output, record = call(indices, "latent")
        codes = torch.as_tensor(output.images)  # [B, rows, columns]
        return {"tokens": codes.cpu().numpy().astype(np.int32)}, record.to_dict()

    def make_pictures(indices: range) -> tuple[dict[str, Any], dict[str, Any]]:
        output, record = call(indices, "pil")
        assert isinstance(output.images, list)
        job.keep_pictures(indices, output.images)
        return {"tokens": output.tokens.cpu().numpy().astype(np.int32)}, record.to_dict()

    def decode(tokens: Any) -> Any:
        return pipeline.decode_tokens(torch.from_numpy(tokens).long()[None].to(pipeline.device))[0]

    def make_all(indices: Sequence[int]) -> Iterator[tuple[int, tuple[np.ndarray, CallRecord]]]:
        chosen, seeds = [run.cases[index] for index in indices], [shared["seed"] + index for index in indices]
        size = run.config.batch_size
        for picture in stream_pipeline(pipeline, method, chosen, seeds, size, output_type="latent", **sampling):
            tokens = torch.as_tensor(picture.image).cpu().numpy().astype(np.int32)
            yield indices[picture.index], (tokens, record_of_picture(picture, pipeline.device))

    def bind(pictures: Sequence[tuple[np.ndarray, CallRecord]]) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens, records = zip(*pictures, strict=True)
        return {"tokens": np.stack(tokens)}, CallRecord.of_pictures(records).to_dict()

    own = run.share.of(range(len(job.tokens.batches)))
    if not pixels_from_tokens:
        job.forget_without_pictures(own)
        job.tokens.work(run.share, make_pictures, shown)
        return
    if run.config.continuous_batches and hasattr(pipeline, "stream"):
        job.tokens.collect(run.share, make_all, bind, shown)
    else:
        job.tokens.work(run.share, make, shown)
    for batch in own:
        job.save_pictures(batch, decode)


class _MadePictures:
    """Pictures of a job, for measuring."""

    def __init__(self, job: PictureBatches) -> None:
        self.job = job

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        return [read_image(self.job.image_path(index)) for index in indices]

    def store(self, key: str, batch_size: int) -> BatchStore:
        return BatchStore(self.job.path / "measured" / key, self.job.count, batch_size)


class _GivenPictures:
    """Pictures that were made elsewhere, for measuring.

    Raises:
        UserError: another number than there are captions, or files that cannot be read, all of them counted.
    """

    def __init__(self, config: EvaluateConfig, cases: Sequence[BenchmarkCase]) -> None:
        self.pictures = _open_given(config)
        self.output = Path(config.output)
        if isinstance(self.pictures, ImageFolder):
            broken = unreadable(self.pictures.files)
            if broken:
                names = ", ".join(str(path) for path in broken[:3]) + (", ..." if len(broken) > 3 else "")
                raise UserError(f"images: {len(broken)} of {len(self.pictures)} files cannot be read: {names}")
        if len(self.pictures) != len(cases):
            raise UserError(
                f"images: {config.images} holds {len(self.pictures):,} pictures, but there are {len(cases):,} captions"
            )
        self.digest = self.pictures.digest()
        self.side = int(self.pictures.read([0])[0].shape[-1])

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        return self.pictures.read(indices)

    def store(self, key: str, batch_size: int) -> BatchStore:
        return BatchStore(self.output / GIVEN / "measured" / digest([key, self.digest]), len(self.pictures), batch_size)


def _open_given(config: EvaluateConfig) -> ImageFolder | ImageArray:
    assert config.images is not None
    try:
        return open_images(Path(config.images))
    except DataError as error:
        raise UserError(f"images: {error}") from error


def _measure(run: _Run, label: str, source: _MadePictures | _GivenPictures) -> dict[str, Tensor]:
    """Everything read off one method's pictures, in their order."""
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


def _stored_reference(run: _Run, path: Path) -> tuple[Reference, list[str]]:
    """The reference of a file of statistics, and warnings about it."""
    statistics, notes = stored_statistics(path, run.protocol, run.networks)
    if run.protocol.manifold_extractor is not None:
        notes.append("reference: statistics hold no features; precision and recall are left out")
    return Reference(statistics, None), notes


def _measured_reference(run: _Run, pictures: ReferencePictures) -> Reference:
    """The reference of pictures; its statistics are kept beside the scores."""
    protocol, networks, processes = run.protocol, run.networks, run.processes
    with run.progress(-(-len(pictures) // MEASURE_BATCH), "batches of the reference") as shown:
        features = reference_features(pictures, protocol, networks, run.share, processes.wait, processes.device, shown)
    try:
        statistics = GaussianStatistics.of(features[protocol.extractor])
    except DataError as error:
        raise UserError(f"reference: {error}") from error
    if processes.is_main:
        save_statistics(Path(run.config.output) / "reference.npz", statistics, protocol, networks)
    return Reference(statistics, None if protocol.manifold_extractor is None else features[protocol.manifold_extractor])
