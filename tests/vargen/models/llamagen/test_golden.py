"""The public reference implementation's outputs, reproduced through the key renames of `convert`."""

import math

import pytest
import torch
from torch import Tensor

from scenes.training.transformer_pass import train_on_cpu, training_forward
from specdecode.kv_cache import StaticKVCache
from vargen.drafters.transformer_layers import CONDITION_POSITION, condition_attention_mask
from vargen.models.llamagen.convert_llamagen import infer_transformer_config, load_transformer, load_vq_model
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.llamagen.vq import decode_codes, encode_images

CASES = ("gpt_c2i_tiny", "gpt_t2i_tiny")


def load_case(golden, fill_by_rule, name: str) -> tuple[LlamaGenTransformer, dict, dict[str, Tensor]]:
    description, tensors = golden(name)
    official = fill_by_rule(description["state_dict"], description["salt"])
    config = infer_transformer_config(official, description["args"]["n_head"])
    config["grid_size"] = math.isqrt(description["args"]["block_size"])
    return load_transformer(official, config), description, tensors


def condition_of(model: LlamaGenTransformer, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Both halves of guidance, conditional first: embeds `[2B, T, dim]` and mask `[2B, T]`."""
    if "class_ids" in tensors:
        embeds = model.embed_condition(class_labels=tensors["class_ids"])
        mask = torch.ones(embeds.shape[:2], dtype=torch.bool)
    else:
        embeds = model.embed_condition(caption_embeds=tensors["caption_embeddings"])
        mask = tensors["caption_mask"].bool()
    null = model.null_condition(embeds.shape[0], embeds.shape[1])
    return torch.cat((embeds, null)), torch.cat((mask, mask))


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_logits_under_teacher_forcing(golden, fill_by_rule, name):
    model, _, tensors = load_case(golden, fill_by_rule, name)
    embeds, mask = condition_of(model, tensors)
    logits = training_forward(model, embeds, mask, tensors["greedy_tokens"].repeat(2, 1))
    torch.testing.assert_close(logits[..., tensors["logits_vocab_ids"]], tensors["logits"], atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_logits_on_the_training_path(golden, fill_by_rule, name):
    """With gradients the CPU takes its own attention and norms; they are the same function."""
    model, _, tensors = load_case(golden, fill_by_rule, name)
    train_on_cpu(model)
    embeds, mask = condition_of(model, tensors)
    logits = training_forward(model, embeds, mask, tensors["greedy_tokens"].repeat(2, 1))
    assert logits.requires_grad
    torch.testing.assert_close(logits[..., tensors["logits_vocab_ids"]], tensors["logits"], atol=2e-4, rtol=0)


@pytest.mark.parametrize("trimmed", [False, True], ids=["full", "trimmed"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_greedy_tokens_through_the_cache(golden, fill_by_rule, name, trimmed):
    """Plain guided decoding, one token at a time. Trimming the text's padding changes nothing."""
    model, description, tensors = load_case(golden, fill_by_rule, name)
    embeds, mask = condition_of(model, tensors)
    if trimmed:
        longest = int(mask.sum(1).max())
        embeds, mask = embeds[:, -longest:], mask[:, -longest:]
    rows, length, _ = embeds.shape
    steps = description["steps"]
    cache = StaticKVCache(
        model.config.num_layers, rows, model.config.num_key_value_heads, length + steps + 3, model.head_dim
    )
    positions = torch.full((1, length), CONDITION_POSITION)
    output = model(
        inputs_embeds=embeds, positions=positions, attention_mask=condition_attention_mask(mask), kv_cache=cache,
        kv_length=length, logits_to_keep=1,
    )  # fmt: skip
    cache.starts = length - mask.sum(1)
    cache.advance(length)
    tokens, picks = [], []
    for step in range(steps):
        picks.append(output.logits[:, 0, tensors["logits_vocab_ids"]])
        conditional, unconditional = output.logits[:, -1].chunk(2)
        guided = unconditional + (conditional - unconditional) * description["cfg_scale"]
        tokens.append(guided.argmax(-1))
        if step == steps - 1:
            break
        output = model(
            input_ids=tokens[-1].repeat(2)[:, None],
            positions=torch.full((1, 1), step),
            attention_mask=cache.attention_mask(torch.ones(1, 1, 1, dtype=torch.bool)),
            kv_cache=cache,
        )
        cache.advance(1)
    assert torch.equal(torch.stack(tokens, 1), tensors["greedy_tokens"])
    torch.testing.assert_close(torch.stack(picks, 1), tensors["logits"], atol=2e-4, rtol=0)


@torch.no_grad()
def test_tokenizer(golden, fill_by_rule):
    description, tensors = golden("vq16")
    vqvae = load_vq_model(fill_by_rule(description["state_dict"], description["salt"]))
    decoded = decode_codes(vqvae, tensors["codes"])
    torch.testing.assert_close(decoded, tensors["decoded"].float(), atol=2e-3, rtol=0)
    assert torch.equal(encode_images(vqvae, tensors["image"]), tensors["encoded_codes"])
