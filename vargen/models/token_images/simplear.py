"""SimpleAR: Qwen2 with 64,000 codes behind its words; rows follow each other, square pictures.

Source: wdrink/SimpleAR at d56b6e5c (generate.py). It masks nothing, and a word that is drawn becomes code 0; here words
are never drawn.
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, Sizes, TokenImageFamily

SIMPLEAR = TokenImageFamily(
    name="simplear",
    title="SimpleAR",
    model_class="Qwen2ForCausalLM",
    model_type="qwen2",
    architectures=("SimpAR",),
    codes=CodeIds(first="last", count=64_000, behind_text=True),
    sizes=Sizes(pixels_a_code=16, usual=(64, 64), listed=((64, 64), (48, 48), (32, 32), (16, 16))),
    guidance=Guidance(scale=6.0),
    pixels=Pixels("torchscript", rounded=True, published="decoder.jit of nvidia/Cosmos-1.0-Tokenizer-DV8x16x16"),
    special_tokens={"<|t2i|>": None, "<|soi|>": None},
    prompt="<|t2i|>A highly realistic image of {prompt}",
    null_prompt="<|t2i|>{prompt}",
    negative_prompt="An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, "
    "bad teeth, bad eyes, bad limbs, distortion",
    begin=lambda rows, columns: "<|soi|>",
    example="Daniel0724/SimpleAR-0.5B-RL",
)
