"""The cache goes by either name that transformers has for it."""

from typing import Any

import pytest
from torch import nn

from specdecode.targets.arguments import cache_among, cache_argument


class Older(nn.Module):
    def forward(self, hidden_states: Any, past_key_values: Any = None) -> Any:
        return past_key_values


class Newer(nn.Module):
    def forward(self, hidden_states: Any, cache: Any = None, **others: Any) -> Any:
        return cache


@pytest.mark.parametrize(("kind", "name"), [(Older, "past_key_values"), (Newer, "cache")])
def test_a_module_is_given_the_cache_under_its_own_name(kind, name):
    seen: list[Any] = []
    module = kind()
    module.register_forward_hook(lambda _, args, inputs, output: seen.append(cache_among(inputs)), with_kwargs=True)
    given = cache_argument(module, "keys and values")
    assert given == {name: "keys and values"} and module("states", **given) == "keys and values"
    assert seen == ["keys and values"]


def test_nothing_is_among_arguments_without_one():
    assert cache_among({"hidden_states": 1}) is None
