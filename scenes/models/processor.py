"""The processor of the project's own small Video-LLMs: transformers' own class around the words of this world.

Belongs here: words, the layout of a conversation, and the sizes of what the vision tower is given. Does not belong
here: reading a video file (`frames.py`), the models (`architectures.py`).
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from scenes.captions.story_captions import written_vocabulary
from vargen.video.models.frames import CAPTION_PROMPTS, FRAMES_PER_SECOND

PAD, END, START, UNKNOWN = "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<unk>"
VISION_START, VISION_END, VIDEO, IMAGE = "<|vision_start|>", "<|vision_end|>", "<|video_pad|>", "<|image_pad|>"
SPECIAL_TOKENS = (PAD, END, START, UNKNOWN, VISION_START, VISION_END, VIDEO, IMAGE)
_MARKS = (".", ",", "?")
# As Qwen2.5-VL lays out a conversation, without its system prompt.
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }} "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Every word of the videos' captions, questions and answers, lower case; marks are words of their own."""
    prompt_words = {word for prompt in CAPTION_PROMPTS for word in prompt.replace(".", "").replace(",", "").split()}
    words = sorted({*written_vocabulary(), *prompt_words, "user", "assistant"})
    listed = [*SPECIAL_TOKENS, *_MARKS, *words]
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(listed)}, unk_token=UNKNOWN))
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"[^\p{L}\p{N}\s,.?]"), " ")]
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()  # words with spaces between them, but none before a mark
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        extra_special_tokens={
            "image_token": IMAGE,
            "video_token": VIDEO,
            "vision_start_token": VISION_START,
            "vision_end_token": VISION_END,
            "start_token": START,
        },
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def build_processor(image_size: int, patch_size: int) -> Any:
    """A `Qwen2_5_VLProcessor` that resizes every frame to `image_size` pixels, two frames to a step of time."""
    # This class keeps the proportions of a frame and takes a number of pixels, not a side.
    size: dict[str, int] = {"shortest_edge": image_size**2, "longest_edge": image_size**2}
    shared: dict[str, Any] = {"patch_size": patch_size, "temporal_patch_size": 2, "merge_size": 2, "size": size}
    normal: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shared, **normal),
        tokenizer=build_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(
            **shared, **normal, fps=FRAMES_PER_SECOND, min_frames=4, do_sample_frames=True, cap_pixels_per_frame=False
        ),
        chat_template=_TEMPLATE,
    )
