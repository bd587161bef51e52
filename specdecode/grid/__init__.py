"""Two-dimensional decoding: positions, rows of a grid side by side, grids of several sizes."""
