"""VVS: partial verification skipping (arXiv 2511.13587). What is skipped, when, and what drafting reads meanwhile."""
