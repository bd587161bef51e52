"""The EAGLE head by the project's own kernels: the modules' numbers, and the same bits however pairs are fed."""

from typing import Any

import pytest
import torch
from llamagen_models import LENGTHS, make_model, ragged_target
from refusals import raised
from torch import Tensor, nn

from vargen.drafters.eagle_head import EagleHead
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead

DEPTHS = [None, [1, 2]]
DTYPES = [torch.float32, torch.bfloat16]
PAIRS = 4


def networks(feature_layers: list[int] | None, dtype: torch.dtype) -> Any:
    """A model and a drafter beside it, whose every weight matters."""
    model = make_model()
    drafter = EagleHead(
        dim=32, num_attention_heads=4, intermediate_size=48, vocab_size=29, grid_size=4, feature_layers=feature_layers
    ).eval()
    torch.manual_seed(1)
    for parameter in drafter.parameters():
        nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1.0)
    return nn.Module.to(model, dtype), nn.Module.to(drafter, dtype)


class Fed:
    """A head behind a prompt and two tokens that its target has judged.

    Args:
        parts: of `networks`.
        rows: of the batch.
        guidance_scale: of the target.
    """

    def __init__(self, parts: Any, rows: slice = slice(None), guidance_scale: float = 3.0) -> None:
        model, drafter = parts
        target = ragged_target(model, rows, guidance_scale)
        self.head = LlamaGenDraftHead(drafter, target, 2 * PAIRS)
        first = self.head.start(target.prefill())
        self.tokens = torch.randint(29, (len(LENGTHS), PAIRS), generator=torch.Generator().manual_seed(2))[rows]
        causal = torch.ones(len(self.tokens), 3, 3, dtype=torch.bool).tril()
        output = target.forward(self.tokens[:, :3], causal, torch.arange(3).expand(len(self.tokens), -1))
        self.features = torch.cat((first, self.head.features(output)), 1)  # [B, PAIRS, F]

    def chain(self, step: int) -> tuple[Tensor, Tensor]:
        """Logits and states behind all pairs, so many a pass, each joining the sequence."""
        outputs = []
        for begin in range(0, PAIRS, step):
            pairs = slice(begin, begin + step)
            mask = torch.ones(1, step, step, dtype=torch.bool).tril()
            depths = torch.arange(step)[None]
            outputs.append(self.head.forward(self.tokens[:, pairs], self.features[:, pairs], mask, depths))
            self.head.advance(torch.full((len(self.tokens),), step))
        return torch.cat([each.logits for each in outputs], 1), torch.cat([each.hidden_states for each in outputs], 1)

    def levels(self, sees_other: bool = False) -> list[Tensor]:
        """Logits of a tree behind pair 0: node 1 beside another, and node 2 below it, a forward each level."""
        one = torch.ones(1, 1, 1, dtype=torch.bool)
        logits = [self.head.forward(self.tokens[:, :1], self.features[:, :1], one, torch.zeros(1, 1).long()).logits]
        self.head.advance(torch.ones(len(self.tokens)).long())
        beside = torch.eye(2, dtype=torch.bool)[None]
        order = [3, 1]  # the branch that counts comes second
        pair, feature = self.tokens[:, order], self.features[:, order]
        logits.append(self.head.forward(pair, feature, beside, torch.zeros(1, 2).long()).logits[:, 1:])
        below = torch.tensor([[[True, False, True, False], [sees_other, True, False, True]]])
        pair, feature = self.tokens[:, [0, 2]], self.features[:, [0, 2]]
        logits.append(self.head.forward(pair, feature, below, torch.ones(1, 2).long()).logits[:, 1:])
        return logits


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@pytest.mark.parametrize("feature_layers", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_the_numbers_are_the_modules(served, monkeypatch, dtype, feature_layers, guidance_scale):
    parts = networks(feature_layers, dtype)
    fast = Fed(parts, guidance_scale=guidance_scale).chain(2)
    assert sum(served) == len(served) == 2 + 1 + 2  # target: prompt, tokens; head: prompt, two passes
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    plain = Fed(parts, guidance_scale=guidance_scale).chain(2)
    exact = Fed([nn.Module.to(part, torch.float64) for part in parts], guidance_scale=guidance_scale).chain(2)
    assert sum(served) == 5
    for own, usual, best in zip(fast, plain, exact, strict=True):
        assert own.dtype == usual.dtype and own.shape == usual.shape
        error = (own - best).abs().max()
        assert error < (2e-5 if dtype == torch.float32 else 1.25 * (usual - best).abs().max())


@pytest.mark.parametrize("feature_layers", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_a_pair_has_the_same_bits_however_it_is_fed(served, dtype, feature_layers):
    parts = networks(feature_layers, dtype)
    together = Fed(parts).chain(PAIRS)
    for step in (1, 2):
        for own, other in zip(Fed(parts).chain(step), together, strict=True):
            assert torch.equal(own, other)
    for row in range(len(LENGTHS)):
        rows = slice(row, row + 1)
        for own, other in zip(Fed(parts, rows).chain(1), together, strict=True):
            assert torch.equal(own, other[rows])
    branch = torch.cat(Fed(parts).levels(), 1)
    assert torch.equal(branch, together[0][:, :3])
    faulty = torch.cat(Fed(parts).levels(sees_other=True), 1)  # planted: a node sees the other branch
    assert torch.equal(faulty[:, :2], branch[:, :2]) and not torch.equal(faulty[:, 2], branch[:, 2])
    assert sum(served) == len(served) == 3 + 1 + (3 + 4) + (3 + 2) + 3 * (3 + 4) + 2 * (3 + 3)


@torch.no_grad()
def test_a_token_that_does_not_exist_is_an_error(own_kernels):
    fed = Fed(networks(None, torch.float32))
    fed.tokens[1, 0] = 29
    raised(IndexError, "vocabulary", fed.chain, 1)
