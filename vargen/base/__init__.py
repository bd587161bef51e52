"""Tools for every part of `vargen`: errors, bounds, reading files, shipped resources, prompts. Imports no torch."""
