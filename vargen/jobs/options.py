"""Options of jobs, and the checks that all which draw tokens share: guidance, temperature, filters, precision.

Nothing here imports torch: a command reads its options, and refuses them, before it needs any model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_SEED, check_number, check_numbers, check_sampling
from vargen.base.errors import UserError
from vargen.base.reading import read_yaml
from vargen.base.resources import find_config
from vargen.methods.base import ImageMethodConfig, MethodConfig
from vargen.methods.catalogue import read_method_list
from vargen.models.options import ModelOptions

if TYPE_CHECKING:
    import metrics.protocol


@dataclass(frozen=True)
class SamplingOptions(ModelOptions):
    """What every job that draws pictures is told.

    Args:
        seed: of the first picture; picture i is made with `seed + i`, by every method.
        guidance_scale: how closely to follow the prompt, at the cost of variety; 1 is off; null for the model's own.
        temperature: below 1 for more likely, above 1 for more varied pictures; 0 always takes the likeliest token; null
            for the model's own.
        top_k: choose among so many of the likeliest tokens only; 0 for all; null for the model's own.
        top_p: choose among the likeliest tokens that together have this probability; 1 for all; null for the model's
            own.
    """

    seed: int = 0
    guidance_scale: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("seed", self.seed, 0, MAX_SEED)
        check_sampling(self.temperature, self.top_k, self.top_p, self.guidance_scale)

    @property
    def sampling(self) -> dict[str, Any]:
        """What was asked for of sampling, by the names that pipelines know; None for the model's own."""
        return {name: getattr(self, name) for name in ("guidance_scale", "temperature", "top_k", "top_p")}


@dataclass(frozen=True)
class EvaluateConfig(SamplingOptions):
    """What to evaluate, and how.

    Args:
        output: folder for the pictures, what is read off them, scores.json, table.md, table.tex and plot.png. The same
            command goes on where it was stopped.
        preset: protocol, by the name of a shipped one (scenes, prompts, coco2014-30k, coco2017-5k-longest,
            imagenet-50k) or a YAML file of the same fields; null for scenes, or for models that do not draw the
            project's own scenes, prompts.
        method: decoding method or preset; several, separated by commas, are evaluated one after the other.
        method_options: settings that differ from the defaults, by method, such as `--method_options.eagle.depth 3`.
        count: how many pictures; null for the protocol's, or 2000 where it leaves that open.
        images: evaluate these pictures, a folder or an .npz of them, instead of making any.
        captions_file: captions, one a picture: .txt, .csv, .tsv or .jsonl. With `images`, in the order of the pictures.
        reference: folder of pictures, .npz of pictures (arr_0) or of statistics (mu, sigma), where the protocol does
            not render its own.
        clip: folder of a CLIP model; null for the one that came with vargen (scenes only).
        inception_weights: file of torch-fidelity's Inception weights; null lets torch-fidelity download them.
        vgg_weights: file of torchvision's VGG16 weights, where the protocol uses it.
        batch_size: pictures per call. It belongs to the identity of a run, since costs are recorded by call.
        continuous_batches: give a finished picture's place in the batch to the next at once, where the family of model
            can. It changes no picture. It belongs to the identity of a run, too: a picture's seconds and passes are
            then its own and not those of the slowest beside it.
        bootstrap: draws for the 95 % intervals; 0 for none.
    """

    output: str = "evaluation"
    preset: str | None = None
    method: str = "ar"
    method_options: dict[str, Any] = field(default_factory=dict)
    count: int | None = None
    images: str | None = None
    captions_file: str | None = None
    reference: str | None = None
    clip: str | None = None
    inception_weights: str | None = None
    vgg_weights: str | None = None
    batch_size: int = 32
    continuous_batches: bool = True
    bootstrap: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, {"batch_size": (1, MAX_BATCH_SIZE), "bootstrap": (0, 100_000), "count": (2, MAX_PICTURES)})
        if Path(self.output).is_file():
            raise UserError(f"output: {self.output} is a file; name a folder")

    def methods(self, resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]) -> dict[str, MethodConfig]:
        """By label, as a model means them. Raises UserError for an unknown one, or options of one not evaluated."""
        return read_method_list(self.method, self.method_options, "method", resolve)


def load_protocol(preset: str) -> metrics.protocol.Protocol:
    """A shipped protocol by name, or one of a YAML file.

    Raises:
        UserError: there is none, or a field is unknown or wrong.
    """
    from metrics.errors import DataError
    from metrics.protocol import Protocol as QualityProtocol

    given = preset.endswith((".yaml", ".yml"))
    path = Path(preset) if given else find_config(f"evaluate/{preset}")
    try:
        content = read_yaml(path, argument="preset")
    except FileNotFoundError:
        raise UserError(f"preset: {path} does not exist") from None
    if not isinstance(content, dict):
        raise UserError(f"preset: {path} must hold the fields of a protocol")
    try:
        return QualityProtocol.from_dict({"name": path.stem, **content})
    except (DataError, TypeError) as error:
        raise UserError(f"preset: {path}: {error}") from error
