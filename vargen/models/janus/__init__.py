"""Janus and Janus-Pro as transformers has them, unmodified."""
