"""The runs behind `vargen convert llamagen` and `vargen convert folder`: to folders that the pipeline loads.

Belongs here: checks that official files fit each other, and writing folders. Does not belong here: what official files
look like (`vargen.models.llamagen.convert`), and old names (`vargen.models.model_folder`).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from vargen.base.errors import UserError
from vargen.models.llamagen.convert import (
    infer_transformer_config,
    load_text_encoder,
    load_transformer,
    load_vq_model,
    published_size,
    read_checkpoint,
)
from vargen.models.llamagen.vq import downsampling_factor
from vargen.models.model_folder import (
    RENAMED_CLASSES,
    RENAMED_COMPONENTS,
    check_new_folder,
    index_text,
    read_json,
    renamed_index,
)
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.runs.files import atomic_folder


@dataclass(frozen=True)
class LlamaGenConversion:
    """What was converted.

    Attributes:
        output: the folder written.
        size: the published name, such as "XL"; None for other geometry.
        condition_type: "class" or "text".
        grid_size: side of the token grid.
        num_parameters: of the transformer.
    """

    output: Path
    size: str | None
    condition_type: str
    grid_size: int
    num_parameters: int


def convert_llamagen(
    transformer: str | os.PathLike[str],
    vqvae: str | os.PathLike[str],
    text_encoder: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    image_size: int | None = None,
    num_attention_heads: int | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> LlamaGenConversion:
    """Convert official files and write a folder for `LlamaGenPipeline.from_pretrained`.

    Args:
        transformer: a transformer's .pt file, as released (`c2i_*.pt`, `t2i_*.pt`) or as the trainers save it.
        vqvae: the tokenizer's file that was released with it.
        text_encoder: a transformers folder with google/flan-t5-xl and its tokenizer. Needed for text, refused
            for classes.
        output: the folder to write; it appears only when all went well.
        image_size: pixels of a side. No file holds it: 256 for `*_256.pt`, 384 for `*_384.pt`, 512 for `*_512.pt`.
        num_attention_heads: needed only for a geometry that was never published; no file holds it either.
        dtype: precision in which the transformer is stored; None keeps the file's. The tokenizer always keeps its own.
        overwrite: replace a folder that exists.

    Raises:
        UserError (a ValueError): an argument is missing, a file is missing, truncated or of the wrong kind, or the
            parts do not belong together.
    """
    if output is None:
        raise UserError("output must be given: the folder to write the converted pipeline to.")
    output = Path(output)
    check_new_folder(output, overwrite)
    if image_size is None:
        raise UserError(
            "image_size must be given, no file holds it: 256 for files named *_256.pt, 384 for *_384.pt, 512 for "
            "*_512.pt."
        )

    tokenizer_model = load_vq_model(read_checkpoint(vqvae, "vqvae"), vqvae)
    factor = downsampling_factor(tokenizer_model)
    if image_size <= 0 or image_size % factor:
        raise UserError(f"image_size must be a positive multiple of {factor}, a token's side, got {image_size}.")

    official = read_checkpoint(transformer, "transformer")
    config = infer_transformer_config(official, num_attention_heads)
    config["grid_size"] = image_size // factor
    num_codes = tokenizer_model.config["num_vq_embeddings"]
    if config["vocab_size"] != num_codes:
        raise UserError(
            f"vqvae must hold the tokenizer of transformer: it has {num_codes} codes, the transformer "
            f"{config['vocab_size']}."
        )
    model = load_transformer(official, config, transformer)
    if dtype is not None:
        torch.nn.Module.to(model, dtype)  # diffusers' own warns of modules to be kept in float32; there are none
    tokenizer, encoder = load_text_encoder(text_encoder, config)
    pipeline = LlamaGenPipeline(transformer=model, vqvae=tokenizer_model, text_encoder=encoder, tokenizer=tokenizer)
    with atomic_folder(output) as folder:
        pipeline.save_pretrained(folder, safe_serialization=True)
    return LlamaGenConversion(
        output=output,
        size=published_size(config["dim"], config["num_layers"]),
        condition_type=config["condition_type"],
        grid_size=config["grid_size"],
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def convert_folder(
    source: str | os.PathLike[str], output: str | os.PathLike[str], *, overwrite: bool = False
) -> dict[str, str]:
    """Copy a model folder of an earlier version under the names of this one.

    Args:
        source: a folder with a `model_index.json`.
        output: the folder to write; it appears only when all went well.
        overwrite: replace a folder that exists.

    Returns:
        What was renamed, old names to new ones; empty if nothing had to be.

    Raises:
        UserError: there is no such folder, or `output` exists or lies inside it.
    """
    source, output = Path(source), Path(output)
    check_new_folder(output, overwrite)
    if source.resolve() in (output.resolve(), *output.resolve().parents):
        raise UserError(f"output must lie outside {source}, got {output}; choose another path")
    index = read_json(source / "model_index.json")
    renamed = renamed_index(index)
    with atomic_folder(output) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for old, new in RENAMED_COMPONENTS.items():
            if (folder / old).is_dir():
                (folder / old).rename(folder / new)
        for name, value in renamed.items():
            config = folder / name / "config.json"
            if isinstance(value, list) and config.is_file() and "_class_name" in (content := read_json(config)):
                config.write_text(index_text(content | {"_class_name": value[1]}))
        (folder / "model_index.json").write_text(index_text(renamed))
    changed = {old: new for old, new in RENAMED_COMPONENTS.items() if old in index}
    changed |= {old: new for (_, old), (_, new) in RENAMED_CLASSES.items() if old in json.dumps(index)}
    return changed
