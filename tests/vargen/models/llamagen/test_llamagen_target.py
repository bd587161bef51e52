"""LlamaGenTarget as the loop sees it: trees, rows of different length, rollback, guidance."""

from typing import Any

import pytest
import torch
from refusals import raised
from torch import Tensor

from specdecode.kv_cache import StaticKVCache
from vargen.models.llamagen.llamagen_target import LlamaGenTarget, cache_length, cache_sizes
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.pipelines.llamagen import LlamaGenPipeline

CONDITION = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[False, False, True, True, True], [True] * 5, [False, True, True, True, True]])

ALL = slice(0, 3)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def transformer(tiny_pipeline: LlamaGenPipeline) -> LlamaGenTransformer:
    return tiny_pipeline.transformer


def build(
    transformer: LlamaGenTransformer, rows: slice = ALL, guidance_scale: float = 3.0, **arguments: object
) -> LlamaGenTarget:
    asked: Any = {"guidance_scale": guidance_scale, "max_draft_nodes": 8, **arguments}
    return LlamaGenTarget(transformer, CONDITION[rows], MASK[rows], **asked)


def without_a_cache(transformer: LlamaGenTransformer, row: int, tokens: Tensor, guidance_scale: float) -> Tensor:
    """Logits [n, V] after each of a row's first tokens [n]: one pass over its condition, padding left out, and them."""
    halves = []
    for condition in (CONDITION[row], transformer.null_condition(1, 5)[0]):
        words = condition[MASK[row]]
        inputs = torch.cat((words, transformer.token_embedding(tokens)))[None]
        positions = torch.cat((torch.full((len(words),), -1), torch.arange(len(tokens))))[None]
        halves.append(transformer(inputs_embeds=inputs, positions=positions).logits[0, len(words) :])
    return halves[1] + guidance_scale * (halves[0] - halves[1])


def to_the_end(target: LlamaGenTarget, tokens: Tensor) -> Tensor:
    """Logits [3, N, V] after each token of whole pictures, fed behind the prompt eight at a time. `tokens` [3, N + 7]
    has some past the end, so that the last pass is as wide."""
    size, fed, logits = target.transformer.num_image_tokens, 0, []
    for width in (8, size - 1 - 8, 8):  # at last one token of the picture, and seven past its end
        depths = torch.arange(width).clamp(max=size - 1 - fed).expand(3, -1)
        causal = torch.ones(3, width, width, dtype=torch.bool).tril()
        logits.append(target.forward(tokens[:, fed : fed + width], causal, depths).logits)
        kept = min(width, size - 1 - fed)
        target.commit(None, torch.full((3,), kept))
        fed += kept
    return torch.cat(logits, dim=1)[:, :size]


@torch.no_grad()
def test_a_picture_to_its_end_is_one_pass_without_a_cache(transformer):
    """Places in the picture, padding that nobody sees, and room for a whole draft behind the last token that is fed."""
    target, size = build(transformer), transformer.num_image_tokens
    tokens = torch.randint(0, 24, (3, size + 7), generator=torch.Generator().manual_seed(2))
    target.prefill()
    found = to_the_end(target, tokens)
    for row in range(3):
        torch.testing.assert_close(found[row], without_a_cache(transformer, row, tokens[row, :size], 3.0), **CLOSE)


@torch.no_grad()
def test_a_longer_condition_in_the_place_of_a_shorter_one_has_room_to_the_end(transformer):
    """Its neighbours, which are of the shorter one, are as they would be without it."""
    size, short = transformer.num_image_tokens, CONDITION[[0, 0, 0], 2:]
    tokens = torch.randint(0, 24, (3, size + 7), generator=torch.Generator().manual_seed(2))
    target = LlamaGenTarget(transformer, short, guidance_scale=3.0, max_draft_nodes=8, longest_condition=5)
    joining = build(transformer, slice(1, 2), prompt_only=True)
    target.prefill()
    joining.prefill()
    target.replace_rows(torch.tensor([1]), joining)
    found = to_the_end(target, tokens)
    for row, condition in enumerate((0, 1, 0)):
        wanted = without_a_cache(transformer, condition, tokens[row, :size], 3.0)
        torch.testing.assert_close(found[row], wanted, **CLOSE)
    with pytest.raises(ValueError, match=r"at most longest_condition \(3\) long and guided alike, got 5"):
        LlamaGenTarget(transformer, short, guidance_scale=3.0).replace_rows(torch.tensor([1]), joining)


@torch.no_grad()
def test_guidance_is_that_of_two_models(transformer):
    guided, tokens = build(transformer, guidance_scale=2.5), torch.tensor([[3], [4], [5]])
    null = transformer.null_condition(3, 5)
    halves = [LlamaGenTarget(transformer, embeds, MASK, guidance_scale=1.0) for embeds in (CONDITION, null)]
    ones, zeros = torch.ones(3, 1, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.long)
    for call in (lambda target: target.prefill(), lambda target: target.forward(tokens, ones, zeros)):
        output, (conditional, unconditional) = call(guided), map(call, halves)
        wanted = unconditional.logits + 2.5 * (conditional.logits - unconditional.logits)
        torch.testing.assert_close(output.logits, wanted, **CLOSE)
        image = slice(None) if output.hidden_states.shape[1] == 1 else slice(-1, None)  # padding holds rubbish
        torch.testing.assert_close(output.hidden_states[:, image], conditional.hidden_states[:, image])
        torch.testing.assert_close(output.unconditional_hidden_states[:, image], unconditional.hidden_states[:, image])
    assert halves[0].kv_cache.batch_size == 3 and guided.kv_cache.batch_size == 6


@torch.no_grad()
def test_what_does_not_fit_is_refused(transformer):
    raised(ValueError, r"condition_embeds must be \[batch, length, dim\]", LlamaGenTarget, transformer, CONDITION[0])
    raised(ValueError, r"condition_mask must be \[3, 5\]", LlamaGenTarget, transformer, CONDITION, MASK[:, :4])
    raised(ValueError, "kv_cache must fit 6 rows", build, transformer, kv_cache=StaticKVCache(2, 3, 2, 64, 8))
    slots = cache_length(transformer, 5, 8)
    assert build(transformer, kv_cache=StaticKVCache(**cache_sizes(transformer, 6, slots))).kv_cache.max_length == slots
    with pytest.raises(ValueError, match=f"kv_cache must fit 6 rows of {slots} slots"):
        build(transformer, kv_cache=StaticKVCache(**cache_sizes(transformer, 6, slots - 1)))
    target = build(transformer)
    target.prefill()
    many = target.kv_cache.max_length  # while rows are short there is room for more than `max_draft_nodes`
    tokens, mask = torch.zeros(3, many, dtype=torch.long), torch.eye(many, dtype=torch.bool).expand(3, -1, -1)
    raised(ValueError, "at most max_draft_nodes", target.forward, tokens, mask, tokens)
