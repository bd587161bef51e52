"""Decoding methods for Video-LLMs, one file each; `vargen.methods.catalogue` lists them without importing torch."""
