"""Ablations as data: which settings are compared with each other.

Belongs here: lists of settings. Does not belong here: running them (`vargen bench --ablate vvs`), and results.
"""

from __future__ import annotations

from typing import Any

_VVS: dict[str, dict[str, dict[str, Any]]] = {
    # Which path a skip takes, whether it is cut at the mean length, at two budgets of relaxation (VVS-U, i = 3).
    "selection x truncation x delta": {
        f"{choice}{'' if truncate else ', whole'}, delta {delta}": {
            "schedule": "uniform",
            "interval": 3,
            "choice": choice,
            "truncate": truncate,
            "delta": delta,
        }
        for delta in (0.1, 0.2)
        for choice, truncate in (
            ("sample", True),
            ("sample", False),
            ("confidence", True),
            ("confidence", False),
            ("central", True),
            ("drafter", True),
        )
    },
    # What drafting reads after a verified and after a skipped step: -1 fresh, 0 the newest known, s > 0 older (Fig. 4).
    "staleness (after verified, after skipped)": {
        f"staleness ({verified}, {skipped})": {
            "schedule": "uniform",
            "interval": 3,
            "delta": 0.2,
            "verified_staleness": verified,
            "staleness": skipped,
        }
        for verified, skipped in ((0, 0), (-1, 3), (-1, 0))
    },
    "refreshing the drafter's cache": {
        f"refresh {str(refresh).lower()}": {"schedule": "uniform", "interval": 3, "delta": 0.2, "refresh": refresh}
        for refresh in (False, True)
    },
    "schedule": {
        **{
            f"VVS-U({interval})": {"schedule": "uniform", "interval": interval, "delta": 0.2}
            for interval in (2, 3, 4, 5)
        },
        **{
            f"VVS-D({threshold})": {"schedule": "dynamic", "threshold": threshold, "delta": 0.2}
            for threshold in (0.2, 0.35, 0.5, 0.65)
        },
        **{
            f"likeness({threshold})": {
                "schedule": "likeness",
                "threshold": threshold,
                "choice": "drafter",
                "truncate": False,
                "delta": 0.2,
            }
            for threshold in (0.3, 0.4, 0.5, 0.6)
        },
    },
}
SHARED: dict[str, dict[str, Any]] = {"vvs": {"total_tokens": 8, "depth": 3}}
"""By method, what all its variants share unless told otherwise: the draft's size, a small one, so that a
comparison of many takes minutes."""

ABLATIONS = {"vvs": _VVS}
"""By method, by study, by label: settings of the method that differ from its defaults. VVS's repeat those of its paper
(arXiv 2511.13587), with our own choices and schedule beside them."""
