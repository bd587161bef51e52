"""Tiny Janus models with transformers' own classes, a processor for them, and what transformers draws with them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import language_models
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import JanusForConditionalGeneration

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>", "<image>", "<boi>", "<eoi>"]
PAD, BOS, EOS, _, IMAGE, BOI, _ = range(len(SPECIAL))
WORDS = ["user", "assistant", ":", "a", "dog", "cat", "runs", "under", "the", "red", "rain", "on", "sand"]
PROMPTS = ["a dog", "a red cat runs under the rain", "the dog runs on sand"]
CHAT_TEMPLATE = "{% for message in messages %}user: {{ message['content'][0]['text'] }} assistant:{% endfor %}"


def make(
    seed: int = 0, codes: int = 40, grid: int = 4, context: int = 64, num_layers: int = 3
) -> JanusForConditionalGeneration:
    """A model in float64 whose weights are large enough that its tokens differ from place to place."""
    width = 32
    text = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=48, num_hidden_layers=num_layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=len(SPECIAL) + len(WORDS), max_position_embeddings=context,
    )  # fmt: skip
    vision = transformers.JanusVisionConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=4 * grid, patch_size=4,
        projection_dim=width, num_image_tokens=grid**2,
    )  # fmt: skip
    vq = transformers.JanusVQVAEConfig(
        embed_dim=4, num_embeddings=codes, latent_channels=8, base_channels=32, channel_multiplier=[1, 1, 1],
        num_res_blocks=1, projection_dim=width, image_token_embed_dim=width,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = JanusForConditionalGeneration(
        transformers.JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=IMAGE)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("language_model" in name or "generation" in name):
                parameter.normal_(std=0.5)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, generation_kwargs={"boi_token_id": BOI}
    )
    return model.double().eval()


def save(folder: Path) -> Path:
    """A model and a processor as transformers saves them."""
    make().float().save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


disturbed = partial(language_models.disturbed, same="vqmodel")
"""A model much like another one, with the same codes, to draft for it."""


def processor() -> transformers.JanusProcessor:
    """Knows `WORDS`; its image processor normalises as the published ones do."""
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
    )  # fmt: skip
    halves = [0.5, 0.5, 0.5]
    images = transformers.JanusImageProcessor(image_mean=halves, image_std=halves)
    return transformers.JanusProcessor(images, fast, chat_template=CHAT_TEMPLATE)


def prompts() -> tuple[Tensor, Tensor]:
    """[3, 6] int64 tokens of prompts of 4, 6 and 3 tokens, padded on the left, and their mask."""
    rows = [[BOS, 8, 9, BOI], [BOS, 10, 11, 12, 13, BOI], [BOS, 14, BOI]]
    input_ids = torch.tensor([[PAD] * (6 - len(row)) + row for row in rows])
    return input_ids, (input_ids != PAD).long()


def by_generate(model: JanusForConditionalGeneration, input_ids: Tensor, mask: Tensor, guidance_scale: float) -> Tensor:
    """Greedy codes [B, N] as transformers draws them; with guidance only, for it cannot do without."""
    return model.generate(
        input_ids, attention_mask=mask, generation_mode="image", guidance_scale=guidance_scale, do_sample=False
    )


@torch.no_grad()
def fresh_logits(model: JanusForConditionalGeneration, prompt: list[int], codes: Tensor) -> Tensor:
    """Logits [R, V] after an unpadded prompt and codes [R, n], by one pass without a cache."""
    text = model.get_input_embeddings()(torch.tensor([prompt] * len(codes)))
    image = model.prepare_embeddings_for_image_generation(codes)
    states = model.model.language_model(inputs_embeds=torch.cat((text, image), 1), use_cache=False).last_hidden_state
    return model.model.generation_head(states[:, -1])


def without_guidance(model: JanusForConditionalGeneration, input_ids: Tensor, mask: Tensor) -> Tensor:
    """Greedy codes [B, N], each by a pass of its own without a cache."""
    count = model.config.vision_config.num_image_tokens
    rows = []
    for ids, seen in zip(input_ids, mask, strict=True):
        codes = torch.zeros(1, 0, dtype=torch.long)
        for _ in range(count):
            codes = torch.cat((codes, fresh_logits(model, ids[seen > 0].tolist(), codes).argmax(-1)[None]), 1)
        rows.append(codes)
    return torch.cat(rows)
