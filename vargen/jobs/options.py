"""Options of jobs, and the checks that all which draw tokens share: guidance, temperature, filters, precision.

Nothing here imports torch: a command reads its options, and refuses them, before it needs any model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vargen.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_SEED, check_number, check_numbers, check_sampling
from vargen.errors import UserError
from vargen.methods.base import MethodConfig
from vargen.methods.catalogue import read_method_list
from vargen.models.model_folder import method_resolver
from vargen.resources import find_config, find_model

if TYPE_CHECKING:
    import metrics.protocol

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class SamplingOptions:
    """What every job that draws pictures is told.

    Args:
        model: model folder, or the name of a shipped one; null for the shipped default.
        seed: of the first picture; picture i is made with `seed + i`, by every method.
        guidance_scale: how closely to follow the prompt, at the cost of variety; 1 is off; null for the model's own.
        temperature: below 1 for more likely, above 1 for more varied pictures; 0 always takes the likeliest token.
        top_k: choose among so many of the likeliest tokens only; 0 for all; null for the model's own.
        top_p: choose among the likeliest tokens that together have this probability; 1 for all.
        device: "cpu", "cuda", "cuda:1", "mps"; "auto" takes a GPU if there is one, of several processes each its own.
        dtype: precision of the transformer: float32, bfloat16 or float16; "auto" is bfloat16 on a GPU and float32 on a
            CPU. The image decoder always works in float32.
    """

    model: str | None = None
    seed: int = 0
    guidance_scale: float | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        check_number("seed", self.seed, 0, MAX_SEED)
        check_sampling(self.temperature, self.top_k, self.top_p, self.guidance_scale)
        check_dtype(self.dtype)


def check_dtype(dtype: str) -> None:
    """Refuse an unknown precision. Raises UserError."""
    if dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


@dataclass(frozen=True)
class EvaluateConfig(SamplingOptions):
    """What to evaluate, and how.

    Args:
        output: folder for the pictures, what is read off them, scores.json, table.md, table.tex and plot.png. The same
            command goes on where it was stopped.
        preset: protocol, by the name of a shipped one (scenes, coco2014-30k, coco2017-5k-longest, imagenet-50k) or a
            YAML file of the same fields.
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
        bootstrap: draws for the 95 % intervals; 0 for none.
    """

    output: str = "evaluation"
    preset: str = "scenes"
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
    bootstrap: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, {"batch_size": (1, MAX_BATCH_SIZE), "bootstrap": (0, 100_000), "count": (2, MAX_PICTURES)})
        if Path(self.output).is_file():
            raise UserError(f"output: {self.output} is a file; name a folder")

    def methods(self) -> dict[str, MethodConfig]:
        """By label, as the model means them. Raises UserError for an unknown one, or options of one not evaluated."""
        resolve = method_resolver(find_model(self.model))
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
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"preset: {path} does not exist") from None
    except yaml.YAMLError as error:
        raise UserError(f"preset: {path} is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise UserError(f"preset: {path} must hold the fields of a protocol")
    try:
        return QualityProtocol.from_dict({"name": path.stem, **content})
    except (DataError, TypeError) as error:
        raise UserError(f"preset: {path}: {error}") from error
