"""Liquid (FoundationVision): Gemma with Chameleon's 8,192 codes behind its words; rows follow each other, one size.

Source: FoundationVision/Liquid at 4609c476 (evaluation/inference_t2i.py).
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, Sizes, TokenImageFamily

LIQUID = TokenImageFamily(
    name="liquid",
    title="Liquid",
    model_class="GemmaForCausalLM",
    model_type="gemma",
    codes=CodeIds(first=256_000, count=8_192, behind_text=True),
    sizes=Sizes(pixels_a_code=16, usual=(32, 32), listed=((32, 32),)),
    guidance=Guidance(scale=7.0),
    pixels=Pixels("vqvae", published="vqgan.ckpt of facebook/chameleon-7b"),
    special_tokens={"<boi>": None, "<unconditional>": None},
    prompt="{bos}{prompt} Generate an image based on this description.",
    null_prompt="{bos}<unconditional>",
    begin=lambda rows, columns: "<boi>",
    temperature=0.99,
    top_k=4_096,
    top_p=0.96,
    example="Junfeng5/Liquid_V1_7B",
)
