"""Training of what is shipped on scenes of the world: tokenizer, text encoder, transformer, judge, CLIP, Video-LLM."""
