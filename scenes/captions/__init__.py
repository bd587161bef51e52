"""Sentences about scenes and videos: composed, read back, and as tokens."""
