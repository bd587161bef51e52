"""Lumina-mGPT (Alpha-VLLM): Chameleon tuned to draw at many sizes; an end-of-row token after every row of codes.

Source: Alpha-VLLM/Lumina-mGPT at 104abe45 (lumina_mgpt/inference_solver.py, lumina_mgpt/data/item_processor.py).
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, Sizes, TokenImageFamily

LUMINA_MGPT = TokenImageFamily(
    name="lumina_mgpt",
    title="Lumina-mGPT",
    model_class="ChameleonForConditionalGeneration",
    model_type="chameleon",
    vocab_size=65_536,
    architectures=("XLLMX", "ChameleonForC"),
    codes=CodeIds(first="named", count=8_192),
    # The largest checkpoint draws 1,024 pixels squared. Sizes are counted in patches of 32 pixels.
    sizes=Sizes(pixels_a_code=16, usual=(48, 48), unit=2, most_codes=4_096, most_ratio=4),
    guidance=Guidance(scale=4.0),
    pixels=Pixels("vqvae", published="vqgan.ckpt of facebook/chameleon-7b"),
    special_tokens={"<racm3:break>": 8_197, "<eoss>": 8_196, "<reserved08799>": 8_803, "<reserved08706>": 8_710},
    prompt="{bos}Generate an image of {width}x{height} according to the following prompt:\n{prompt}<reserved08706>",
    null_prompt="",  # nothing but the beginning of a picture
    begin=lambda rows, columns: f"<racm3:break><reserved{8800 + rows // 2:05d}><reserved{8800 + columns // 2:05d}>",
    row_end="<reserved08799>",
    ends_last_row=True,
    end="<eoss>",
    top_k=2_000,
    repair="norms_per_shard",
    absent=("model.vqmodel.",),  # it makes codes of pictures
    example="Alpha-VLLM/Lumina-mGPT-7B-768",
)
