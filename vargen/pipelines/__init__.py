"""Pipelines that draw prompts: a file for each family of models, each a `DiffusionPipeline`."""
