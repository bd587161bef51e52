"""Pipelines of the tiny models of `tests/shared/tiny_pipelines.py`, for all tests of the package."""

from __future__ import annotations

from tiny_pipelines import _saved_tiny_pipelines, tiny_class_model_folder, tiny_model_folder  # noqa: F401  # the fixtures are for the tests below
