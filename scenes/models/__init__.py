"""The small Video-LLMs that the project trains: their shapes and their processor."""
