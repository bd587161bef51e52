"""Tiny models of families that draw token by token, in their authors' files, and tokenizers for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers.models.autoencoders.vq_model import VQModel
from official_layout import fill_by_rule, golden
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from vqgans import vq_config

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
        config["vocabulary_map"] = {**codes, **family.special_tokens, "<image>": 8_711}
        config["vq_config"] = SMALL_VQ
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in weights.items()}, folder / "model.safetensors")
    return folder


CODES = 24
WORDS = [
    "<unk>", "<s>", "<|endoftext|>", "a", "dog", "cat", "runs", "red", "rain", "on", "sand", "Generate", "an", "image",
    ".", ":",
]  # fmt: skip
PROMPTS = ["a dog", "a red cat runs on sand", "the dog runs on sand"]
TINY = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
GRIDS = ((2, 4), (4, 2), (4, 4))


def tiny_family(name: str) -> TokenImageFamily:
    """A family with few codes and small pictures; its ids, prompts, grammar and guidance are its own. Cosmos
    has one number of codes, so SimpleAR's pixels are Liquid's."""
    family = TOKEN_IMAGE_FAMILIES[name]
    pixels = TOKEN_IMAGE_FAMILIES["liquid" if name == "simplear" else name].pixels
    first = len(_words(family)) if family.codes.first in ("last", 256_000) else family.codes.first
    codes = CodeIds("last" if family.codes.first == "last" else first, CODES, family.codes.behind_text)
    sizes = Sizes(family.sizes.pixels_a_code, usual=GRIDS[0], listed=GRIDS)
    return replace(family, codes=codes, sizes=sizes, vocab_size=None, pixels=pixels)


def _words(family: TokenImageFamily) -> dict[str, int]:
    """The vocabulary of a tokenizer, by ids that its marks leave free."""
    marks = {name: number for name, number in family.special_tokens.items() if number is not None}
    if family.name == "emu3_5":
        marks |= {"*": 9, **{str(digit): 15 + digit for digit in range(10)}}
    sizes = [f"<reserved{8800 + number:05d}>" for number in range(1, 9)] if "lumina" in family.name else []
    if family.name == "lumina_mgpt":
        marks |= {name: 8_804 + number for number, name in enumerate(sizes, 1)}
    names = [*WORDS, *(name for name in (*family.special_tokens, *sizes) if name not in marks)]
    taken = {*marks.values()}
    free = (number for number in range(30, 10_000) if number not in taken) if taken else iter(range(10_000))
    return {**marks, **{name: next(free) for name in names}}


def tiny_tokenizer(family: TokenImageFamily) -> PreTrainedTokenizerFast:
    """Knows `WORDS`, and the marks of a family under their ids."""
    words = _words(family)
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    named = [name for name in words if name.startswith("<")]
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in named])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")


def tiny_model(family: TokenImageFamily, seed: int = 0, **sizes: int) -> Any:
    """A model in float32 whose tokens differ from place to place; `sizes` instead of those of `TINY`."""
    model_class: Any = getattr(transformers, family.model_class)
    first = family.codes.first
    config = {**TINY, **sizes, **family.config}
    if family.model_class.startswith("Chameleon"):
        named = {letters(code): 4 + code for code in range(CODES)} if first == "named" else {}
        config |= {"vq_config": SMALL_VQ, "vocabulary_map": {**named, "<image>": 8_711}, "vocab_size": 9_216}
        config |= {"bos_token_id": _words(family)["<s>"], "eos_token_id": None}
        config["vocab_size"] = 9_216 if first == "named" else int(first) + CODES
    else:
        config["vocab_size"] = (len(_words(family)) if first == "last" else int(first)) + CODES
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**config, tie_word_embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "vqmodel" not in name and "norm" not in name:
                parameter.normal_(std=0.6)
        model.lm_head.weight.mul_(0.7)
    return model.eval()


def tiny_vqvae(family: TokenImageFamily) -> VQModel:
    """Makes pictures of a family's codes."""
    levels = family.sizes.pixels_a_code.bit_length()
    torch.manual_seed(5)
    settings = vq_config((32,) * levels, layers_per_block=1, latent_channels=8, num_vq_embeddings=CODES, vq_embed_dim=8)
    network = VQModel(**settings).eval()
    with torch.no_grad():
        network.quantize.embedding.weight.normal_()
    return network


@torch.no_grad()
def slowly(
    pipeline: Any, rows: list[list[int]], weights: Sequence[Sequence[float]], grid: tuple[int, int]
) -> tuple[list[int], Tensor]:
    """Greedy tokens by the authors' formulas, and the guided logits [N, C] of all codes at every place.

    Every row is run anew for every token, without a cache and without padding.

    Args:
        rows: ids of the prompt of each row of guidance.
        weights: of the logits of these rows, at every place; the last stay.
    """
    model, ids, tokens, seen = pipeline.model, pipeline.vocabulary.ids, list[int](), []
    for place in range(pipeline.family.num_tokens(grid)):
        guided = torch.zeros(())
        for row, weight in zip(rows, weights[min(place, len(weights) - 1)], strict=True):
            fed = torch.tensor([row + ids[tokens].tolist()])
            guided = guided + weight * model.lm_head(model.model(input_ids=fed).last_hidden_state[0, -1])
        seen.append(guided[ids[:CODES]].float())
        ends = pipeline.vocabulary.has_row_end and place % (grid[1] + 1) == grid[1]
        tokens.append(CODES if ends else int(seen[-1].argmax()))
    return tokens, torch.stack(seen)


SMALL_VQ = {
    "embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "resolution": 32, "base_channels": 32,
    "channel_multiplier": [1, 1], "num_res_blocks": 1,
}  # fmt: skip
"""Of the encoder that a Chameleon's class holds, which nothing here uses."""
