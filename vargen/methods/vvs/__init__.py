"""VVS, partial verification skipping (arXiv 2511.13587): what is skipped, when, and what drafting reads meanwhile."""

SCHEDULES = ("uniform", "dynamic", "likeness")
"""When verification is skipped; `schedule` has them."""
CHOICES = ("sample", "confidence", "central", "drafter")
"""Which path of a tree a skipped step takes; `selector` has them."""
