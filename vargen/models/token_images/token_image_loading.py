"""Models and tokenizers of these families from the files that their authors publish.

Belongs here: config.json as the class of transformers needs it, weights that are stored otherwise, and Emu3.5's text
tokenizer. Does not belong here: pickled files (`convert.py`), pixels, and loading any model of transformers
(`vargen.checkpoints.transformers_folder`). No code of a repository is ever run: only classes of transformers are used.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import cached_file

from vargen.base.errors import UserError
from vargen.base.reading import read_bytes, reading
from vargen.checkpoints.transformers_folder import folder_of, hub_arguments, load_model, read_config, refuse_remote_code
from vargen.models.token_images.catalogue import FAMILY_KEY, find_family
from vargen.models.token_images.convert_token_images import norms_per_head
from vargen.models.token_images.description import TokenImageFamily

_NOT_OF_A_CLASS = ("model_type", "auto_map", "architectures", FAMILY_KEY)
"""Entries of a published config.json that say whose class it is."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_NORMS = tuple(f".self_attn.{norm}.{part}" for norm in ("q_norm", "k_norm") for part in ("weight", "bias"))
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizer, which Emu3.5 took over, splits a text into words; digits stand alone."""
_TIKTOKEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)),
    "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
"""The special tokens of Emu3.5 behind the words, in order of their ids."""


def load_family_model(
    source: str | os.PathLike[str], family: TokenImageFamily | str | None = None, **kwargs: Any
) -> tuple[PreTrainedModel, TokenImageFamily]:
    """A model of one of the families, and which.

    Args:
        source: a folder, or a name on the hub.
        family: where config.json fits several.
        **kwargs: see `vargen.checkpoints.transformers_folder.load_model`.

    Raises:
        UserError: it fits no family, or cannot be loaded as one of it; or remote code is asked for.
    """
    raw = read_config(source, **kwargs)
    found = find_family(family, raw, source)
    model_class: Any = getattr(transformers, found.model_class)
    entries = {name: value for name, value in raw.items() if name not in _NOT_OF_A_CLASS} | dict(found.config)
    with reading(source, "its config.json must be that of the authors"):
        config = model_class.config_class(**entries)
    as_stored = found.repair is not None and FAMILY_KEY not in raw
    loaded_class = _with_norms_per_shard(model_class) if as_stored else model_class
    of_class = model_class.config_class.model_type  # where transformers saved it
    model_type = of_class if raw.get("model_type") == of_class else found.model_type
    model = load_model(source, loaded_class, model_type, absent=found.absent, config=config, **kwargs)
    if as_stored:
        _repeat_norms(model)
        model.__class__ = model_class
    return model, found


def save_family_model(
    model: PreTrainedModel, family: TokenImageFamily, folder: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> None:
    """Save a model as its class of transformers stores it, with the name of its family in config.json."""
    setattr(model.config, FAMILY_KEY, family.name)
    model.save_pretrained(folder, *args, **kwargs)


def load_tokenizer(
    source: str | os.PathLike[str], family: TokenImageFamily, **kwargs: Any
) -> PreTrainedTokenizerBase | None:
    """The text tokenizer in a folder or on the hub, or None if there is none; `kwargs` as for the model.

    Raises:
        UserError: it is damaged or cannot be reached.
    """
    refuse_remote_code(kwargs)
    if family.text_file is not None and (path := _file(source, family.text_file, kwargs)) is not None:
        return tiktoken_tokenizer(path)
    folder = folder_of(source, kwargs)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    with reading(source, "copy the files of its tokenizer again", "tokenizer"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, **hub_arguments(kwargs))
        return tokenizer


def tiktoken_tokenizer(path: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """Emu3.5's text tokenizer, from its file of words and ranks: Qwen's, with special tokens of its own behind.

    Raises:
        UserError: the file cannot be read as one.
    """
    with reading(path, "copy it again", "tokenizer"):
        lines = [line.split() for line in read_bytes(Path(path)).splitlines() if line]
        letters = bytes_to_unicode()
        ranks = {base64.b64decode(word).decode("latin-1").translate(letters): int(rank) for word, rank in lines}
        merges: list[tuple[str, str]] = []
        for word in sorted(ranks, key=ranks.__getitem__):
            # Every way to make it of two; merging goes by rank, so ways that come later are never used.
            cuts = [cut for cut in range(1, len(word)) if word[:cut] in ranks and word[cut:] in ranks]
            if len(cuts) > 1:
                cuts.sort(key=lambda cut, word=word: (ranks[word[:cut]], ranks[word[cut:]]))  # type: ignore[misc]
            merges += [(word[:cut], word[cut:]) for cut in cuts]
        made = Tokenizer(BPE(ranks, merges, ignore_merges=True))
    made.normalizer = normalizers.NFC()  # as its authors' `tokenize` begins
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in _TIKTOKEN_SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|extra_203|>", eos_token="<|extra_204|>", pad_token="<|endoftext|>"
    )


def _file(source: str | os.PathLike[str], name: str, kwargs: dict[str, Any]) -> str | None:
    """The path of a file in a folder or on the hub; None if it is not there."""
    try:
        found: str | None = cached_file(
            os.fspath(source), name, _raise_exceptions_for_missing_entries=False, **hub_arguments(kwargs)
        )
    except OSError as error:
        raise UserError(f"tokenizer: {source} cannot be reached; name a folder, or try again with a network") from error
    return found


def _with_norms_per_shard(model_class: Any) -> Any:
    """A class of transformers' Chameleon whose norms of queries and keys are [shards, head_dim], as in the files, so
    that `from_pretrained` fills them wherever it puts them."""

    def init(self: Any, config: Any) -> None:
        model_class.__init__(self, config)
        for name, each in [*self.named_parameters()]:
            if name.endswith(_NORMS):
                module, _, part = name.rpartition(".")
                shape = config.model_parallel_size, each.shape[1]
                setattr(self.get_submodule(module), part, nn.Parameter(torch.empty(shape)))

    return type(model_class.__name__, (model_class,), {"__init__": init})


def _repeat_norms(model: PreTrainedModel) -> None:
    """Repeat norms [shards, head_dim] for the heads of each shard, as Meta's code does while it runs."""
    config: Any = model.config
    stored = {name: each for name, each in model.named_parameters() if name.endswith(_NORMS)}
    weights = {name: each.detach() for name, each in stored.items()}
    for name, repeated in norms_per_head(weights, config.num_attention_heads, config.num_key_value_heads).items():
        module, _, part = name.rpartition(".")
        setattr(model.get_submodule(module), part, nn.Parameter(repeated, requires_grad=stored[name].requires_grad))
