"""What every part of `vargen` may use: errors, bounds, reading files, shipped resources, prompts. Imports no torch."""
