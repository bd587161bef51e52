"""Emu3.5 (BAAI): Qwen3's decoder under the name Emu3; sizes written as text, and an end-of-row token between rows.

Source: baaivision/Emu3.5 at 8fcf1da4 (its prompts, sizes and sampling: configs/example_config_t2i.py; its grammar:
src/utils/logits_processor.py; pictures in prompts: configs/example_config_x2i.py, src/utils/input_utils.py).
Emu3.5-Image and Emu3.5 differ in weights, and in the scale that their authors use.
"""

from __future__ import annotations

from vargen.models.token_images.description import CodeIds, Guidance, Pixels, References, Sizes, TokenImageFamily

EMU3_5 = TokenImageFamily(
    name="emu3_5",
    title="Emu3.5",
    model_class="Qwen3ForCausalLM",
    model_type="Emu3",
    codes=CodeIds(first=151_854, count=131_072),
    sizes=Sizes(
        pixels_a_code=16,
        usual=(64, 64),
        listed=((64, 64), (55, 73), (41, 97), (47, 85), (52, 78), (73, 55), (85, 47), (78, 52)),
    ),
    guidance=Guidance(scale=5.0),  # for Emu3.5-Image; its authors use 2 with Emu3.5
    pixels=Pixels(
        "vqvae", published="model.ckpt and config.yaml of BAAI/Emu3.5-VisionTokenizer", nearest="product"
    ),  # IBQ's rule (Shi et al. 2024, arXiv 2412.02692, section 3)
    special_tokens={
        "<|extra_203|>": 151_849, "<|extra_100|>": 151_746, "<|extra_200|>": 151_846, "<|image token|>": 151_851,
        "<|image start|>": 151_852, "<|image end|>": 151_853,
    },
    prompt="<|extra_203|>You are a helpful assistant for t2i task. USER: {prompt} ASSISTANT: <|extra_100|>",
    null_prompt="<|extra_203|>You are a helpful assistant. USER: {prompt} ASSISTANT: <|extra_100|>",
    begin=lambda rows, columns: f"<|image start|>{rows}*{columns}<|image token|>",
    row_end="<|extra_200|>",
    end="<|image end|>",
    top_k=5_120,
    config={"attention_dropout": 0.0},  # it is for training
    text_file="emu3.tiktoken",
    references=References(
        prompt="<|extra_203|>You are a helpful assistant for x2i task. USER: {pictures}{prompt} ASSISTANT: "
        "<|extra_100|>",
        null_prompt="<|extra_203|>You are a helpful assistant. USER: {pictures}{prompt} ASSISTANT: <|extra_100|>",
        fit="area", scale=3.0, most=3, most_codes=99,  # sizes are written with two digits
    ),
    example="BAAI/Emu3.5-Image",
)  # fmt: skip
