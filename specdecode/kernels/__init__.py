"""Kernels of our own for passes over few rows on a CPU: see `few_rows.cpp`."""
