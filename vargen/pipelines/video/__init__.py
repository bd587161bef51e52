"""From a video and a question to an answer: loading, prompts, players, and the one call, `answering.py`."""
