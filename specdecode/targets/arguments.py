"""Names of the arguments of transformers' modules. The cache is `cache` since 5.24 and was `past_key_values` before.

Belongs here: names. Does not belong here: caches.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def takes(function: Any, argument: str) -> bool:
    """Whether a module, compiled or not, or a function takes an argument by name."""
    function = getattr(function, "_orig_mod", function)
    return argument in inspect.signature(getattr(function, "forward", function)).parameters


def cache_name(module: Any) -> str:
    """A module's name for the cache of keys and values."""
    return "cache" if takes(module, "cache") else "past_key_values"


def cache_argument(module: Any, cache: Any) -> dict[str, Any]:
    """The cache as a keyword argument of a module."""
    return {cache_name(module): cache}


def cache_among(arguments: Mapping[str, Any]) -> Any:
    """The cache among the keyword arguments of a module, or None."""
    return arguments.get("cache", arguments.get("past_key_values"))
