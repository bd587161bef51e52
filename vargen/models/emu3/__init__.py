"""Emu3 as transformers has it, unmodified."""
