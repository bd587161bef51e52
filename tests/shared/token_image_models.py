"""Tiny models of families that draw token by token, in the files that their authors publish, and tokenizers for them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from official_layout import fill_by_rule, golden
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES
from vargen.models.token_images.description import CodeIds, Sizes, TokenImageFamily

FAMILY_OF = {"emu35_tiny": "emu3_5", "lumina_mgpt_tiny": "lumina_mgpt", "simplear_tiny": "simplear"}
"""Goldens of language models in tests/golden, and whose they are."""
SIDE_OF_A_CODE = 16


def letters(code: int) -> str:
    """Chameleon's name of a code."""
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(code)) + "Z"


def golden_family(name: str) -> TokenImageFamily:
    """The description with the number of codes, and any size, of a golden."""
    description, ids = golden(name)[0], golden(name)[0]["ids"]
    family = TOKEN_IMAGE_FAMILIES[FAMILY_OF[name]]
    if family.codes.first != "named":
        count = description["language_model"]["vocab_size"] - ids["first_code"]
        first: Any = "last" if family.codes.first == "last" else ids["first_code"]
        family = replace(family, codes=CodeIds(first, count, family.codes.behind_text))
    return replace(family, sizes=Sizes(SIDE_OF_A_CODE, usual=(2, 2)))


def golden_folder(name: str, folder: Path) -> Path:
    """The language model of a golden as its authors publish it: their config.json, and weights under their names."""
    description = golden(name)[0]
    weights = fill_by_rule(description["state_dict"], f"{description['salt']}/lm")
    ids = description["ids"]
    if "text_head_factor" in description:
        weights["lm_head.weight"][: ids["first_code"]] *= description["text_head_factor"]
    family = TOKEN_IMAGE_FAMILIES[FAMILY_OF[name]]
    config = {**description["language_model"], "model_type": family.model_type, "auto_map": {"AutoConfig": "x.Y"}}
    if family.model_type == "chameleon":
        codes = {letters(code): ids["first_code"] + code for code in range(ids["codes"])}
        config["vocabulary_map"] = {**codes, **family.marks, "<image>": 8_711}
        config["vq_config"] = SMALL_VQ
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in weights.items()}, folder / "model.safetensors")
    return folder


SMALL_VQ = {
    "embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "resolution": 32, "base_channels": 32,
    "channel_multiplier": [1, 1], "num_res_blocks": 1,
}  # fmt: skip
"""Of the encoder that a Chameleon's class holds, which nothing here uses."""
