"""Attention without repeated heads says what transformers' own says, and copies no key or value."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specdecode.targets.grouped_attention import grouped_attention


class Module(nn.Module):
    """What the library's function asks of a layer."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups
        self.eval()


class Largest(TorchDispatchMode):
    """The most bytes of any tensor that an operation gives."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.size = max(self.size, each.untyped_storage().nbytes())
        return result


def tensors(count: int, groups: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(count)
    query = torch.randn(2, 2 * groups, count, 16, generator=generator)
    keys, values = (torch.randn(2, 400, 2, 16, generator=generator).transpose(1, 2) for _ in range(2))  # as cached
    seen = torch.rand(2, 1, count, 400, generator=generator) < 0.5
    seen[..., 0] = True
    return query, keys, values, torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("groups", [1, 2, 7])
@pytest.mark.parametrize("count", [1, 6, 30])
def test_it_is_the_librarys_own(groups, count):
    query, keys, values, mask = tensors(count, groups)
    ours, _ = grouped_attention(Module(groups), query, keys, values, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(Module(groups), query, keys, values, mask, scaling=0.3)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    bare, _ = grouped_attention(Module(groups), query[:, :, :1], keys, values, None, scaling=0.3)
    wanted, _ = sdpa_attention_forward(Module(groups), query[:, :, :1], keys, values, None, scaling=0.3)
    assert torch.equal(bare, wanted)


def test_keys_are_not_repeated():
    query, keys, values, mask = tensors(2, 7)
    whole = keys.untyped_storage().nbytes()
    for function, repeats in ((grouped_attention, False), (sdpa_attention_forward, True)):
        with torch.no_grad(), Largest() as watch:
            function(Module(7), query, keys, values, mask, scaling=0.3)
        assert (watch.size >= 7 * whole) == repeats
        assert repeats or watch.size <= whole
