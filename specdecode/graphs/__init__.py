"""A decoding step as one graph over buffers that are made once."""
