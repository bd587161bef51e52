"""LlamaGen: network, target, tokenizer and text encoder, drafter, and conversion of published checkpoints."""
