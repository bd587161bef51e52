"""Anole (GAIR): Chameleon with the image rows of its head trained; rows follow each other, one size.

Source: GAIR-NLP/anole at af563fa1 (chameleon/inference/chameleon.py; pictures in prompts: image_tokenizer.py there,
interleaved_generation.py). Its guidance has a row for the pictures of a prompt. In a prompt of words that row is the
null row, and two rows are left. The token that ends a turn stands before a picture that is drawn, as in text2image.py.
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, References, Sizes, TokenImageFamily

ANOLE = TokenImageFamily(
    name="anole",
    title="Anole",
    model_class="ChameleonForConditionalGeneration",
    model_type="chameleon",
    vocab_size=65_536,
    architectures=("ChameleonForC",),
    codes=CodeIds(first="named", count=8_192),
    sizes=Sizes(pixels_a_code=16, usual=(32, 32), listed=((32, 32),)),
    guidance=Guidance(scale=3.0, image_scale=1.2),
    pixels=Pixels("vqvae", published="vqgan.ckpt of facebook/chameleon-7b"),
    special_tokens={"<racm3:break>": 8_197, "<eoss>": 8_196, "<reserved08706>": 8_710},
    prompt="{bos}{prompt}<reserved08706>",
    null_prompt="{bos}",
    begin=lambda rows, columns: "<racm3:break>",
    end="<eoss>",
    temperature=0.7,
    top_p=0.9,
    absent=("model.vqmodel.",),
    references=References(
        prompt="{bos}{pictures}{prompt}<reserved08706>",
        null_prompt="{bos}",
        fit="crop",
        among_words=True,
        on_white=True,
    ),
    example="leloy/Anole-7b-v0.1-hf",
)
