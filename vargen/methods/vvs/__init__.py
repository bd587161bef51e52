"""VVS, partial verification skipping (arXiv 2511.13587): which tokens are skipped, when, and which features drafting
reads meanwhile."""

SCHEDULES = ("uniform", "dynamic", "likeness")
"""When verification is skipped; `schedule` has them."""
CHOICES = ("sample", "confidence", "central", "drafter")
"""Which path of a tree a skipped step takes; `selector` has them."""
