"""From prompts to pictures, one file a family of models, each a `DiffusionPipeline`."""
