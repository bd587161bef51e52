"""Text-to-image generation with LlamaGen-style autoregressive models.

The package root holds no code: importing it must stay free, because the command line answers `--help` before torch is
needed. The names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vargen.base.resources import find_model as find_model
    from vargen.models.llamagen.transformer import LlamaGenTransformer as LlamaGenTransformer
    from vargen.pipelines.auto import AutoPicturePipeline as AutoPicturePipeline
    from vargen.pipelines.base import AutoregressivePipelineOutput as AutoregressivePipelineOutput
    from vargen.pipelines.emu3 import Emu3Pipeline as Emu3Pipeline
    from vargen.pipelines.glm_image import GlmImagePriorPipeline as GlmImagePriorPipeline
    from vargen.pipelines.janus import JanusPipeline as JanusPipeline
    from vargen.pipelines.llamagen import LlamaGenPipeline as LlamaGenPipeline
    from vargen.pipelines.token_images import TokenImagePipeline as TokenImagePipeline

__version__ = "0.1.0"

_HOMES = {
    "find_model": "vargen.base.resources",
    "AutoPicturePipeline": "vargen.pipelines.auto",
    "Emu3Pipeline": "vargen.pipelines.emu3",
    "GlmImagePriorPipeline": "vargen.pipelines.glm_image",
    "JanusPipeline": "vargen.pipelines.janus",
    "LlamaGenPipeline": "vargen.pipelines.llamagen",
    "TokenImagePipeline": "vargen.pipelines.token_images",
    "AutoregressivePipelineOutput": "vargen.pipelines.base",
    "LlamaGenTransformer": "vargen.models.llamagen.transformer",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vargen' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
