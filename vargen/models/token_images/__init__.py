"""Causal language models of transformers that draw pictures token by token, each family described in one file."""
