"""Text features for LlamaGen: T5 encoder states, right-aligned against the first image token.

Belongs here: from strings to features and their mask. Does not belong here: the projection to the transformer's width
(`LlamaGenTransformer.embed_condition`), the null caption, checks of a user's input.

LlamaGen (`language/t5.py`, `dataset/t2i.py`) pads on the right, as T5 tokenizers do, encodes, then moves each row's
features to the end and sets the padding before them to zero. The end-of-sequence token counts as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def clean_captions(prompts: Sequence[str]) -> list[str]:
    """Clean prompts as LlamaGen did for training and sampling with flan-t5.

    The cleaner is DeepFloyd IF's, applied twice. diffusers has it inside PixArt's pipeline, which gives the same
    strings as LlamaGen's copy. It lower-cases, and removes addresses, mark-up and stray punctuation.

    Raises:
        ValueError: ftfy or beautifulsoup4 is not installed (diffusers would silently clean less).
    """
    from diffusers.pipelines.pixart_alpha.pipeline_pixart_alpha import PixArtAlphaPipeline
    from diffusers.utils import is_bs4_available, is_ftfy_available

    if not (is_bs4_available() and is_ftfy_available()):
        raise ValueError("clean_caption needs ftfy and beautifulsoup4: pip install ftfy beautifulsoup4.")
    # The method uses only a class attribute, so the pipeline need not be built.
    pipeline = PixArtAlphaPipeline.__new__(PixArtAlphaPipeline)
    return pipeline._text_preprocessing(list(prompts), clean_caption=True)


def right_align(embeds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move valid features to the end of each row, and set the rest to zero.

    Args:
        embeds: `[B, T, C]`, valid features first.
        mask: `[B, T]`, true (or 1) where valid: in every row a run from the start.

    Returns:
        Embeds `[B, T, C]`, and the mask, bool `[B, T]`.
    """
    mask = mask.bool()
    length = mask.shape[1]
    # Row b is rotated by its number of valid features, which moves padding to the front.
    source = (torch.arange(length, device=mask.device) + mask.sum(dim=1, keepdim=True)) % length  # [B, T]
    mask = mask.flip(1)
    embeds = embeds.gather(1, source[..., None].expand_as(embeds))
    return embeds.masked_fill(~mask[..., None], 0), mask


def as_trained(text_encoder: Any, prompts: Sequence[str]) -> list[str]:
    """Prompts as the text encoder was trained on them: cleaned if its config says `clean_caption`, as that of converted
    official weights does."""
    return clean_captions(prompts) if getattr(text_encoder.config, "clean_caption", False) else list(prompts)


def encode_text(
    tokenizer: Any, text_encoder: Any, prompts: Sequence[str], max_length: int, *, trim: bool = True
) -> tuple[Tensor, Tensor]:
    """Text features as `LlamaGenTransformer.embed_condition` takes them. Gradients flow; wrap in `no_grad` to sample.

    Args:
        tokenizer: a transformers tokenizer that pads on the right. Prompts longer than `max_length` are cut.
        text_encoder: a `T5EncoderModel`.
        prompts: one string per row; see `as_trained`.
        max_length: the most tokens, `condition_length` of the transformer.
        trim: make T the longest prompt's length in tokens instead of `max_length`. The picture is the same, because
            neither T5 (relative positions) nor the transformer (none for text) depends on the amount of padding.

    Returns:
        Embeds `[B, T, C]` in the encoder's dtype, padding first and zero, and the mask, bool `[B, T]`.
    """
    tokens = _tokenize(tokenizer, as_trained(text_encoder, prompts), max_length, trim).to(text_encoder.device)
    states = text_encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
    return right_align(states, tokens.attention_mask.to(states.device))  # an offloaded encoder moves in its call


def check_tokenizer(tokenizer: Any, text_encoder: Any, max_length: int) -> None:
    """Tokenize a word as `encode_text` does, which fails with a damaged tokenizer. Raises ValueError for tokens that
    the text encoder does not know; the tokenizer may raise other errors."""
    tokenizer(["a"], verbose=False)  # as where the tokens of a prompt are counted
    known, named = text_encoder.get_input_embeddings().num_embeddings, len(tokenizer)
    if max(named - 1, int(_tokenize(tokenizer, ["a"], max_length, False).input_ids.max())) >= known:
        raise ValueError(f"its tokenizer has {named} tokens, its text encoder knows {known}")


def _tokenize(tokenizer: Any, texts: list[str], max_length: int, trim: bool) -> Any:
    """`input_ids` and `attention_mask`, int64 `[B, T]`; arguments as for `encode_text`."""
    return tokenizer(
        texts,
        padding="longest" if trim else "max_length",
        truncation=True,
        max_length=max_length,
        return_attention_mask=True,
        return_tensors="pt",
    )


def encode_each(
    tokenizer: Any, text_encoder: Any, prompts: Sequence[str], max_length: int, *, trim: bool = True
) -> tuple[Tensor, Tensor]:
    """`encode_text` of every prompt alone, equal ones once, so that its features are the same bits in every batch.

    A batch would add sums over rows and padding in another order, which can decide between two nearly equally likely
    tokens of a picture.
    """
    alone = {prompt: encode_text(tokenizer, text_encoder, [prompt], max_length) for prompt in dict.fromkeys(prompts)}
    length = max(mask.shape[1] for _, mask in alone.values()) if trim else max_length
    padded = {
        prompt: (F.pad(embeds, (0, 0, length - mask.shape[1], 0)), F.pad(mask, (length - mask.shape[1], 0)))
        for prompt, (embeds, mask) in alone.items()
    }
    embeds, masks = zip(*(padded[prompt] for prompt in prompts), strict=True)
    return torch.cat(embeds), torch.cat(masks)
