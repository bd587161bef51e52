"""From prompts to pictures: a file for each family of models, each a `DiffusionPipeline`."""
