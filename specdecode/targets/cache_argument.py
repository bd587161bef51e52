"""What transformers calls the cache of keys and values: `cache` since 5.24, `past_key_values` before.

Belongs here: that one name, for whoever passes a cache to a module or watches what one is given. Does not belong here:
caches.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def cache_argument(module: Any, cache: Any) -> dict[str, Any]:
    """The cache under the name by which this module, compiled or not, takes it."""
    kind: Any = type(getattr(module, "_orig_mod", module))
    return {cache_name(kind): cache}


def cache_among(arguments: Mapping[str, Any]) -> Any:
    """The cache among the keyword arguments of a module of transformers; None: there is none."""
    return arguments.get("cache", arguments.get("past_key_values"))


@lru_cache(maxsize=256)
def cache_name(kind: Any) -> str:
    """How modules of a class call it."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
