"""Trained drafters for Video-LLMs: heads, compressor, their cache, and their folders."""
