"""Traces, answers and contact sheets as pictures."""
