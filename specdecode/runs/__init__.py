"""Runs beyond the plain loop: skipped steps, continuous batches, and drafting beside the target (`parallel/`)."""
