"""Published LANTERN drafters as folders of `EagleHead` (LlamaGen) and `ChameleonHead` (Lumina-mGPT, Anole).

Belongs here: every name that only those files use. Does not belong here: the networks (`vargen.drafters.eagle_head`,
`vargen.drafters.chameleon_head`) and weights of their targets.

Source: github.com/jadohu/LANTERN, `models/drafters/cnets_llamagen.py`, `cnets_lumina_mgpt.py` and `cnets_anole.py`, and
the layout of `jadohu/llamagen_drafter` and `jadohu/llamagen2_drafter`. LlamaGen's have one norm,
`post_attention_layernorm`, and padding of the prompt is neither trimmed nor masked. All have a token embedding of their
own, and the target's output head, which is in no file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vargen.base.bounds import check_number
from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.checkpoints.foreign_weights import load_strictly, read_tensors
from vargen.checkpoints.model_folder import check_new_folder, read_json
from vargen.drafters.chameleon_head import ChameleonHead
from vargen.drafters.eagle_head import EagleHead
from vargen.runs.files import atomic_folder

LANTERN_GRID_SIZES = {"t2i": 16, "t2i2": 32}
"""Side of the token grid by `input_type`: 256 and 512 pixels."""

_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_NAMES = {
    "embed_tokens.weight": "token_embedding.weight",
    "layers.0.self_attn.o_proj.weight": "attn.to_out.weight",
    "layers.0.post_attention_layernorm.weight": "norm2.weight",
    "layers.0.mlp.down_proj.weight": "ff.down_proj.weight",
}
_JOINED = {
    "attn.to_qkv.weight": [f"layers.0.self_attn.{name}_proj.weight" for name in ("q", "k", "v")],
    "ff.gate_up_proj.weight": [f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")],
}


_JOINED_NORMS = {
    f"attn.norm.{kind}": [f"layers.0.self_attn.{name}_norm.{kind}" for name in ("q", "k")]
    for kind in ("weight", "bias")
}


def convert_lantern_state_dict(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """A published drafter's weights under the names of `EagleHead`; unknown keys stay, and are refused when loaded."""
    joined = {key for parts in _JOINED.values() for key in parts}
    converted = {_NAMES.get(key, key): tensor for key, tensor in published.items() if key not in joined}
    for name, parts in _JOINED.items():
        if all(key in published for key in parts):
            converted[name] = torch.cat([published[key] for key in parts])
    return converted


def convert_chameleon_state_dict(published: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """The weights of a drafter for a Chameleon under the names of `ChameleonHead`; unknown keys stay.

    Norms of queries and keys are stored once a shard, [shards, head_dim], and repeated for every head of it.
    """
    names = {"layers.0.input_layernorm.weight": "norm1.weight"}
    converted = {names.get(key, key): tensor for key, tensor in convert_lantern_state_dict(published).items()}
    for name, parts in _JOINED_NORMS.items():
        stored = [converted.pop(part) for part in parts if part in converted]
        if len(stored) == len(parts) and all(len(norm) and num_heads % len(norm) == 0 for norm in stored):
            converted[name] = torch.cat([norm.repeat_interleave(num_heads // len(norm), 0) for norm in stored])
        else:
            converted |= dict(zip(parts, stored, strict=False))
    return converted


def infer_chameleon_config(config: dict[str, Any], source: Path) -> dict[str, Any]:
    """Arguments of `ChameleonHead` from a published config.json.

    Raises:
        UserError: a field is missing, or the drafter is of another kind.
    """
    sizes, heads = _read_sizes(config, source, "Lumina-mGPT or Anole"), config["num_attention_heads"]
    if config.get("num_key_value_heads", heads) != heads or config.get("swin_norm") or config.get("rope_scaling"):
        raise UserError(f"{source} has grouped heads, swin_norm or rope_scaling; a LANTERN drafter has none of them")
    return {**sizes, "rope_base": float(config.get("rope_theta", 10000.0))}


def _read_sizes(config: dict[str, Any], source: Path, model: str, *more: str) -> dict[str, Any]:
    """The arguments that both heads have. Raises UserError where a field is missing or out of range."""
    for name in (*_SIZES, "rms_norm_eps", *more):
        if name not in config:
            raise UserError(f"{source} lacks {name!r}; it is not the config of a LANTERN drafter for {model}")
        if name in _SIZES:
            check_number(f"{source}: {name}", config[name], 1, 2**24)
    check_number(f"{source}: rms_norm_eps", config["rms_norm_eps"], 0.0, 1.0)
    for name in ("rope_base", "rope_theta"):
        check_number(f"{source}: {name}", config.get(name, 10000.0), 1.0, 1e12)
    if config["hidden_size"] % (2 * config["num_attention_heads"]):
        raise UserError(f"{source}: hidden_size must be num_attention_heads times an even number; copy it again")
    if config.get("num_hidden_layers", 1) != 1:
        raise UserError(f"{source} has {config['num_hidden_layers']} layers; a LANTERN drafter has one")
    same = {name: config[name] for name in _SIZES if name != "hidden_size"}
    return {"dim": config["hidden_size"], **same, "norm_eps": config["rms_norm_eps"]}


def infer_drafter_config(config: dict[str, Any], source: Path) -> dict[str, Any]:
    """Arguments of `EagleHead` from a published config.json.

    Raises:
        UserError: a field is missing, or the drafter is of another kind.
    """
    sizes = _read_sizes(config, source, "LlamaGen", "input_type")
    if config["input_type"] not in LANTERN_GRID_SIZES:
        raise UserError(
            f"{source} has input_type {config['input_type']!r}; known: {', '.join(LANTERN_GRID_SIZES)} (text to image)"
        )
    return {
        **sizes,
        "grid_size": LANTERN_GRID_SIZES[config["input_type"]],
        "rope_base": float(config.get("rope_base", 10000.0)),
        "attend_to_padding": True,
    }


def convert_lantern_drafter(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> EagleHead | ChameleonHead:
    """Read a published drafter's folder and write one for `--method_options.drafter FOLDER`.

    Args:
        source: folder with `config.json` and `pytorch_model.bin` or `model.safetensors`.
        output: the folder to write; it appears only when all went well.
        dtype: precision in which it is stored; None keeps the file's.
        overwrite: replace a folder that exists.

    Raises:
        UserError: something is missing, truncated or of the wrong kind.
    """
    source, output = Path(source), Path(output)
    check_new_folder(output, overwrite)
    if not source.is_dir():
        raise UserError(f"drafter must be a folder with config.json and weights, but {source} is not a folder.")
    config = read_json(source / "config.json")
    path, weights = _read_weights(source)
    drafter: EagleHead | ChameleonHead
    with reading(source, "download it again"), torch.device("meta"):
        if config.get("model_type") == "chameleon":
            drafter = ChameleonHead(**infer_chameleon_config(config, source / "config.json"))
            weights = convert_chameleon_state_dict(weights, drafter.config.num_attention_heads)
        else:
            drafter = EagleHead(**infer_drafter_config(config, source / "config.json"))
            weights = convert_lantern_state_dict(weights)
    load_strictly(drafter, weights, path)
    if dtype is not None:
        torch.nn.Module.to(drafter, dtype)  # as the transformer in vargen.jobs.conversion: diffusers' own warns
    with atomic_folder(output) as folder:
        drafter.save_pretrained(folder)
    return drafter.eval()


def _read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path := folder / name).is_file():
            return path, read_tensors(path, "drafter")
    raise UserError(f"{folder} holds neither model.safetensors nor pytorch_model.bin; download it again.")
