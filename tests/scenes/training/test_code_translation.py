"""A transformer that goes on with another tokenizer knows what its new codes mean."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scenes.training.code_translation import code_shares, translate
from scenes.training.tokenizer import build_tokenizer_model


def test_shares_are_those_of_the_places_a_code_has(tokenizer_config, cheap_scenes) -> None:
    torch.manual_seed(0)
    before = build_tokenizer_model(tokenizer_config).eval()
    codebook = before.quantize.embedding.weight
    codebook.data = nn.functional.normalize(torch.randn(codebook.shape), dim=1)
    images = [cheap_scenes(seed, 4, "train").images for seed in (0, 4)]
    same = code_shares(before, before, images)
    seen = same.diagonal() == 1
    assert seen.any() and torch.equal(same[seen], torch.eye(len(same))[seen])
    torch.testing.assert_close(same.sum(1), torch.ones(len(same)))
    # The same codes under other numbers.
    order = torch.randperm(len(codebook))
    now = copy.deepcopy(before)
    now.quantize.embedding.weight.data = codebook[order].detach()
    shares = code_shares(before, now, images)
    assert torch.equal(shares, same[order])


def test_rows_are_means_of_those_that_stood_there() -> None:
    transformer: Any = SimpleNamespace(token_embedding=nn.Embedding(3, 2), lm_head=nn.Linear(2, 3, bias=False))
    rows = transformer.token_embedding.weight.detach().clone()
    heads = transformer.lm_head.weight.detach().clone()
    translate(transformer, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    assert torch.equal(transformer.token_embedding.weight[0], rows[1])
    torch.testing.assert_close(transformer.token_embedding.weight[1], (rows[0] + rows[1]) / 2)
    torch.testing.assert_close(transformer.lm_head.weight[1], (heads[0] + heads[1]) / 2)
    assert torch.equal(transformer.lm_head.weight[2], heads[2])
