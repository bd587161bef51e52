"""Verifiers: which draft tokens stay? One module per rule of acceptance."""
