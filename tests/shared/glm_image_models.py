"""Tiny GLM-Image pipelines of diffusers with the libraries' own classes, and what diffusers makes with them."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GlmImageForConditionalGeneration

CODES, HEAD = 24, 28
"""Tokens that are codes, and all that the head knows: four more, as it knows more than codes in the published model."""
BEGINNING, END = CODES, CODES + 1
SPECIAL = ["<image begins>", "<image ends>", "<other>", "<another>", "<pad>", "<unk>", "<image>", "<sop>", "<eop>"]
WORDS = ["user", ":", "a", "dog", "cat", "runs", "under", "the", "red", "rain", "on", "sand", *map(str, range(33))]
PROMPTS = ["a dog", "a red cat runs under the rain", "the dog runs on sand"]
CHAT_TEMPLATE = (
    "{% for message in messages %}user : {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image begins><image><image ends>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
HEIGHT, WIDTH = 64, 96
"""Pixels: 2 x 3 tokens."""


class SmallPreviews(transformers.GlmImageProcessor):
    """Like its base, but that a preview has up to 2 x 2 tokens, where the base makes some 256 of them."""

    def _get_target_shape(self, height: int, width: int) -> tuple[int, int, int, int]:  # type: ignore[override]
        token_h, token_w, _, _ = super()._get_target_shape(height, width)
        return token_h, token_w, min(token_h, 2), min(token_w, 2)


def make_model(
    seed: int = 0, context: int = 96, codes: int = CODES, num_layers: int = 3
) -> GlmImageForConditionalGeneration:
    """A model in float64 whose weights are large enough that its tokens differ from place to place."""
    vocab_size, beginning, end, pad = codes + len(SPECIAL) + len(WORDS), codes, codes + 1, codes + 4
    text = transformers.GlmImageTextConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context, pad_token_id=pad,
        vision_vocab_size=codes + 4, eos_token_id=end,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    )  # fmt: skip
    vision = transformers.GlmImageVisionConfig(
        depth=1, hidden_size=16, num_heads=2, image_size=64, patch_size=16, intermediate_size=16
    )  # fmt: skip
    vq = transformers.GlmImageVQVAEConfig(embed_dim=8, num_embeddings=codes, latent_channels=16)
    torch.manual_seed(seed)
    model = GlmImageForConditionalGeneration(
        transformers.GlmImageConfig(
            text_config=text, vision_config=vision, vq_config=vq, image_token_id=codes + 6,
            image_start_token_id=beginning, image_end_token_id=end,
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("language_model" in name or "head" in name or "vq" in name):
                parameter.normal_(std=0.5)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=0.9, top_p=0.75, eos_token_id=end, pad_token_id=pad
    )
    return model.double().eval()


def processor(kind: type[transformers.GlmImageProcessor] = SmallPreviews) -> transformers.GlmImageProcessor:
    """Knows `WORDS`."""
    codes = [f"<code {code}>" for code in range(CODES)]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate([*codes, *SPECIAL, *WORDS])}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<image begins>", eos_token="<image ends>", pad_token="<pad>",
        unk_token="<unk>", padding_side="left",
        extra_special_tokens={"image_token": "<image>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"},
    )  # fmt: skip
    images = transformers.GlmImageImageProcessor(
        size={"shortest_edge": 32 * 32, "longest_edge": 128 * 128}, patch_size=16, merge_size=1, temporal_patch_size=1
    )
    return kind(images, fast, chat_template=CHAT_TEMPLATE)


def make(seed: int = 0, kind: type[transformers.GlmImageProcessor] = SmallPreviews, **sizes: int) -> GlmImagePipeline:
    """diffusers' pipeline; all but the autoregressive model is in float32."""
    model = make_model(seed, **sizes)
    torch.manual_seed(seed)
    pipe = GlmImagePipeline(
        tokenizer=transformers.ByT5Tokenizer(),
        processor=processor(kind),
        text_encoder=transformers.T5EncoderModel(
            transformers.T5Config(
                vocab_size=384, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.0
            )
        ).eval(),
        vision_language_encoder=model,
        vae=AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=[4, 4, 4, 4],
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=2,
            mid_block_add_attention=False,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        ).eval(),
        transformer=GlmImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            text_embed_dim=8,
            time_embed_dim=8,
            condition_dim=4,
            prior_vq_quantizer_codebook_size=CODES,
        ).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(seed: int = 0) -> Image.Image:
    """Noise of 64 x 32 pixels, to begin from: 1 x 2 tokens."""
    pixels = torch.randint(0, 256, (32, 64, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def mend(pipe: GlmImagePipeline) -> None:
    """Let its image to image run: diffusers 0.42 joins the features of pictures, transformers 5.23 wants a list."""
    model, channels = pipe.vision_language_encoder, pipe.vision_language_encoder.config.vision_config.hidden_size
    model.get_image_tokens = lambda joined, grids: model.model.get_image_tokens(list(joined.split(channels)), grids)


def greedy(model: GlmImageForConditionalGeneration) -> transformers.GenerationConfig:
    """The model's settings for the most probable code always, and none but codes; diffusers can be told neither."""
    config = transformers.GenerationConfig(**model.generation_config.to_diff_dict())
    config.update(top_k=1, top_p=1.0, temperature=1.0, suppress_tokens=list(range(CODES, HEAD)))
    return config


@torch.no_grad()
def by_diffusers(pipe: GlmImagePipeline, prompts: list[str], **arguments: object) -> tuple[Tensor, list, list]:
    """What its `generate_prior_tokens` returns when it is greedy."""
    usual = pipe.vision_language_encoder.generation_config
    pipe.vision_language_encoder.generation_config = greedy(pipe.vision_language_encoder)
    try:
        return pipe.generate_prior_tokens(prompts, HEIGHT, WIDTH, **arguments)
    finally:
        pipe.vision_language_encoder.generation_config = usual


def inputs(pictures: bool = False, prompts: list[str] = PROMPTS, height: int = HEIGHT, width: int = WIDTH) -> dict:
    """What the processor makes of prompts, with or without a picture for each."""
    chats = [
        [{"role": "user", "content": [*given, {"type": "text", "text": text}]}]
        for text, given in zip(
            prompts,
            [[{"type": "image", "image": picture(row)}] if pictures else [] for row in range(len(prompts))],
            strict=True,
        )
    ]
    options = {"target_h": height, "target_w": width, "padding": True}
    return dict(
        processor().apply_chat_template(
            chats, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs=options
        )
    )


def save(folder: Path, context: int = 512) -> Path:
    """A whole pipeline in float32, as diffusers saves it, with previews as large as the published model's."""
    pipe = make(kind=transformers.GlmImageProcessor)
    pipe.register_modules(vision_language_encoder=make_model(context=context).float())
    pipe.save_pretrained(folder)
    return folder
