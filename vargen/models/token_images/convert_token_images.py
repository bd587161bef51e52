"""Published files of families that draw token by token, as models of diffusers and transformers.

Belongs here: reading the authors' files, and every name that only they use: checkpoints of VQGANs, Meta's layout of
Chameleon (in which Anole ships), norms stored once a shard (Lumina-mGPT). Does not belong here: the renaming of a VQGAN
(`vargen.models.vqgan`), and writing a folder (`vargen.jobs.conversion`).

Sources: `chameleon/inference/transformer.py` and `loader.py` of GAIR-NLP/anole at af563fa1, and the description of
Chameleon's weights in transformers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, PreTrainedTokenizerFast

from vargen.base.bounds import check_number
from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.checkpoints.foreign_weights import StateDict, load_strictly, read_tensors
from vargen.checkpoints.model_folder import MAX_LAYERS, read_json
from vargen.models.vqgan import CODEBOOK, infer_vqgan_config

# ---------------------------------------------------------------------------------------------------------------------
# VQGAN

_INSIDE_A_MODEL = "model.vqmodel."
"""Where transformers' classes keep a VQGAN."""
_OF_TRAINING = ("loss.", "model_ema.", "epoch", "global_step")


def read_vqgan(path: str | os.PathLike[str], argument: str = "checkpoint") -> StateDict:
    """The weights of a VQGAN under its authors' names, without those that only training needs.

    Args:
        path: a pickled checkpoint (.ckpt, .pt, .pth, .bin), of which only tensors are read, or a .safetensors file; a
            folder with .safetensors files, such as that of a whole Chameleon.
        argument: names it in errors.

    Raises:
        UserError: it is missing, unreadable, or holds something else.
    """
    path = Path(path)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        absence = "holds no .safetensors file" if path.is_dir() else "does not exist"
        raise UserError(f"{argument} must be a VQGAN's file, such as vqgan.ckpt, but {path} {absence}.")
    found: dict[str, Any] = {}
    for file in files:
        found |= read_tensors(file, argument)
    if (inside := f"{_INSIDE_A_MODEL}{CODEBOOK}") in found:
        found = {key.removeprefix(_INSIDE_A_MODEL): found[key] for key in found if key.startswith(_INSIDE_A_MODEL)}
        if not any(key.startswith("decoder.") for key in found):
            raise UserError(
                f"{argument}: {path} has {inside} but no decoder, so it makes no pictures; give the VQGAN's own file"
            )
    if CODEBOOK not in found:
        raise UserError(f"{argument} must be a VQGAN, but {path} holds no {CODEBOOK!r}; give its tokenizer's file.")
    return {key: value for key, value in found.items() if not key.startswith(_OF_TRAINING)}


# ---------------------------------------------------------------------------------------------------------------------
# Norms of queries and keys


def norms_per_head(weights: Mapping[str, Tensor], num_heads: int, num_key_value_heads: int) -> StateDict:
    """Weights of a Chameleon with a norm of queries and keys for every head, as transformers has it.

    Lumina-mGPT and the Chameleon of 2024 store them once a shard, [shards, head_dim], and repeat them while they run.
    All other weights stay as they are, and so do norms that are stored for every head.

    Raises:
        UserError: the number of shards does not divide the number of heads.
    """
    repeated: StateDict = {}
    for key, tensor in weights.items():
        found = re.search(r"\.self_attn\.([qk])_norm\.(weight|bias)$", key)
        if found is not None:
            heads, stored = (num_heads if found[1] == "q" else num_key_value_heads), len(tensor)
            if stored == 0 or heads % stored:
                raise UserError(f"{key} is stored for {stored} shards, which do not share {heads} heads evenly")
            tensor = tensor.repeat_interleave(heads // stored, 0) if stored != heads else tensor
        repeated[key] = tensor
    return repeated


# ---------------------------------------------------------------------------------------------------------------------
# Meta's layout of Chameleon

_CHAMELEON_NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_ROTATED = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.q_normalization": "self_attn.q_norm",
    "attention.k_normalization": "self_attn.k_norm",
}
"""What rotary embedding turns: channels 2 i and 2 i + 1 together in Meta's layout, i and i + D / 2 in transformers'."""
_NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
_END_OF_TURN, _UNUSED, _IMAGE = "<reserved08706>", "<reserved08707>", "<image>"
_CONTEXT = 4096


@dataclass(frozen=True)
class MetaChameleon:
    """A folder in Meta's layout, read but for the weights of its language model.

    Args:
        checkpoint: `consolidated.pth`.
        config: of transformers.
        tokenizer: its words.
        vqgan: weights of its VQGAN, under their authors' names.
    """

    checkpoint: Path
    config: ChameleonConfig
    tokenizer: PreTrainedTokenizerFast
    vqgan: StateDict


def read_meta_chameleon(folder: str | os.PathLike[str]) -> MetaChameleon:
    """A published folder such as GAIR/Anole-7b-v0.1.

    Args:
        folder: holds `models/7b` with consolidated.pth and params.json, and `tokenizer` with text_tokenizer.json and
            vqgan.ckpt.

    Raises:
        UserError: a file is missing or damaged, or the weights are spread over several.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"checkpoint must be a folder in Meta's layout, but {folder} is not a folder.")
    checkpoints = sorted(folder.glob("models/*/consolidated*.pth")) or sorted(folder.glob("consolidated*.pth"))
    if len(checkpoints) != 1:
        raise UserError(
            f"checkpoint must be a folder with one models/7b/consolidated.pth, but {folder} holds {len(checkpoints)}; "
            "a model in several files, such as Chameleon's 30B, cannot be converted"
        )
    beside = checkpoints[0].parent
    params = read_json(beside / "params.json")
    inner = params.get("model")
    params |= inner if isinstance(inner, dict) else {}
    if (beside / "consolidate_params.json").is_file():
        params |= read_json(beside / "consolidate_params.json")
    for name, most in (("dim", 2**20), ("n_layers", MAX_LAYERS), ("n_heads", 2**20), ("n_kv_heads", 2**20)):
        if name != "n_kv_heads" or params.get(name) is not None:
            check_number(f"{beside / 'params.json'}: {name}", params.get(name), 1, most)
    if params["dim"] % (2 * params["n_heads"]):
        raise UserError(f"{beside / 'params.json'}: dim must be n_heads times an even number, got {params['dim']}")
    vqgan = read_vqgan(folder / "tokenizer" / "vqgan.ckpt", "checkpoint")
    tokenizer = _read_tokenizer(folder / "tokenizer" / "text_tokenizer.json")
    vocabulary = tokenizer.get_vocab()
    config = _chameleon_config(params, vocabulary, infer_vqgan_config(vqgan), beside / "params.json")
    return MetaChameleon(checkpoints[0], config, tokenizer, vqgan)


def _read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Chameleon's words, with a token of no use named "<image>", as transformers' class expects it."""
    content = read_json(path)
    with reading(path, "download it again"):
        words = content["model"]["vocab"]
        if _IMAGE not in words:
            words[_IMAGE] = words.pop(_UNUSED)
        for token in content.get("added_tokens", ()):
            if token["content"] == _UNUSED:
                token["content"] = _IMAGE
        names = {name: word for name, word in _NAMED.items() if word in words}
        own = Tokenizer.from_str(json.dumps(content))
        return PreTrainedTokenizerFast(tokenizer_object=own, sep_token=_END_OF_TURN, **names)


def _chameleon_config(
    params: Mapping[str, Any], vocabulary: Mapping[str, int], vqgan: Mapping[str, Any], source: Path
) -> ChameleonConfig:
    channels = vqgan["block_out_channels"]
    attended = [level for level, kind in enumerate(vqgan["down_block_types"]) if kind.startswith("Attn")]
    with reading(source, "download it again"):
        return ChameleonConfig(
            vocab_size=max(params.get("vocab_size") or 0, len(vocabulary)),
            hidden_size=params["dim"],
            intermediate_size=params["dim"],  # of the weights, see `convert_meta_chameleon`
            num_hidden_layers=params["n_layers"],
            num_attention_heads=params["n_heads"],
            num_key_value_heads=params.get("n_kv_heads") or params["n_heads"],
            rms_norm_eps=params.get("norm_eps", 1e-5),
            rope_parameters={"rope_type": "default", "rope_theta": float(params.get("rope_theta") or 10000.0)},
            max_position_embeddings=_CONTEXT,
            model_parallel_size=params.get("model_parallel_size", 1),
            swin_norm=bool(params.get("swin_norm", False)),
            bos_token_id=vocabulary.get("<s>"),
            eos_token_id=vocabulary.get("</s>"),
            pad_token_id=vocabulary.get("<pad>"),
            vocabulary_map=dict(sorted(vocabulary.items(), key=lambda item: item[1])),
            vq_config={
                "base_channels": channels[0],
                "channel_multiplier": [width // channels[0] for width in channels],
                "num_res_blocks": vqgan["layers_per_block"],
                "num_embeddings": vqgan["num_vq_embeddings"],
                "embed_dim": vqgan["vq_embed_dim"],
                "latent_channels": vqgan["latent_channels"],
                "attn_resolutions": [512 // 2**level for level in attended],
            },
        )


def convert_meta_chameleon(found: MetaChameleon, dtype: torch.dtype | None = None) -> ChameleonForConditionalGeneration:
    """The language model of a folder, and the encoder of its VQGAN, in transformers' class and in eval mode.

    Args:
        found: see `read_meta_chameleon`.
        dtype: of the weights; None: that of the file.

    Raises:
        UserError: the file is unreadable, or its weights are not those of a Chameleon.
    """
    official = read_tensors(found.checkpoint, "checkpoint")
    config = found.config
    needed = ("tok_embeddings", "layers.0.attention.wo", "layers.0.feed_forward.w2", "output")
    for key in (f"{name}.weight" for name in needed):
        if key not in official or official[key].ndim != 2:
            raise UserError(f"checkpoint: {found.checkpoint} lacks {key}; it is not a Chameleon in Meta's layout")
    config.vocab_size = official["tok_embeddings.weight"].shape[0]
    config.intermediate_size = official["layers.0.feed_forward.w2.weight"].shape[1]
    with reading(found.checkpoint, "download it again"):
        weights = convert_chameleon_state_dict(official, config)
        if dtype is not None:
            weights = {key: tensor.to(dtype) for key, tensor in weights.items()}
        weights |= {
            f"{_INSIDE_A_MODEL}{key}": tensor.to(weights["lm_head.weight"].dtype)
            for key, tensor in found.vqgan.items()
            if not key.startswith("decoder.")
        }
        with torch.device("meta"):
            model = ChameleonForConditionalGeneration(config)
    load_strictly(model, weights, found.checkpoint)
    return model.eval()


def convert_chameleon_state_dict(official: StateDict, config: ChameleonConfig) -> StateDict:
    """Weights in Meta's layout under transformers' names.

    Channels that rotary embedding turns change their order within a head, in matrices, norms and biases alike. Fused
    matrices are split. `rope.freqs`, a table, is dropped. Unknown keys keep their names, which strict loading refuses.
    """
    heads, key_value_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    head_dim = config.hidden_size // heads
    converted: StateDict = {}
    for key, tensor in _split(official, heads * head_dim, key_value_heads * head_dim).items():
        layer = re.match(r"layers\.(\d+)\.(.*)\.(weight|bias)$", key)
        if key == "rope.freqs":
            continue
        if layer is None:
            converted[_CHAMELEON_NAMES.get(key, key)] = tensor
        elif layer[2] in _LAYER_NAMES:
            converted[f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"] = tensor
        elif layer[2] in _ROTATED and len(tensor.flatten()) % head_dim == 0:
            halves = tensor.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2)  # [H or 1, 2, D / 2, ...]
            tensor = halves.flatten(0, 2) if tensor.ndim == 2 else halves.flatten(1, 2)
            converted[f"model.layers.{layer[1]}.{_ROTATED[layer[2]]}.{layer[3]}"] = tensor.contiguous()
        else:
            converted[key] = tensor
    return norms_per_head(converted, heads, key_value_heads)


def _split(official: StateDict, queries: int, keys: int) -> StateDict:
    """The same weights with the matrices that some files fuse as several, all views."""
    apart: StateDict = {}
    for key, tensor in official.items():
        if key.endswith("attention.wqkv.weight") and len(tensor) == queries + 2 * keys:
            for name, part in zip("qkv", tensor.split((queries, keys, keys)), strict=True):
                apart[key.replace("wqkv", f"w{name}")] = part
        elif key.endswith("feed_forward.w13.weight") and len(tensor) % 2 == 0:
            for name, part in zip("13", tensor.chunk(2), strict=True):
                apart[key.replace("w13", f"w{name}")] = part
        else:
            apart[key] = tensor
    return apart
