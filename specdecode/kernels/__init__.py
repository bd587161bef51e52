"""The project's own kernels for forward passes over few token rows on a CPU; the arithmetic is in `few_rows.cpp`."""
