"""Exact methods whose draws are compared with a distribution, with settings for pictures of a few tokens."""

from __future__ import annotations

from typing import Any

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("ar", {}), ("sjd", {"window": 3, "branches": 2, "branch_depth": 1}), ("scd", {"window": 4}),
    ("scd", {"window": 2, "coupling": "maximal"}), ("jacobi", {"window": 3}),
]  # fmt: skip
