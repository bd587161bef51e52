"""A small Llama in a folder, with a tokenizer of whole words, whose answers a head can learn."""

from __future__ import annotations

from pathlib import Path

import torch
from language_models import make
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

WORDS = ("<pad>", "<end>", "<unk>", *(f"w{number}" for number in range(37)))


def build(folder: Path, seed: int = 0) -> Path:
    """Save a model and its tokenizer.

    A token's successor depends mostly on the token itself, so that a head of one layer can learn to guess it.
    """
    sizes = {"vocab_size": len(WORDS), "num_hidden_layers": 3, "dtype": torch.float32}
    model = make("llama", seed=seed, **sizes)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.06)
            layer.mlp.down_proj.weight.mul_(0.06)
        model.lm_head.weight.copy_(model.model.embed_tokens.weight.roll(1, 0))
        model.lm_head.weight[:3] = 0  # never said
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def load(folder: Path) -> PreTrainedModel:
    """The model, ready to decode."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def prompts_file(path: Path, count: int) -> Path:
    """Prompts of different lengths, one a line."""
    lines = (" ".join(f"w{(7 * row + 3 * place) % 37}" for place in range(2 + row % 5)) for row in range(count))
    path.write_text("\n".join(lines) + "\n")
    return path
