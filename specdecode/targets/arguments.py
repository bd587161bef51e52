"""What modules of transformers take by name, among it the cache: `cache` since 5.24, `past_key_values` before.

Belongs here: names of arguments, for whoever calls a module or watches what one is given. Does not belong here: caches.
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
    """How a module calls the cache of keys and values."""
    return "cache" if takes(module, "cache") else "past_key_values"


def cache_argument(module: Any, cache: Any) -> dict[str, Any]:
    """The cache under the name by which a module takes it."""
    return {cache_name(module): cache}


def cache_among(arguments: Mapping[str, Any]) -> Any:
    """The cache among the keyword arguments of a module; None: there is none."""
    return arguments.get("cache", arguments.get("past_key_values"))
