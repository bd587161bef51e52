"""Recipes for what drafts for Video-LLMs, and the answers and states it learns from."""
