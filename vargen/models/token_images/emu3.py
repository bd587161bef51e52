"""Emu3 (BAAI), as transformers has it: a class with its picture tokenizer inside, and a processor that writes prompts.

Source: transformers' `Emu3ForConditionalGeneration` and `Emu3Processor`. Sampling defaults are those of `generate`.
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, Sizes, TokenImageFamily

EMU3 = TokenImageFamily(
    name="emu3",
    title="Emu3",
    model_class="Emu3ForConditionalGeneration",
    model_type="emu3",
    codes=CodeIds(first="named", count=None),
    sizes=Sizes(pixels_a_code=8, usual=(90, 90)),
    guidance=Guidance(scale=3.0),
    pixels=Pixels("own"),
    special_tokens={"<|extra_200|>": None},
    prompt="",  # `Emu3Processor` writes it
    null_prompt="{prompt}",
    begin=lambda rows, columns: "",
    row_end="<|extra_200|>",
    ends_last_row=True,
    top_k=50,
    decoder="model.text_model",
    references="its authors say that it cannot edit untuned",
    example="BAAI/Emu3-Gen-hf",
)
