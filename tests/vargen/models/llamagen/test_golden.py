"""The public reference implementation's outputs, reproduced through the key renames of `convert`."""

import math

import pytest
import torch
from official_layout import fill_by_rule, golden
from synthetic import decoded
from torch import Tensor

from scenes.training.transformer_pass import train_on_cpu, training_forward
from vargen.models.llamagen.convert_llamagen import infer_transformer_config, load_transformer, load_vq_model
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.llamagen.vq import decode_codes, encode_images

CASES = ("gpt_c2i_tiny", "gpt_t2i_tiny")


def load_case(name: str) -> tuple[LlamaGenTransformer, dict, dict[str, Tensor]]:
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


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_logits_under_teacher_forcing(name, training):
    """With gradients the CPU takes its own attention and norms; they are the same function."""
    model, _, tensors = load_case(name)
    if training:
        train_on_cpu(model)
    with torch.set_grad_enabled(training):
        embeds, mask = condition_of(model, tensors)
        logits = training_forward(model, embeds, mask, tensors["greedy_tokens"].repeat(2, 1))
    assert logits.requires_grad is training
    torch.testing.assert_close(logits[..., tensors["logits_vocab_ids"]], tensors["logits"], atol=2e-4, rtol=0)


@pytest.mark.parametrize("trimmed", [False, True], ids=["full", "trimmed"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_greedy_tokens_through_the_cache(name, trimmed):
    """Plain guided decoding by the target. Trimming the text's padding changes nothing."""
    model, description, tensors = load_case(name)
    embeds, mask = condition_of(model, tensors)
    if trimmed:
        longest = int(mask.sum(1).max())
        embeds, mask = embeds[:, -longest:], mask[:, -longest:]
    steps, count = description["steps"], len(embeds) // 2
    target = LlamaGenTarget(
        model, embeds[:count], mask[:count], negative_embeds=embeds[count:], negative_mask=mask[count:],
        guidance_scale=description["cfg_scale"],
    )  # fmt: skip
    assert torch.equal(decoded(target, steps).tokens, tensors["greedy_tokens"])


@torch.no_grad()
def test_tokenizer():
    description, tensors = golden("vq16")
    vqvae = load_vq_model(fill_by_rule(description["state_dict"], description["salt"]))
    decoded = decode_codes(vqvae, tensors["codes"])
    torch.testing.assert_close(decoded, tensors["decoded"].float(), atol=2e-3, rtol=0)
    assert torch.equal(encode_images(vqvae, tensors["image"]), tensors["encoded_codes"])
