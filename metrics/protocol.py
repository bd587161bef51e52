"""How quality is measured: every choice that changes a number, in one record that travels with the number.

Belongs here: the choices, their check against the data, and warnings about them. Does not belong here: doing it.
Presets are YAML files of these fields under configs/evaluate/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from metrics.composition import CompositionRule
from metrics.errors import DataError
from metrics.extractors import EXTRACTORS, INCEPTION_RESIZINGS
from metrics.images import RESIZERS

CAPTION_SOURCES = ("scenes", "file", "class_labels")
REFERENCES = ("renders", "given", "none")


@dataclass(frozen=True)
class ClipProtocol:
    """How CLIP score is made.

    Args:
        prefix: put before every caption, such as "A photo depicts ".
        scale: factor on the cosine.
        clip_at_zero: whether negative cosines count as zero.
    """

    prefix: str = ""
    scale: float = 100.0
    clip_at_zero: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise DataError(f"clip_score.prefix must be a text, got {self.prefix!r}")
        is_number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if not is_number or not math.isfinite(self.scale):
            raise DataError(f"clip_score.scale must be a finite number, got {self.scale!r}")
        if not isinstance(self.clip_at_zero, bool):
            raise DataError(f"clip_score.clip_at_zero must be true or false, got {self.clip_at_zero!r}")


@dataclass(frozen=True)
class Protocol:
    """A way to measure.

    Args:
        name: of the protocol.
        captions: where captions come from: "scenes" (composed from held-out scenes of the project's own world), "file"
            or "class_labels".
        count: pictures that the protocol asks for; null for as many as are asked for.
        longest_caption: of several captions of one picture, the longest is drawn; others are refused.
        resolution: side in pixels at which pictures are compared; null for the generated pictures' own.
        resizer: how they get there; see `metrics.images.RESIZERS`.
        extractor: features of the Frechet distance: "inception" (FID as first defined, and by torch-fidelity),
            "inception-antialiased" (by torchmetrics since 1.8), "inception-clean" (by clean-fid), "clip" (image
            features of the CLIP model; not FID), or "efficientnet-lite0" (a public network from a package; not FID).
        manifold_extractor: features of precision, recall, density and coverage; null leaves them out.
        manifold_neighbours: their k.
        inception_score: make the Inception Score, with an extractor of Inception.
        spatial_distance: make sFID, likewise.
        clip_score: null leaves it out.
        hps: score pictures by a CLIP that was trained on preferences, such as HPS v2: 100 times the cosine.
        composition: how GenEval's rule reads what a detector found; see `metrics.composition.CompositionRule`.
        reference: "renders" of held-out scenes, "given" on the command line, or "none": then there is no Frechet
            distance, no precision and no recall.
        reference_count: how many renders; fewer where fewer than 1,000 pictures are measured, see `num_renders`.
        judge: have the recogniser of scenes check what captions claim.
    """

    name: str
    captions: str = "file"
    count: int | None = None
    longest_caption: bool = False
    resolution: int | None = None
    resizer: str = "center-crop-lanczos"
    extractor: str = "inception"
    manifold_extractor: str | None = None
    manifold_neighbours: int = 3
    inception_score: bool = False
    spatial_distance: bool = False
    clip_score: ClipProtocol | None = field(default_factory=ClipProtocol)
    hps: bool = False
    composition: CompositionRule = field(default_factory=CompositionRule)
    reference: str = "given"
    reference_count: int | None = None
    judge: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("captions", CAPTION_SOURCES),
            ("resizer", tuple(RESIZERS)),
            ("extractor", EXTRACTORS),
            ("reference", REFERENCES),
        ):
            if getattr(self, name) not in known:
                raise DataError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.manifold_extractor not in (None, *EXTRACTORS):
            raise DataError(
                f"manifold_extractor must be null or one of {', '.join(EXTRACTORS)}, got {self.manifold_extractor!r}"
            )
        for name in ("count", "resolution", "reference_count", "manifold_neighbours"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise DataError(f"{name} must be a positive integer, got {value!r}")
        for name in ("longest_caption", "judge", "inception_score", "spatial_distance", "hps"):
            if not isinstance(getattr(self, name), bool):
                raise DataError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.clip_score is not None and not isinstance(self.clip_score, ClipProtocol):
            raise DataError(f"clip_score must be null or its own fields, got {self.clip_score!r}")
        for name in ("inception_score", "spatial_distance"):
            if getattr(self, name) and self.extractor not in INCEPTION_RESIZINGS:
                raise DataError(f"{name} must be false: the extractor {self.extractor} is none of Inception")
        _check_composition(self.composition)
        if self.reference == "renders" and self.reference_count is None:
            raise DataError('reference_count must say how many renders, since reference is "renders"')
        if self.reference == "none" and self.manifold_extractor is not None:
            raise DataError('manifold_extractor must be null, since reference is "none"')
        for name, absent in (("clip_score", None), ("hps", False)):
            if getattr(self, name) != absent and self.captions == "class_labels":
                raise DataError(f"{name} must be {str(absent or 'null').lower()}: class labels are no captions")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Protocol:
        """A protocol of plain values, as YAML gives them. Raises DataError naming an unknown or wrong field."""
        values = dict(values)
        clip = values.get("clip_score")
        if isinstance(clip, dict):
            values["clip_score"] = _fill(ClipProtocol, clip, "clip_score.")
        if isinstance(rule := values.get("composition"), dict):
            values["composition"] = _fill(CompositionRule, rule, "composition.")
        return _fill(cls, values, "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a result."""
        return asdict(self)

    @property
    def extractors(self) -> tuple[str, ...]:
        """Every network the protocol needs, each once."""
        wanted = [self.extractor, self.manifold_extractor, None if self.clip_score is None else "clip"]
        wanted.append("hps" if self.hps else None)
        return tuple(dict.fromkeys(name for name in wanted if name is not None))

    def check_count(self, count: int) -> None:
        """Refuse another number of pictures than the protocol's. Raises DataError."""
        if self.count is not None and count != self.count:
            raise DataError(
                f"count: {self.name} is defined on {self.count:,} pictures, not {count:,}; a figure on fewer is not "
                "comparable. Give that many, or use a protocol of your own without `count`"
            )

    def check_captions(self, captions: Sequence[str], groups: Sequence[object] | None = None) -> None:
        """Refuse captions that are empty, or not the longest of their picture's.

        Args:
            captions: one a picture.
            groups: what each was chosen for (an image id), where the file says so.
        """
        for number, caption in enumerate(captions):
            if not caption.strip():
                raise DataError(f"captions: number {number} is empty; every picture needs one")
        if self.longest_caption and groups is not None and len(set(groups)) < len(groups):
            raise DataError(
                f"captions: {self.name} draws one caption a picture, the longest; the file names a picture twice. "
                "Keep the longest caption of each"
            )

    def num_renders(self, count: int, dimensions: int) -> int:
        """Renders that so many pictures are compared with, on features of so many dimensions."""
        asked = self.reference_count or 0
        return asked if count >= 1000 else min(asked, max(4 * count, 2 * dimensions))

    def warnings(self, count: int, dimensions: int, reference_count: int | None) -> list[str]:
        """Notes for a reader of the figures, a line each."""
        found = []
        for name, number in (("pictures", count), ("reference pictures", reference_count)):
            if number is not None and number <= dimensions:
                found.append(
                    f"{number:,} {name} cannot fill {dimensions:,} feature dimensions: the covariance is singular and "
                    f"the Frechet distance too high; use more than {dimensions:,}"
                )
        if self.manifold_extractor is not None and reference_count is not None and 2 * count < reference_count:
            found.append(
                f"{count:,} pictures against {reference_count:,} of the reference: recall is too high, and density and "
                "coverage too low; compare them and precision at these counts alone"
            )
        return found


def _check_composition(rule: Any) -> None:
    if not isinstance(rule, CompositionRule):
        raise DataError(f"composition must be its own fields, got {rule!r}")
    for name, value in asdict(rule).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        whole = name == "most_objects"
        if not is_number or not 0 <= value <= (1000 if whole else 1) or (whole and value != int(value)):
            raise DataError(
                f"composition.{name} must be {'an integer' if whole else 'a number from 0 to 1'}, got {value!r}"
            )


def _fill(kind: Any, values: dict[str, Any], prefix: str) -> Any:
    unknown = set(values) - set(kind.__dataclass_fields__)
    if unknown:
        raise DataError(
            f"{prefix}{sorted(unknown)[0]} is not a field of a protocol; known: {', '.join(kind.__dataclass_fields__)}"
        )
    return kind(**values)
