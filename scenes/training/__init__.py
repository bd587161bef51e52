"""Training of what is shipped on scenes of the world: tokenizer, text encoder, transformer, judge, CLIP, Video-LLM.

This file names the recipes for the entry points of `vargen.recipes`; it imports nothing that is slow.
"""

from vargen.base.world import Recipe


def _recipe(order: int, summary: str, module: str, config: str, train: str) -> Recipe:
    return Recipe(order, summary, f"scenes.training.{module}", config, train)


TOKENIZER = _recipe(
    10, "the VQ model that turns pictures into tokens", "tokenizer", "TokenizerTrainingConfig", "train_tokenizer"
)
TEXT_ENCODER = _recipe(
    20,
    "the T5 encoder of captions, before the transformer",
    "text_encoder",
    "TextEncoderTrainingConfig",
    "train_text_encoder",
)
DATA = _recipe(
    30,
    "nothing, but write a store of codes on which transformers train",
    "code_store",
    "CodeStoreConfig",
    "write_codes",
)
TRANSFORMER = _recipe(
    40,
    "the text-to-image transformer over those tokens",
    "transformer",
    "TransformerTrainingConfig",
    "train_transformer",
)
DECODER = _recipe(
    50,
    "the tokenizer's decoder, on codes as the transformer draws them",
    "decoder",
    "DecoderTrainingConfig",
    "train_decoder",
)
JUDGE = _recipe(70, "the recogniser that scores pictures", "judge", "JudgeTrainingConfig", "train_judge")
VIDEO_LLM = _recipe(
    80,
    "a small Video-LLM, or a smaller one to draft for it",
    "video_llm",
    "VideoLLMTrainingConfig",
    "train_video_llm",
)
CLIP = _recipe(
    100,
    "the CLIP that scores how well pictures and captions agree",
    "clip",
    "ClipTrainingConfig",
    "train_clip",
)
