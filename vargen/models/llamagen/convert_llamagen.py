"""Official LlamaGen weights as models of this project.

Belongs here: reading the authors' files, and every name that only they use. Does not belong here: the models, and
writing a pipeline's folder (`vargen.jobs.conversion`).

Source: github.com/FoundationVision/LlamaGen, `autoregressive/models/gpt.py`, `tokenizer/tokenizer_image/vq_model.py`
and the loaders of its samplers. Two things in its files cannot be checked, because the shapes agree: the image size
(no weight depends on it, so it must be given), and which of the VQ-16 tokenizers belongs to a transformer
(`vq_ds16_c2i.pt` for classes, `vq_ds16_t2i.pt` for text).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel

from vargen.base.errors import UserError
from vargen.base.reading import reason_of
from vargen.checkpoints.foreign_weights import StateDict, load_converted, read_tensors
from vargen.checkpoints.model_folder import MAX_LAYERS, check_stored
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES, LlamaGenTransformer
from vargen.models.vqgan import CODEBOOK, convert_vqgan_state_dict, infer_vqgan_config

_MARKERS = {"transformer": "tok_embeddings.weight", "vqvae": CODEBOOK}
"""A key that only weights of that kind have; the kinds are options of `vargen convert llamagen`."""


def read_checkpoint(path: str | os.PathLike[str], kind: str) -> StateDict:
    """The weights in an official file, with or without a container.

    Args:
        path: the file.
        kind: "transformer" or "vqvae".

    Raises:
        UserError: the file is missing, unreadable, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        absence = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{kind} must be an official .pt file, but {path} {absence}.")
    official = read_tensors(path, kind)
    if _MARKERS[kind] in official:
        return official
    (other,) = _MARKERS.keys() - {kind}
    if _MARKERS[other] in official:
        raise UserError(f"{kind} must be a LlamaGen {kind}, but {path} holds a {other}; swap the two files.")
    raise UserError(f"{kind} must be a LlamaGen {kind}, but {path} holds no {_MARKERS[kind]!r}; download it again.")


# ---------------------------------------------------------------------------------------------------------------------
# Transformer


def published_size(dim: int, num_layers: int) -> str | None:
    """The published name of a geometry, such as "XL"; None for another one."""
    for name, geometry in LLAMAGEN_SIZES.items():
        if (geometry["dim"], geometry["num_layers"]) == (dim, num_layers):
            return name
    return None


def infer_transformer_config(official: StateDict, num_attention_heads: int | None = None) -> dict[str, Any]:
    """The config in the shapes of an official state dict, all of it but `grid_size`.

    Args:
        official: state dict with official keys.
        num_attention_heads: for geometry other than the published.

    Raises:
        UserError: the number of heads is unknown, or the shapes contradict each other.
    """

    def matrix(key: str) -> tuple[int, int]:
        if key not in official:
            raise UserError(f"transformer lacks {key}; the file is incomplete, download it again.")
        shape = tuple(official[key].shape)
        if len(shape) != 2 or 0 in shape:
            raise UserError(f"transformer holds {key} of shape {shape}, where a matrix belongs; download it again.")
        return shape

    vocab_size, dim = matrix(_MARKERS["transformer"])
    layers = {int(found[1]) for key in official if (found := re.match(r"layers\.(\d{1,9})\.", key))}
    num_layers = max(layers, default=-1) + 1
    qkv_rows, _ = matrix("layers.0.attention.wqkv.weight")
    intermediate_size, _ = matrix("layers.0.feed_forward.w1.weight")
    if num_layers > MAX_LAYERS:
        raise UserError(f"transformer has a layer {num_layers - 1}, more than {MAX_LAYERS}; download it again.")
    size = published_size(dim, num_layers)
    if num_attention_heads is None:
        if size is None:
            raise UserError(
                f"num_attention_heads must be given, no file holds it: width {dim} with {num_layers} layers is no "
                "published size."
            )
        num_attention_heads = LLAMAGEN_SIZES[size]["num_attention_heads"]
    if num_attention_heads <= 0 or dim % (4 * num_attention_heads):
        raise UserError(
            f"num_attention_heads must divide the width {dim} into multiples of 4, got {num_attention_heads}."
        )
    head_dim = dim // num_attention_heads
    num_key_value_heads, rest = divmod(qkv_rows - dim, 2 * head_dim)
    if num_key_value_heads <= 0 or rest or num_attention_heads % num_key_value_heads:
        raise UserError(
            f"transformer holds layers.0.attention.wqkv.weight of {qkv_rows} rows, which are not those of "
            f"{num_attention_heads} heads of {head_dim}; give another num_attention_heads, or download it again."
        )
    config: dict[str, Any] = {
        "dim": dim,
        "num_layers": num_layers,
        "num_attention_heads": num_attention_heads,
        "num_key_value_heads": num_key_value_heads,
        "intermediate_size": intermediate_size,
        "vocab_size": vocab_size,
    }
    null_caption, classes = "cls_embedding.uncond_embedding", "cls_embedding.embedding_table.weight"
    if null_caption in official:
        length, caption_dim = matrix(null_caption)
        config |= {"condition_type": "text", "condition_length": length, "caption_dim": caption_dim}
    elif classes in official:
        # One row more than classes: official models were trained with condition dropout, so they have the null class.
        config |= {"condition_type": "class", "condition_length": 1, "num_classes": matrix(classes)[0] - 1}
    else:
        raise UserError("transformer holds neither class nor caption embeddings; download it again.")
    return config


_TRANSFORMER_NAMES = {
    "tok_embeddings.weight": "token_embedding.weight",
    "cls_embedding.embedding_table.weight": "class_embedding.weight",
    "cls_embedding.cap_proj.fc1.weight": "caption_projection.linear_1.weight",
    "cls_embedding.cap_proj.fc2.weight": "caption_projection.linear_2.weight",
    "cls_embedding.uncond_embedding": "null_caption_embeds",
    "norm.weight": "norm_out.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attention.wqkv.weight": "attn.to_qkv.weight",  # rows [queries | keys | values] in both
    "attention.wo.weight": "attn.to_out.weight",
    "feed_forward.w2.weight": "ff.down_proj.weight",
    "ff.gate_up_proj.weight": "ff.gate_up_proj.weight",  # fused before it is renamed
    "attention_norm.weight": "norm1.weight",
    "ffn_norm.weight": "norm2.weight",
}


def convert_transformer_state_dict(official: StateDict) -> StateDict:
    """An official transformer's weights under the names of `LlamaGenTransformer`.

    `w1` and `w3` become one matrix, gate first. Only `freqs_cis` is dropped, the rotary table of older files. Unknown
    keys keep their names, and strict loading refuses them.
    """
    joined = {key: tensor for key, tensor in official.items() if key != "freqs_cis"}
    for gate in [key for key in joined if key.endswith(".feed_forward.w1.weight")]:
        if (up := gate.replace(".w1.", ".w3.")) in joined:
            fused = torch.cat((joined.pop(gate), joined.pop(up)))
            joined[gate.replace("feed_forward.w1", "ff.gate_up_proj")] = fused
    converted: StateDict = {}
    for key, tensor in joined.items():
        layer = re.match(r"layers\.(\d+)\.(.*)", key)
        own = None if layer is None else _LAYER_NAMES.get(layer[2])
        known = _TRANSFORMER_NAMES.get(key, key)
        converted[known if layer is None or own is None else f"transformer_blocks.{layer[1]}.{own}"] = tensor
    return converted


def load_transformer(
    official: StateDict, config: dict[str, Any], source: str | os.PathLike[str] = "transformer"
) -> LlamaGenTransformer:
    """A `LlamaGenTransformer` with official weights, in eval mode. Raises UserError unless every tensor fits."""
    return load_converted(LlamaGenTransformer, config, convert_transformer_state_dict, official, source)


# ---------------------------------------------------------------------------------------------------------------------
# Tokenizer


def convert_vq_state_dict(official: StateDict) -> StateDict:
    """An official tokenizer's weights under the names of `diffusers.VQModel`.

    The codebook becomes unit vectors: LlamaGen normalises it at every lookup, `VQModel` never does.
    `quantize.codebook_used`, a statistic of training, is dropped.
    """
    converted = convert_vqgan_state_dict({key: official[key] for key in official if key != "quantize.codebook_used"})
    if CODEBOOK in converted:
        converted[CODEBOOK] = F.normalize(converted[CODEBOOK].float(), dim=-1)
    return converted


def load_vq_model(official: StateDict, source: str | os.PathLike[str] = "vqvae") -> VQModel:
    """A `VQModel` with official weights, in eval mode. Raises UserError unless every tensor fits."""
    return load_converted(VQModel, infer_vqgan_config(official, "vqvae"), convert_vq_state_dict, official, source)


# ---------------------------------------------------------------------------------------------------------------------
# Text encoder


def load_text_encoder(path: str | os.PathLike[str] | None, config: dict[str, Any]) -> tuple[Any, Any]:
    """The tokenizer and encoder for a text-conditional transformer; None and None for a class-conditional one.

    Args:
        path: a transformers folder with google/flan-t5-xl and its tokenizer.
        config: of the transformer.

    Raises:
        UserError: it is needed and not given, given and not needed, damaged, or of another width.
    """
    if config["condition_type"] == "class":
        if path is not None:
            raise UserError("text_encoder must not be given: transformer is class-conditional.")
        return None, None
    if path is None:
        raise UserError("text_encoder must be given for a text-conditional transformer: a folder with flan-t5-xl.")
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise UserError(f"text_encoder must be a transformers folder, but {folder / 'config.json'} is missing.")

    check_stored(folder, "text_encoder")
    from safetensors import SafetensorError
    from transformers import AutoTokenizer, T5EncoderModel

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        loaded: Any = T5EncoderModel.from_pretrained(
            folder, dtype="auto", local_files_only=True, output_loading_info=True
        )
        text_encoder, loading = loaded
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise UserError(f"text_encoder: {folder} cannot be loaded ({reason_of(error)}); download it again.") from error
    if missing := sorted(loading["missing_keys"]):  # transformers would go on with random numbers
        raise UserError(f"text_encoder: {folder} lacks weights, such as {missing[0]}; download it again.")
    if text_encoder.config.d_model != config["caption_dim"]:
        raise UserError(
            f"text_encoder must give features of size {config['caption_dim']}, but {folder} gives "
            f"{text_encoder.config.d_model}; the official weights need flan-t5-xl."
        )
    tokenizer.model_max_length = config["condition_length"]
    text_encoder.config.clean_caption = True  # read by `vargen.models.llamagen.text_encoder.encode_text`
    return tokenizer, text_encoder.eval()
