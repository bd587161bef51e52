"""Image models: the LlamaGen transformer, its tokenizer and text encoder, and conversion of official weights.

Classes are imported from their own modules (`vargen.models.transformer`, ...): this file stays empty of imports, so
that reading a configuration does not load diffusers.
"""
