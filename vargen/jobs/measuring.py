"""Features of pictures on disk, in shares that any number of processes can take.

Does not belong here: figures (`vargen.jobs.figures`), and making pictures (`vargen.jobs.evaluated_pictures`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from metrics.errors import DataError
from metrics.extractors import EXTRACTORS, FeatureExtractor, InceptionFeatures
from metrics.frechet import GaussianStatistics
from metrics.images import ImageArray, ImageFolder, open_images, open_npz, resize, save_array
from metrics.picture_checks import PictureCheck, check_pictures
from metrics.protocol import Protocol
from metrics.quality import Reference
from vargen.base.errors import UserError
from vargen.base.reading import parse_json
from vargen.base.resources import cache_folder
from vargen.checkpoints.model_folder import check_stored
from vargen.checkpoints.options import SamplingOptions
from vargen.jobs.cases import BenchmarkCase, Judge, ReferencePictures, told_cases
from vargen.jobs.edits import Edits
from vargen.runs.batches import Arrays, BatchStore, Share
from vargen.runs.files import atomic_path
from vargen.runs.identity import check_identity, digest
from vargen.runs.processes import Processes
from vargen.runs.progress import Progress, progress

Read = Callable[[Sequence[int]], Sequence[Tensor]]
"""A function that gives pictures uint8 `[3, H, W]` by number."""
MEASURE_BATCH = 64
"""Pictures measured together; fixed, since the last bits of a feature depend on it."""


@dataclass(frozen=True)
class Networks:
    """The networks that read pictures.

    Args:
        extractors: by the names that protocols use.
        judge: reads claims; None where the protocol does not judge.
        check: answers what a benchmark asks of pictures; None where nothing is asked.
        most_asked: the most answers that one picture has.
    """

    extractors: dict[str, FeatureExtractor]
    judge: Judge | None
    check: PictureCheck | None = None
    most_asked: int = 0

    def identity(self) -> dict[str, str]:
        """Digests of the extractors, for results and caches."""
        identities = {name: extractor.identity for name, extractor in self.extractors.items()}
        return identities if self.check is None else {**identities, "check": self.check.identity}


def load_networks(
    protocol: Protocol, device: torch.device, files: Mapping[str, Path | None], judge: Judge | None
) -> Networks:
    """Every network the protocol needs. Raises UserError for a file that is not named, missing or of another layout.

    Args:
        files: by the arguments of `EXTRACTORS`.
        judge: reads claims, for a protocol that judges.
    """

    def load(name: str) -> FeatureExtractor:
        kind = EXTRACTORS[name]
        path = files.get(kind.argument)
        if path is None and kind.needed:
            shipped = "; the shipped one comes with --protocol scene-prompts" if name == "clip" else ""
            raise UserError(f"{kind.argument}: {protocol.name} needs {kind.needed}{shipped}")
        if path is not None and path.is_dir():
            check_stored(path, kind.argument)
        transformers_logging.disable_progress_bar()  # the job has a bar of its own
        return kind.load(path, device)

    try:
        return Networks({name: load(name) for name in protocol.extractors}, judge)
    except DataError as error:
        raise UserError(str(error)) from error


@dataclass(frozen=True)
class Evaluation:
    """The settings, cases and networks that every step of an evaluation needs."""

    options: SamplingOptions
    output: Path
    batch_size: int
    continuous_batches: bool
    protocol: Protocol
    cases: Sequence[BenchmarkCase]
    networks: Networks
    processes: Processes
    quiet: bool
    edits: Edits | None = None

    @property
    def share(self) -> Share:
        return Share(self.processes.rank, self.processes.count)

    def progress(self, batches: int, unit: str) -> AbstractContextManager[Progress]:
        """Counts this process's share of this number of batches."""
        return progress(len(self.share.of(range(batches))), unit, self.quiet)


def measure(
    pictures: Sequence[Tensor], cases: Sequence[BenchmarkCase], protocol: Protocol, networks: Networks
) -> Arrays:
    """Features of pictures uint8 `[3, H, W]` and their captions.

    Returns:
        `features_NAME` fp32 `[B, D]` by extractor; `text` and `hps_text` fp32 `[B, D]` where CLIP score and HPS are
        made; `spatial` and `logits` where sFID and the Inception Score are (`metrics.extractors.InceptionReading`);
        `verdicts` int16 `[B, 2 * kinds]`, right claims and all claims by kind, where pictures are judged; `answers`
        int8 `[B, Q]` where a benchmark asks (`metrics.picture_checks`).
    """
    side = protocol.resolution or pictures[0].shape[-1]
    resized = resize(pictures, protocol.resizer, side)
    arrays = {}
    for name, each in networks.extractors.items():
        if isinstance(each, InceptionFeatures) and (protocol.spatial_distance or protocol.inception_score):
            pool, spatial, logits = each.read(resized)
            arrays[f"features_{name}"] = pool.numpy()
            arrays |= {"spatial": spatial.numpy()} if protocol.spatial_distance else {}
            arrays |= {"logits": logits.numpy()} if protocol.inception_score and cases else {}
        else:
            arrays[f"features_{name}"] = each(resized).numpy()
    clip: Any
    for name, clip, prefix in (
        ("text", networks.extractors.get("clip"), None if protocol.clip_score is None else protocol.clip_score.prefix),
        ("hps_text", networks.extractors.get("hps"), ""),
    ):
        if prefix is not None and clip is not None and cases:
            arrays[name] = clip.encode_text([prefix + (case.prompt or "") for case in cases]).numpy()
    if networks.check is not None and cases:
        asked = [case.asked for case in cases if case.asked is not None]
        arrays["answers"] = check_pictures(networks.check, pictures, asked, networks.most_asked).numpy()
    if networks.judge is not None and cases:
        counts = networks.judge(torch.stack(list(pictures)).float() / 255, cases)
        arrays["verdicts"] = counts.flatten(1).numpy().astype(np.int16)
    return arrays


def open_reference(protocol: Protocol, path: Path | None) -> ImageFolder | ImageArray | None:
    """Given pictures of the reference; None where they are rendered, not needed, or `path` holds statistics alone.
    Raises UserError where `path` is missing, not needed, or cannot be read."""
    if protocol.reference != "given":
        if path is not None:
            what = "renders" if protocol.reference == "renders" else "nothing"
            raise UserError(f"reference: {protocol.name} compares with {what}; use another protocol to name pictures")
        return None
    if path is None:
        raise UserError(f"reference: {protocol.name} needs a folder of pictures, or an .npz of pictures or statistics")
    try:
        if path.suffix == ".npz":
            with open_npz(path) as arrays:
                if "mu" in arrays and ("arr_0" not in arrays or protocol.manifold_extractor is None):
                    return None
        pictures = open_images(path)
    except DataError as error:
        raise UserError(f"reference: {error}") from error
    if len(pictures) < 2:
        raise UserError(f"reference: {path} holds one picture, which has no spread; name two or more")
    return pictures


def measure_pictures(run: Evaluation, label: str, read: Read, folder: Callable[[str], Path]) -> dict[str, Tensor]:
    """All features of one method's pictures, in their order.

    Args:
        folder: for the features, from a key that stands for how they are measured.
    """
    networks = run.networks
    how = [run.protocol.to_dict(), networks.identity(), told_cases(run.cases), networks.judge is not None]
    if networks.check is not None:
        how.append(repr([case.asked for case in run.cases]))
    if run.edits is not None:
        how.append(run.edits.identity)
    store = BatchStore(folder(digest(how)), len(run.cases), MEASURE_BATCH)
    return _measured(run, label, store, read, run.cases, networks)


def measured_reference(run: Evaluation, pictures: ReferencePictures) -> Reference:
    """The reference of pictures. Its statistics are written beside the scores.

    Features are cached. The key of the cache is the content: pictures, resizing and networks.
    """
    protocol, features = run.protocol, _reference_features(run, pictures)
    try:
        statistics = GaussianStatistics.of(features[protocol.extractor])
    except DataError as error:
        raise UserError(f"reference: {error}") from error
    spatial = _spatial(features)
    if run.processes.is_main:
        _save_statistics(run, run.output / "reference.npz", statistics, spatial)
    manifold = None if protocol.manifold_extractor is None else features[protocol.manifold_extractor]
    return Reference(statistics, manifold, spatial)


def _spatial(features: Mapping[str, Tensor]) -> GaussianStatistics | None:
    """Statistics of the features of sFID, where they were measured."""
    return GaussianStatistics.of(features["spatial"]) if "spatial" in features else None


def _reference_features(run: Evaluation, pictures: ReferencePictures) -> dict[str, Tensor]:
    """Features of the reference by extractor, and "spatial": those that the protocol compares."""
    protocol = run.protocol
    wanted = [name for name in dict.fromkeys((protocol.extractor, protocol.manifold_extractor)) if name is not None]
    only = Networks({name: run.networks.extractors[name] for name in wanted}, None)
    identity = [pictures.digest(), protocol.resizer, protocol.resolution, *only.identity().values()]
    identity += ["spatial"] if protocol.spatial_distance else []
    store = BatchStore(cache_folder() / "references" / digest(identity), len(pictures), MEASURE_BATCH)
    measured = _measured(run, "the reference, kept for later runs,", store, pictures.read, (), only)
    return {name.removeprefix("features_"): value for name, value in measured.items()}


def _measured(
    run: Evaluation, what: str, store: BatchStore, read: Read, cases: Sequence[BenchmarkCase], networks: Networks
) -> dict[str, Tensor]:
    """Features of a store's pictures in their order, on the CPU. Every process measures its share and gets all."""

    def make(indices: range) -> tuple[Arrays, dict[str, Any]]:
        try:
            pictures = read(indices)
            arrays = measure(pictures, [cases[index] for index in indices if cases], run.protocol, networks)
            if run.edits is not None and cases:
                arrays |= run.edits.measure(indices, pictures, networks.judge)
            return arrays, {}
        except DataError as error:
            raise UserError(f"{what}: {error}") from error

    with run.progress(len(store.batches), f"batches of {what} measured") as shown:
        store.work(run.share, make, shown)
    run.processes.wait()
    batches = [store.read(batch)[0] for batch in range(len(store.batches))]
    return {
        name: torch.from_numpy(np.concatenate([arrays[name] for arrays in batches]).astype(np.float32))
        for name in batches[0]
    }


def stored_statistics(run: Evaluation, path: Path | None) -> tuple[Reference | None, list[str]]:
    """The statistics of a reference, None where it has none, and a warning where it does not say how they were made.
    Raises UserError for a damaged file, or one of another network or resizing."""
    try:
        if path is None or path.suffix != ".npz":
            return None, []
        with open_npz(path) as arrays:
            if "mu" not in arrays:
                return None, []
            has_spatial = run.protocol.spatial_distance and "mu_s" in arrays
            note = parse_json(arrays["made_with"].tobytes()) if "made_with" in arrays else None
            statistics = GaussianStatistics.read(arrays, path)
            spatial = GaussianStatistics.read(arrays, path, "_s") if has_spatial else None
        reference = Reference(statistics, None, spatial)
    except (DataError, ValueError) as error:
        raise UserError(f"reference: {error}") from error
    size, wanted = len(statistics.mean), run.networks.extractors[run.protocol.extractor].num_features
    if size != wanted:
        raise UserError(
            f"reference: {path} has statistics of {size} features, and {run.protocol.extractor} gives {wanted}; name "
            "one that was made with the same network"
        )
    if note is None:
        return reference, [f"reference: {path} does not say how it was made; its resizing is taken on trust"]
    remedy = "make it again from its pictures"
    check_identity(path, note, _made_with(run), holds="statistics made", argument="reference", remedy=remedy)
    return reference, []


def stored_reference(
    run: Evaluation, stored: Reference, pictures: ReferencePictures | None
) -> tuple[Reference, list[str]]:
    """The reference of stored statistics, and warnings about its gaps.

    Args:
        stored: their distances.
        pictures: those in the same file, for precision and recall; None: it has none. ADM's files hold some pictures
            beside statistics of many more.
    """
    protocol, notes, manifold, spatial = run.protocol, [], None, stored.spatial
    lacks_spatial = protocol.spatial_distance and spatial is None
    if pictures is not None and (protocol.manifold_extractor is not None or lacks_spatial):
        features = _reference_features(run, pictures)
        if protocol.manifold_extractor is not None:
            manifold = features[protocol.manifold_extractor]
            notes.append(f"reference: precision and recall use the {len(pictures):,} pictures beside the statistics")
        if lacks_spatial:
            spatial = _spatial(features)
            notes.append(f"reference: sFID uses the {len(pictures):,} pictures beside the statistics")
    elif protocol.manifold_extractor is not None:
        notes.append("reference: statistics hold no features; precision, recall, density and coverage are left out")
    if protocol.spatial_distance and spatial is None:
        notes.append("reference: no statistics mu_s and sigma_s; sFID is left out")
    return Reference(stored.statistics, manifold, spatial), notes


def write_pictures(path: Path, read: Read, count: int) -> None:
    """Write pictures as an array in an `.npz`, whole or not at all. Raises UserError where they differ in size."""
    try:
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            save_array(file, read, count)
    except DataError as error:
        raise UserError(f"write_npz: {error}") from error


def _made_with(run: Evaluation) -> dict[str, Any]:
    """Everything beside the pictures that decides statistics."""
    protocol = run.protocol
    extractor = run.networks.extractors[protocol.extractor].identity
    return {"resizer": protocol.resizer, "resolution": protocol.resolution, "extractor": extractor}


def _save_statistics(
    run: Evaluation, path: Path, statistics: GaussianStatistics, spatial: GaussianStatistics | None
) -> None:
    """Write statistics as `stored_reference` reads them, whole or not at all."""
    note = np.frombuffer(json.dumps(_made_with(run)).encode(), dtype=np.uint8)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        statistics.save(file, made_with=note, **({} if spatial is None else spatial.arrays("_s")))
