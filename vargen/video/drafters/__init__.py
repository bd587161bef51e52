"""Networks that draft for Video-LLMs, with their folder format and their part beside a target."""
