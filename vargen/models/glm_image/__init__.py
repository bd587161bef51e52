"""The autoregressive part of GLM-Image as transformers has it, unmodified; diffusers has the rest."""
