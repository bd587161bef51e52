"""Decoding methods for Video-LLMs, one file each; `catalogue.py` lists them without importing torch."""
