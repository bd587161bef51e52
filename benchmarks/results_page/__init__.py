"""The parts of the lab book's benchmarks/lab/results.md; `benchmarks/build_results.py` puts them together."""
