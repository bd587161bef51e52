"""Lumina-mGPT 2.0 (Alpha-VLLM): the same class and grammar with Qwen's words, 8 pixels a code, and a decaying scale.

Source: Alpha-VLLM/Lumina-mGPT-2.0 at f44a4d7f (lumina_mgpt/inference_solver.py, lumina_mgpt/data/item_processor.py).
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, Sizes, TokenImageFamily

LUMINA_MGPT_2 = TokenImageFamily(
    name="lumina_mgpt_2",
    title="Lumina-mGPT 2.0",
    model_class="ChameleonForConditionalGeneration",
    model_type="chameleon",
    vocab_size=171_385,
    codes=CodeIds(first=155_000, count=16_384),
    # Sizes are counted in patches of 32 pixels.
    sizes=Sizes(pixels_a_code=8, usual=(96, 96), unit=4, most_codes=9_216, most_ratio=4),
    guidance=Guidance(scale=4.0, least=4.0),
    pixels=Pixels("vqvae", rounded=True, published="movqgan_270M.ckpt of ai-forever/MoVQGAN"),
    special_tokens={"<racm3:break>": 151_665, "<eoss>": 151_666, "<reserved08799>": 151_670, "<reserved08706>": None},
    prompt="{bos}Generate an image of {width}x{height} according to the following prompt:\n{prompt}<reserved08706>",
    null_prompt="",
    begin=lambda rows, columns: f"<racm3:break><reserved{8800 + rows // 4:05d}><reserved{8800 + columns // 4:05d}>",
    row_end="<reserved08799>",
    ends_last_row=True,
    end="<eoss>",
    top_k=4_096,
    config={"vocabulary_map": {"<image>": 0}},  # the class wants one; codes are found without it
    repair="norms_per_shard",
    absent=("model.vqmodel.",),
    example="Alpha-VLLM/Lumina-mGPT-2.0",
)
