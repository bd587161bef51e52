"""Training of what is shipped on scenes of the world: tokenizer, text encoder, transformer, judge, CLIP, Video-LLM.

This file names the recipes for the entry points of `vargen.recipes`; it imports nothing that is slow.
"""

from vargen.base.world import Recipe


def _recipe(order: int, module: str, settings: str, summary: str) -> Recipe:
    return Recipe(order, summary, f"scenes.training.{module}", f"{settings}TrainingConfig", f"train_{module}")


TOKENIZER = _recipe(10, "tokenizer", "Tokenizer", "the VQ model that turns pictures into tokens")
TEXT_ENCODER = _recipe(20, "text_encoder", "TextEncoder", "the T5 encoder of captions, before the transformer")
DATA = Recipe(
    30,
    "nothing, but write a store of codes on which transformers train",
    "scenes.training.code_store",
    "CodeStoreConfig",
    "write_codes",
)
TRANSFORMER = _recipe(40, "transformer", "Transformer", "the text-to-image transformer over those tokens")
DECODER = _recipe(50, "decoder", "Decoder", "the tokenizer's decoder, on codes as the transformer draws them")
JUDGE = _recipe(70, "judge", "Judge", "the recogniser that scores pictures")
VIDEO_LLM = _recipe(80, "video_llm", "VideoLLM", "a small Video-LLM, or a draft model for it")
CLIP = _recipe(100, "clip", "Clip", "the CLIP that scores how well pictures and captions agree")
