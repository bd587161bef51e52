"""Pictures that a network beside a finished picture model learns from: drawn by the model, or stored with captions.

Belongs here: settings that say which model and which pictures, and gathering these. Does not belong here: learning
(`drafter.py`), and keeping drawn pictures on disk (`answers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vargen.base.errors import UserError
from vargen.base.options import LOADING, option
from vargen.base.path_roles import MODEL, READ_FILE, READ_FOLDER
from vargen.base.prompts import gather_prompts
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.checkpoints.options import DTYPES, OWN_QUANTIZATION, ModelOptions
from vargen.models.description import open_model
from vargen.pipelines.loading import load_pipeline
from vargen.training.answers import keep_batches
from vargen.training.config import DrafterRunConfig, OfModelConfig, check
from vargen.training.run import prepare
from vargen.training.teachers import Teacher, teacher_of


@dataclass
class PictureModelConfig(OfModelConfig):
    """Settings of every run about a picture model, beside those of `OfModelConfig`."""

    dtype: str = option("float32", choices=DTYPES, group=LOADING)
    """Precision of the model: float32, bfloat16 or float16; "auto" is as in `vargen generate`."""
    family: str | None = option(None, group=LOADING)
    """Family of a model whose config.json fits several, such as anole; null where it says which."""
    tokenizer: str | None = option(None, path=MODEL, group=LOADING)
    """Folder of the model's text tokenizer, or its name on the hub, where it does not lie beside it."""

    def model_options(self, quantization: str | None = None) -> ModelOptions:
        """How the model is loaded."""
        place = (self.model or None, self.revision or None, self.device, self.dtype)
        return ModelOptions(*place, quantization=quantization, family=self.family, tokenizer=self.tokenizer)


@dataclass
class PictureRunConfig(PictureModelConfig, DrafterRunConfig):
    """Settings of every run that learns from a picture model's own pictures."""

    quantization: str | None = option(None, group=LOADING)
    """Quantization of the model by a library, as `vargen generate` takes it; null for none."""
    prompts_file: str = option("", path=READ_FILE)
    """File of prompts to draw, as `vargen generate` reads them; empty for captions of rendered scenes, which only
    models trained on scenes draw."""
    num_images: int = option(2048, least=1)
    """Number of pictures that the model makes to learn from; with a file of prompts, at most this many of them."""
    codes: str = option("", path=READ_FOLDER)
    """Folder of a store that `vargen train data` wrote with the model's own tokenizer; its pictures are learned from as
    well, and are rendered instead of drawn. Empty for none."""
    num_stored_images: int = option(20_000, least=1)
    """Largest number of pictures read from the store."""
    initial_weights: str = option("", path=READ_FOLDER)
    """Folder of a network of the same shape from which a new run starts; empty starts from new weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_own = self.quantization in OWN_QUANTIZATION
        remedy = "is for drawing; leave it out: what is trained without it fits the quantized model as well"
        check(not is_own, "quantization", self.quantization, remedy)
        remedy = f"must exceed evaluation_size ({self.evaluation_size}), whose pictures are kept apart"
        check(self.num_images > self.evaluation_size, "num_images", self.num_images, remedy)


StoredPictures = Callable[[str, int, Any], tuple[list[str], Tensor]]
"""A function that takes a folder, a count and a VQ model. It gives prompts and codes [K, N] of at most so many pictures
of a store that was made with this tokenizer. Raises UserError for no such store, or one of another tokenizer."""


@dataclass(frozen=True)
class Lessons:
    """A model with pictures to learn from, and others to be judged by.

    Attributes:
        teacher: the model.
        prompts, codes: of K pictures, codes int64 [K, N].
        heldout_prompts, heldout_codes: of `evaluation_size` others, which the model drew.
        identity: what a checkpoint must share with the run that resumes it.
    """

    teacher: Teacher
    prompts: Sequence[str]
    codes: Tensor
    heldout_prompts: Sequence[str]
    heldout_codes: Tensor
    identity: dict[str, Any]

    def draw(self, count: int, generator: torch.Generator) -> tuple[list[str], Tensor]:
        """Prompts and codes [count, N] of pictures to learn from, with replacement."""
        rows = torch.randint(len(self.codes), (count,), generator=generator)
        return [self.prompts[row] for row in rows.tolist()], self.codes[rows.to(self.codes.device)]

    def heldout(self, size: int) -> Iterator[tuple[list[str], Tensor]]:
        """The pictures to be judged by, in batches of at most `size`."""
        for start in range(0, len(self.heldout_codes), size):
            rows = slice(start, start + size)
            yield list(self.heldout_prompts[rows]), self.heldout_codes[rows]


def gather_lessons(
    config: PictureRunConfig,
    sample_prompts: Callable[[int, int], list[str]],
    stored_pictures: StoredPictures | None,
) -> Lessons:
    """Load the model, and make or read its pictures.

    Args:
        sample_prompts: gives prompts, by seed and count, if the config names no file of them.
        stored_pictures: reads the store that the config names.

    Raises:
        UserError: for a field or a model folder that does not fit.
    """
    device = prepare(config)
    options = config.model_options(config.quantization)
    model = open_model(options)
    pipeline, _, _ = load_pipeline(model, options)
    if config.prompts_file:
        prompts = gather_prompts((), config.prompts_file)[: config.num_images]
    elif model.draws_scenes:
        prompts = sample_prompts(config.seed, config.num_images)
    else:
        raise UserError(
            f"prompts_file must name a file: a model of the family {model.family} does not draw rendered scenes, which "
            f"the default prompts describe"
        )
    size = config.evaluation_size
    remedy = f"must hold more than evaluation_size ({size}) prompts"
    check(len(prompts) > size, "prompts_file", config.prompts_file, remedy)
    teacher = teacher_of(pipeline)  # refuses a model that cannot teach, before pictures are made
    # In LlamaGen's folder only the transformer teaches; another drafter beside it changes nothing.
    fingerprint = weights_fingerprint(model.folder / "transformer" if model.family == "llamagen" else model.folder)
    # A model's default guidance is not among its weights, but decides its pictures and features.
    sampling = model.sampling(guidance_scale=None, temperature=None, top_k=None, top_p=None)
    settings, place = {"weights": fingerprint, **options.identity, **sampling}, Path(config.output) / "generated"
    drawn = generate_codes(pipeline, prompts, place, settings, config.seed, config.generation_batch_size)
    codes = drawn.to(device)
    heldout, heldout_codes = prompts[:size], codes[:size]
    prompts, codes = prompts[size:], codes[size:]
    if config.codes:
        if not model.draws_scenes or stored_pictures is None:
            raise UserError("codes: a store holds rendered scenes, which this model does not draw; leave it out")
        captions, stored = stored_pictures(config.codes, config.num_stored_images, pipeline.vqvae)
        prompts, codes = [*prompts, *captions], torch.cat((codes, stored.to(codes)))
    identity = {"target": fingerprint, **options.identity, **sampling}
    return Lessons(teacher, prompts, codes, heldout, heldout_codes, identity)


def generate_codes(
    pipeline: Any, prompts: Sequence[str], folder: Path, settings: dict[str, Any], seed: int = 0, batch_size: int = 32
) -> Tensor:
    """Codes int64 [len(prompts), N] of one picture for each prompt, by the pipeline's default settings; see
    `keep_batches`. Picture i has the seed `seed + i`. Raises UserError for a folder of other settings or prompts."""

    def draw(numbers: range) -> Tensor:
        generators = [torch.Generator().manual_seed(seed + number) for number in numbers]
        chosen = [prompts[number] for number in numbers]
        return pipeline(chosen, generator=generators, output_type="latent").tokens.to("cpu", torch.int32)

    described = {**settings, "seed": seed, "batch_size": batch_size}
    whose = {"name": "drawn", "holds": "pictures", "argument": "output"}
    return torch.cat(keep_batches(draw, len(prompts), batch_size, folder, described, prompts=prompts, **whose)).long()
