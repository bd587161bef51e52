"""Drafters: which tokens may come next? One module per way of guessing."""
