"""Small causal language models of transformers with random weights, and what they say without a cache."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

import specdecode
from specdecode.sampling import SamplingConfig, logits_to_probabilities
from specdecode.tree import TokenTree

PARENTS = [-1, 0, 0, 1, 1, 2, 4, 4]  # siblings at every depth
METHODS = ("ar", "jacobi", "prompt-lookup", "draft-model")
VOCAB_SIZE, PAD = 48, 0
WINDOW = 5  # shorter than every prompt

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "eos_token_id": None,
    "bos_token_id": None,
    "tie_word_embeddings": False,  # tied ones of random weights say the same token again and again
}


def _llama(sizes: dict[str, Any]) -> PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def _qwen3(sizes: dict[str, Any]) -> PreTrainedModel:
    """Layers of two kinds, which take their masks as a dictionary."""
    config = transformers.Qwen3Config(**sizes, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    assert len(set(config.layer_types)) == 2 or sizes["num_hidden_layers"] == 1
    return transformers.Qwen3ForCausalLM(config)


def _gemma3(sizes: dict[str, Any]) -> PreTrainedModel:
    """Two kinds of layers with rotary frequencies of their own, and logits that are capped behind the head."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"][: sizes["num_hidden_layers"]]
    config = transformers.Gemma3TextConfig(
        **sizes, sliding_window=WINDOW, layer_types=kinds, query_pre_attn_scalar=8, final_logit_softcapping=20.0
    )
    return transformers.Gemma3ForCausalLM(config)


def _mistral(sizes: dict[str, Any]) -> PreTrainedModel:
    """Every layer sees a window, and there is one mask."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, sliding_window=WINDOW))


def _gpt2(sizes: dict[str, Any]) -> PreTrainedModel:
    """Positions are learned vectors."""
    kept = ("vocab_size", "pad_token_id", "eos_token_id", "bos_token_id", "tie_word_embeddings")
    config = {"n_embd": 32, "n_layer": sizes["num_hidden_layers"], "n_head": 4, "n_positions": 128}
    config |= {name: sizes[name] for name in kept}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


_MAKERS = {"llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3, "mistral": _mistral, "gpt2": _gpt2}
ARCHITECTURES = tuple(_MAKERS)


def make(architecture: str, seed: int = 0, dtype: torch.dtype = torch.float64, **sizes: Any) -> PreTrainedModel:
    """A model whose answers are neither constant nor near a tie."""
    generator = torch.Generator().manual_seed(seed)
    model = _MAKERS[architecture]({**_SIZES, **sizes}).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.25)
    return model


def disturbed(model: PreTrainedModel, scale: float, same: str = "-") -> PreTrainedModel:
    """A drafter for `model`: the same with noise on its weights, so that it is often right and often wrong.
    Parameters stay whose names hold `same`."""
    from copy import deepcopy

    generator, other = torch.Generator().manual_seed(1), deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if parameter.ndim > 1 and same not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
    return other


def ragged_prompts(seed: int = 0, length: int = 9, vocab_size: int = VOCAB_SIZE) -> tuple[Tensor, Tensor]:
    """[3, length] tokens of three rows padded on the left, and their attention mask."""
    input_ids = torch.randint(1, vocab_size, (3, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(input_ids)
    mask[1, :3], mask[2, :1] = 0, 0
    return input_ids.masked_fill(mask == 0, PAD), mask


class Puts:
    """A streamer that remembers."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        self.given.append(value.tolist())

    def end(self) -> None:
        self.ended += 1


def ragged_tree(seed: int) -> TokenTree:
    """A tree of `PARENTS` for each row of `ragged_prompts`; the last row's has padding."""
    tokens = torch.randint(1, VOCAB_SIZE, (3, len(PARENTS)), generator=torch.Generator().manual_seed(seed))
    valid = torch.ones(3, len(PARENTS), dtype=torch.bool)
    valid[2, 6:] = False
    return TokenTree.from_parents(tokens, torch.tensor(PARENTS).expand(3, -1), valid, max_depth=3, max_children=2)


@torch.no_grad()
def fresh_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """[V] float32 after the last of one row's tokens, without a cache."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float()


def by_generate(model: PreTrainedModel, prompts: tuple[Tensor, Tensor], count: int = 16, **options: Any) -> Any:
    """transformers' own decoding, greedy unless the options say more: [B, T + n]."""
    options = {"pad_token_id": PAD, "eos_token_id": [-1], "do_sample": False, **options}
    return model.generate(prompts[0], attention_mask=prompts[1], max_new_tokens=count, **options)


def speculate(model: PreTrainedModel, method: str, prompts: tuple[Tensor, Tensor], **options: Any) -> Any:
    """What `specdecode.generate` gives by a method, or "draft-model": by a model that is often right."""
    chosen = {"draft_model": disturbed(model, 0.02)} if method == "draft-model" else {"method": method}
    options = {"pad_token_id": PAD, **chosen, **options}
    return specdecode.generate(model, prompts[0], attention_mask=prompts[1], **options)


@torch.no_grad()
def true_distribution(model: PreTrainedModel, prompt: Tensor, sampling: SamplingConfig, length: int) -> Tensor:
    """[V ** length] float64: of all continuations of a prompt [T], from passes without a cache."""
    sequences = torch.cartesian_prod(*[torch.arange(model.config.get_text_config().vocab_size)] * length)
    ids = torch.cat([prompt.expand(len(sequences), -1), sequences], 1)
    logits = model(ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
    each = logits_to_probabilities(logits, sampling).double()
    each = each / each.sum(-1, keepdim=True)
    product = each.gather(2, sequences[..., None])[..., 0].prod(1)
    return product / product.sum()  # rows of one batch round the same prefix differently
