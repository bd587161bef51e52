"""VVS, partial verification skipping (arXiv 2511.13587): which tokens are skipped, when, and which features drafting
reads meanwhile."""

from __future__ import annotations

from typing import Any

from vargen.methods.base import SearchSpace

SCHEDULES = ("uniform", "dynamic", "likeness")
"""When verification is skipped; `schedule` has them."""
CHOICES = ("sample", "confidence", "central", "drafter")
"""Which path of a tree a skipped step takes; `selector` has them."""


def search_skips(space: SearchSpace, schedule: str) -> dict[str, Any]:
    """One draw of how much a schedule skips."""
    if schedule == "uniform":
        return {"interval": space.integer("interval", 2, 6)}
    return {"threshold": space.number("threshold", 0.1, 0.95)}
