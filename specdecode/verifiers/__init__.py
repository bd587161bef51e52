"""Verifiers: which drafted tokens stay? One module per rule of acceptance."""

from specdecode.verifiers.exact import ExactVerifier

__all__ = ["ExactVerifier"]
