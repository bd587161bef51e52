"""The training pass of a transformer: the same function as its forward, with faster gradients on a CPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from llamagen_models import CONDITION_LENGTH, make_model, valid_mask
from torch import Tensor

from scenes.training import transformer_pass
from vargen.drafters.transformer_layers import CONDITION_POSITION, condition_attention_mask, project
from vargen.models.llamagen.transformer import LlamaGenTransformer


def gradients(model: LlamaGenTransformer, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], materialize_grads=True))


@pytest.mark.parametrize(("kv_heads", "condition_rotary"), [(4, "zero"), (2, "zero"), (2, "identity")])
def test_training_pass_equals_the_plain_one_with_gradients(kv_heads, condition_rotary):
    """The CPU's training attention and norms against `forward`, whose attention is PyTorch's."""
    model = make_model(num_key_value_heads=kv_heads, condition_rotary=condition_rotary)
    transformer_pass.train_on_cpu(model)
    captions, mask = torch.randn(2, CONDITION_LENGTH, 12), valid_mask([2, 5])
    tokens = torch.randint(0, 29, (2, 16))
    logits = transformer_pass.training_forward(model, model.embed_condition(caption_embeds=captions), mask, tokens)
    embeds = model.embed_condition(caption_embeds=captions)
    positions = torch.tensor([[CONDITION_POSITION] * CONDITION_LENGTH + list(range(15))])
    given = torch.cat((embeds, model.token_embedding(tokens[:, :-1])), 1)
    output = model(inputs_embeds=given, positions=positions, attention_mask=condition_attention_mask(mask, 15))
    plain = output.logits[:, CONDITION_LENGTH - 1 :]
    torch.testing.assert_close(logits, plain, atol=1e-4, rtol=0)
    ours = gradients(model, F.cross_entropy(logits.flatten(0, 1), tokens.flatten()))
    theirs = gradients(model, F.cross_entropy(plain.flatten(0, 1), tokens.flatten()))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 50])
def test_chunked_attention(chunk_size):
    query, key, value = (torch.randn(2, heads, 7, 4) for heads in (4, 2, 2))
    mask = condition_attention_mask(valid_mask([1, 3], 3), 4)
    bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(transformer_pass.attention_in_chunks(query, key, value, bias, chunk_size), expected)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_what_is_compiled_lays_out_channels_as_it_likes(kv_heads):
    """Queries and keys by halves instead of pairs: the same logits, states and gradients, but other queries."""
    model = make_model(num_key_value_heads=kv_heads, token_dropout=0.0, residual_dropout=0.0, ffn_dropout=0.0).train()
    torch.nn.init.normal_(model.lm_head.weight)
    tokens, mask = torch.randint(0, 29, (4, 16)), valid_mask([1, 2, 3, 5])
    embeds = torch.randn(4, CONDITION_LENGTH, 32)
    results = []
    for compiled in (False, True):
        transformer_pass.train_on_cpu(model, compiled)
        inputs = transformer_pass.training_inputs(model, embeds, mask, tokens)
        logits, half_way = transformer_pass.training_run(model, *inputs)
        model.zero_grad()
        (logits.square().mean() + half_way.square().mean()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((logits, half_way, gradients))
    torch.testing.assert_close(results[1][:2], results[0][:2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[1][2], results[0][2], rtol=1e-3, atol=1e-6)
    attention, rotary = model.transformer_blocks[0].attn, model.rotary_rows(torch.arange(5)[None])
    by_pairs, by_halves = (each(attention, embeds, rotary)[0] for each in (project, transformer_pass.project_by_halves))
    assert not torch.allclose(by_pairs, by_halves)


def test_a_model_trained_on_a_cpu_decodes_as_every_other():
    """Without gradients its attention is PyTorch's, bit for bit; a copy of it is saved with it."""
    model, tokens, positions = make_model(), torch.randint(0, 29, (2, 6)), torch.arange(6)[None]
    with torch.no_grad():
        before = model(input_ids=tokens, positions=positions).logits
        transformer_pass.train_on_cpu(model)
        for each in (model, copy.deepcopy(model)):
            assert torch.equal(each(input_ids=tokens, positions=positions).logits, before)


def test_the_pass_compiles_whole_and_once():
    model = make_model(token_dropout=0.0, residual_dropout=0.0, ffn_dropout=0.0).train()
    transformer_pass.train_on_cpu(model, compiled=True)
    compiled = torch.compile(transformer_pass.training_run, backend="eager", fullgraph=True)
    tokens, mask = torch.randint(0, 29, (4, 16)), valid_mask([1, 2, 3, 5])
    inputs = transformer_pass.training_inputs(model, torch.randn(4, CONDITION_LENGTH, 32), mask, tokens)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        results = [compiled(model, *inputs) for _ in range(2)]
    torch.testing.assert_close(results[1], transformer_pass.training_run(model, *inputs), atol=1e-5, rtol=0)
