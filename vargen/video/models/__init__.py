"""Video-LLMs of transformers as targets: one file an architecture, requests, frames, and what a drafter may see."""
