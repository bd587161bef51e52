"""Video-LLMs of transformers as targets: one file an architecture, requests, frames, and the tokens that a drafter may
see."""
