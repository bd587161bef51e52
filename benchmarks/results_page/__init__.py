"""The parts of docs/results.md, a file each; `benchmarks/build_results.py` puts them together."""
