"""Published weights to folders that `vargen generate` takes.

Belongs here: the settings of a conversion, which files belong together, and writing the folder. Does not belong here:
the layout of published files (`convert_llamagen.py`, `convert_token_images.py`, `convert_draft_head.py`). Importing
this imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import MAX_PIXELS
from vargen.base.errors import UserError
from vargen.base.options import OUTPUT, Settings, option
from vargen.base.path_roles import READ, READ_FILE, READ_FOLDER, REPLACED
from vargen.checkpoints.model_folder import check_new_folder
from vargen.checkpoints.options import DTYPES
from vargen.runs.files import atomic_folder

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class _OutputConfig(Settings):
    """What to convert."""

    output: str = option(path=REPLACED, group=OUTPUT)
    """Folder to write. It appears only when all went well."""
    overwrite: bool = option(False, group=OUTPUT)
    """Replace the folder if it exists."""


@dataclass(frozen=True, kw_only=True)
class ConvertVqganConfig(_OutputConfig):
    """What to convert."""

    checkpoint: str = option(path=READ)
    """File of a VQGAN, such as vqgan.ckpt of Chameleon (Lumina-mGPT, Anole, Liquid), model.ckpt of
    BAAI/Emu3.5-VisionTokenizer, or movqgan_270M.ckpt of ai-forever/MoVQGAN (Lumina-mGPT 2.0)."""


@dataclass(frozen=True, kw_only=True)
class _PrecisionConfig(_OutputConfig):
    """What to convert."""

    dtype: str | None = option(None, choices=DTYPES[1:])
    """Precision in which the model is stored, float32, bfloat16 or float16; null keeps the file's."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(_PrecisionConfig):
    """What to convert."""

    transformer: str = option(path=READ_FILE)
    """Official transformer file, such as t2i_XL_stage1_256.pt."""
    vqvae: str = option(path=READ)
    """Official tokenizer file that was released with it, such as vq_ds16_t2i.pt."""
    image_size: int = option(least=16, most=MAX_PIXELS)
    """Side of a picture in pixels, which no file holds: 256 for *_256.pt, 384 for *_384.pt, 512 for *_512.pt."""
    text_encoder: str | None = option(None, path=READ_FOLDER)
    """Folder with google/flan-t5-xl and its tokenizer, for text-conditional files only."""
    num_attention_heads: int | None = option(None, least=1, most=1_024)
    """Number of heads, needed only for a geometry that was never published."""


@dataclass(frozen=True, kw_only=True)
class ConvertAnoleConfig(_PrecisionConfig):
    """What to convert."""

    checkpoint: str = option(path=READ)
    """Folder in Meta's layout, such as GAIR/Anole-7b-v0.1, with models/7b/consolidated.pth and tokenizer/."""


@dataclass(frozen=True, kw_only=True)
class ConvertDrafterConfig(_PrecisionConfig):
    """What to convert."""

    drafter: str = option(path=READ_FOLDER)
    """Folder of a published LANTERN drafter for LlamaGen (such as jadohu/llamagen_drafter), Lumina-mGPT or Anole
    (jadohu/anole_drafter)."""


def _torch_dtype(dtype: str | None) -> torch.dtype | None:
    import torch

    return None if dtype is None else getattr(torch, dtype)


def convert_llamagen(config: ConvertConfig) -> dict[str, Any]:
    """Convert official files, and write a folder for `LlamaGenPipeline.from_pretrained`.

    Returns:
        The folder, the published size, such as "XL" (None for another geometry), the condition ("class" or "text"), the
        side of the token grid, and the number of parameters of the transformer.

    Raises:
        UserError: a file is missing, truncated or of the wrong kind, or the parts do not belong together.
    """
    import torch

    from vargen.models.llamagen import convert_llamagen as convert
    from vargen.models.llamagen.vq import downsampling_factor
    from vargen.pipelines.llamagen import LlamaGenPipeline

    output = Path(config.output)
    check_new_folder(output, config.overwrite)
    vqvae = convert.load_vq_model(convert.read_checkpoint(config.vqvae, "vqvae"), config.vqvae)
    factor = downsampling_factor(vqvae)
    if config.image_size % factor:
        raise UserError(f"image_size must be a positive multiple of {factor}, a token's side, got {config.image_size}.")

    official = convert.read_checkpoint(config.transformer, "transformer")
    geometry = convert.infer_transformer_config(official, config.num_attention_heads)
    geometry["grid_size"] = config.image_size // factor
    num_codes = vqvae.config["num_vq_embeddings"]
    if geometry["vocab_size"] != num_codes:
        has = f"it has {num_codes} codes, the transformer {geometry['vocab_size']}."
        raise UserError(f"vqvae must hold the tokenizer of transformer: {has}")
    transformer = convert.load_transformer(official, geometry, config.transformer)
    if (dtype := _torch_dtype(config.dtype)) is not None:
        torch.nn.Module.to(transformer, dtype)  # diffusers' own warns of modules to be kept in float32; there are none
    tokenizer, encoder = convert.load_text_encoder(config.text_encoder, geometry)
    pipeline = LlamaGenPipeline(transformer=transformer, vqvae=vqvae, text_encoder=encoder, tokenizer=tokenizer)
    with atomic_folder(output) as folder:
        pipeline.save_pretrained(folder, safe_serialization=True)
    return {
        "output": str(output),
        "size": convert.published_size(geometry["dim"], geometry["num_layers"]),
        "condition_type": geometry["condition_type"],
        "grid_size": geometry["grid_size"],
        "num_parameters": sum(parameter.numel() for parameter in transformer.parameters()),
    }


def convert_vqgan(config: ConvertVqganConfig) -> dict[str, Any]:
    """Convert a published picture tokenizer, and write a folder of `diffusers.VQModel`.

    Returns:
        The folder, the number of codes, pixels along a code's side, and the number of parameters.

    Raises:
        UserError: the file is missing, truncated or of the wrong kind.
    """
    from vargen.models.token_images.convert_token_images import read_vqgan
    from vargen.models.vqgan import load_vqgan

    check_new_folder(Path(config.output), config.overwrite)
    vqvae = load_vqgan(read_vqgan(config.checkpoint), config.checkpoint)
    with atomic_folder(Path(config.output)) as folder:
        vqvae.save_pretrained(folder)
    return {
        "output": config.output,
        "num_codes": vqvae.config["num_vq_embeddings"],
        "pixels_a_code": 2 ** (len(vqvae.config["block_out_channels"]) - 1),
        "num_parameters": sum(parameter.numel() for parameter in vqvae.parameters()),
    }


def convert_anole(config: ConvertAnoleConfig) -> dict[str, Any]:
    """Convert a Chameleon in Meta's layout, and write a folder in that of transformers, with its pixels in "vqvae".

    Returns:
        The folder, the number of layers, the number of codes, and the number of parameters of the language model.

    Raises:
        UserError: a file is missing, truncated or of the wrong kind.
    """
    from vargen.models.token_images.anole import ANOLE
    from vargen.models.token_images.convert_token_images import convert_meta_chameleon, read_meta_chameleon
    from vargen.models.token_images.token_image_loading import save_family_model
    from vargen.models.vqgan import load_vqgan

    check_new_folder(Path(config.output), config.overwrite)
    found = read_meta_chameleon(config.checkpoint)
    vqvae = load_vqgan(found.vqgan, config.checkpoint)
    model = convert_meta_chameleon(found, _torch_dtype(config.dtype))
    with atomic_folder(Path(config.output)) as folder:
        save_family_model(model, ANOLE, folder)
        found.tokenizer.save_pretrained(folder)
        vqvae.save_pretrained(folder / "vqvae")
    return {
        "output": config.output,
        "num_layers": found.config.num_hidden_layers,
        "num_codes": vqvae.config["num_vq_embeddings"],
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def convert_drafter(config: ConvertDrafterConfig) -> dict[str, Any]:
    """Convert a published LANTERN drafter, and write a folder for `--method_options.drafter FOLDER`.

    Returns:
        The folder, the side of the token grid (None for a drafter of any grid), and the number of parameters.

    Raises:
        UserError: a file is missing, truncated or of the wrong kind.
    """
    from vargen.drafters.convert_draft_head import convert_lantern_drafter

    drafter = convert_lantern_drafter(
        config.drafter, config.output, dtype=_torch_dtype(config.dtype), overwrite=config.overwrite
    )
    return {
        "output": config.output,
        "grid_size": drafter.config.get("grid_size"),
        "num_parameters": sum(parameter.numel() for parameter in drafter.parameters()),
    }
