"""Answering a question about a video: loading, prompts, players, and the one call, `answering.py`."""
