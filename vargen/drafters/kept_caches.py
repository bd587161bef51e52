"""Caches of keys and values whose memory one batch takes over from the batch before it.

Belongs here: keeping caches by the role of the network that writes to them. Does not belong here: other things that a
pipeline keeps between batches (`vargen.pipelines`), and a cache itself (`specdecode.kv_cache`).
"""

from __future__ import annotations

from typing import Any

from specdecode.kv_cache import StaticKVCache


class KeptCaches:
    """The last batch's caches, one for each role: captured graphs write to fixed addresses, and allocation is slow."""

    def __init__(self) -> None:
        self._caches: dict[str, StaticKVCache] = {}

    def __reduce__(self) -> tuple[type[KeptCaches], tuple[()]]:
        return KeptCaches, ()  # a copy has memory of its own; pickled tensors would no longer lie in one another

    def get(self, role: str, most_slots: int | None = None, **sizes: Any) -> StaticKVCache:
        """The kept cache of a role if it fits, else a new one, which replaces it.

        Args:
            role: whose keys and values these are; caches of several roles are kept side by side.
            most_slots: slots that it must have, so that the next batch, of longer prompts, fits as well and graphs go
                on; None: as in `sizes`.
            sizes: arguments of `StaticKVCache`.
        """
        kept, sizes["max_length"] = self._caches.get(role), most_slots or sizes["max_length"]
        if kept is None or not kept.fits(**sizes):
            self._caches.pop(role, None)  # free the old one first
            kept = self._caches[role] = StaticKVCache(**sizes)
        return kept
