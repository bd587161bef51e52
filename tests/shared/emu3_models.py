"""Tiny Emu3 models with transformers' own classes, a processor for them, and what transformers draws with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import Emu3ForConditionalGeneration

from vargen.models.reuse import Reuse
from vargen.models.token_images.emu3 import EMU3
from vargen.models.token_images.grammar import vocabulary_of
from vargen.models.token_images.token_image_components import TokenImageComponents
from vargen.models.token_images.token_image_target import TokenImageTarget

SPECIAL = [
    "<pad>", "<unk>", "<|extra_203|>", "<|extra_204|>", "<image>", "<|image start|>", "<|image end|>",
    "<|image token|>", "<|extra_201|>", "<|extra_200|>",
]  # fmt: skip
PAD, UNK, BOS, EOS, IMAGE, BOI, EOI, WRAPPER, EOF, EOL = range(len(SPECIAL))
WORDS = ["a", "dog", "cat", "runs", "under", "the", "red", "rain", "on", "sand", "*", *map(str, range(10))]
PROMPTS = ["a dog", "a red cat runs under the rain", "the dog runs on sand"]
AWAY = "the sand"
"""A negative prompt."""
ROWS, COLUMNS = 3, 4
SIZE = {"height": 8 * ROWS, "width": 8 * COLUMNS}
CODES = 24


def _vocabulary(codes: int) -> dict[str, int]:
    # Not in the order of codes, as nothing says they must be.
    names = [f"<|visual token {code:06d}|>" for code in reversed(range(codes))]
    return {token: index for index, token in enumerate([*SPECIAL, *WORDS, *names])}


def make(seed: int = 0, codes: int = CODES, context: int = 64, num_layers: int = 3) -> Emu3ForConditionalGeneration:
    """A model in float64 whose weights are large enough that its tokens differ from place to place."""
    vocabulary = _vocabulary(codes)
    text = transformers.Emu3TextConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=48, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context, pad_token_id=PAD,
        bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    vq = transformers.Emu3VQVAEConfig(
        codebook_size=codes, base_channels=32, channel_multiplier=[1, 1, 1, 1], num_res_blocks=1, hidden_size=32,
        attn_resolutions=[], temporal_downsample_factor=1,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Emu3ForConditionalGeneration(
        transformers.Emu3Config(vq_config=vq, text_config=text, vocabulary_map=vocabulary)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("text_model" in name or "lm_head" in name):
                parameter.normal_(std=0.5)
        model.model.vqmodel.quantize.embedding.weight.normal_()
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, do_sample=True, guidance_scale=3.0
    )
    return model.double().eval()


def processor(codes: int = CODES) -> transformers.Emu3Processor:
    """Knows `WORDS`; its image processor normalises as the published ones do."""
    tokenizer = Tokenizer(models.WordLevel(_vocabulary(codes), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|extra_203|>", eos_token="<|extra_204|>", pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>", "boi_token": "<|image start|>", "eoi_token": "<|image end|>",
            "image_wrapper_token": "<|image token|>", "eof_token": "<|extra_201|>",
        },
    )  # fmt: skip
    halves = [0.5, 0.5, 0.5]
    return transformers.Emu3Processor(transformers.Emu3ImageProcessor(image_mean=halves, image_std=halves), fast)


def tokens(texts: list[str], rows: int = ROWS, columns: int = COLUMNS) -> tuple[Tensor, Tensor]:
    """Prompts and their mask as a user of transformers makes them, padded on the left."""
    made = processor()(
        text=texts, return_for_image_generation=True, ratio=f"{columns}:{rows}", image_area=64 * rows * columns,
        padding=True, padding_side="left", return_tensors="pt",
    )  # fmt: skip
    assert [*made["image_sizes"][0]] == [rows, columns]
    return made["input_ids"], made["attention_mask"]


def only_pictures(model: Emu3ForConditionalGeneration, rows: int, columns: int) -> Callable[[int, Tensor], list[int]]:
    """`prefix_allowed_tokens_fn` as the documentation of transformers has it."""

    def allowed(_: int, ids: Tensor) -> list[int]:
        drawn = len(ids) - int((ids == WRAPPER).nonzero()[0]) - 1
        if drawn >= rows * (columns + 1):
            return [[EOF], [EOI], [EOS], [PAD]][min(drawn - rows * (columns + 1), 3)]
        return [EOL] if drawn % (columns + 1) == columns else model.vocabulary_mapping.image_tokens

    return allowed


def by_generate(
    model: Emu3ForConditionalGeneration, guidance_scale: float, rows: int = ROWS, columns: int = COLUMNS
) -> Tensor:
    """[3, rows * (columns + 1) + 3] greedy, by transformers alone, in its vocabulary."""
    ids, mask = tokens(PROMPTS, rows, columns)
    away, away_mask = tokens([AWAY] * 3, rows, columns)
    made = model.generate(
        ids, attention_mask=mask, do_sample=False, guidance_scale=guidance_scale,
        negative_prompt_ids=away, negative_prompt_attention_mask=away_mask,
        prefix_allowed_tokens_fn=only_pictures(model, rows, columns), max_new_tokens=rows * (columns + 1) + 3,
    )  # fmt: skip
    return made[:, ids.shape[1] :]


def as_drawn(model: Emu3ForConditionalGeneration, sequences: Tensor) -> Tensor:
    """What the loop calls the tokens of `by_generate`: codes and the mark, without the four that end a picture."""
    names = [*(model.vocabulary_mapping.img2bpe[code] for code in range(len(model.vocabulary_mapping.img2bpe))), EOL]
    return torch.tensor([[names.index(token) for token in row] for row in sequences[:, :-4].tolist()])


def save(folder: Path, context: int = 64) -> Path:
    """A whole model in float32, as transformers saves it."""
    make(context=context).float().save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


class Emu3Target(TokenImageTarget):
    """The target of this family, by the names of the prompts and of those that guidance leads away from."""

    def __init__(
        self,
        model: Emu3ForConditionalGeneration,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        **settings: Any,
    ) -> None:
        prompts = [(input_ids, attention_mask)]
        if negative_input_ids is not None:
            prompts.append((negative_input_ids, negative_attention_mask))
        super().__init__(model, vocabulary_of(EMU3, model), prompts, decoder=EMU3.decoder, **settings)


def target(
    model: Emu3ForConditionalGeneration,
    scale: float = 3.0,
    nodes: int = 1,
    requests: list[int] | slice = slice(None),
    grids: Sequence[tuple[int, int]] = ((ROWS, COLUMNS),),
) -> Emu3Target:
    """Of some of `PROMPTS`, led away from `AWAY`."""
    asked, away = ([each[requests] for each in tokens(texts)] for texts in (PROMPTS, [AWAY] * len(PROMPTS)))
    return Emu3Target(
        model, *asked, negative_input_ids=away[0], negative_attention_mask=away[1], guidance_scale=scale,
        max_draft_nodes=nodes, grids=grids,
    )  # fmt: skip


class Emu3Components(TokenImageComponents):
    """What its pipeline offers methods."""

    family = EMU3.title

    def __init__(self, model: Emu3ForConditionalGeneration, target: TokenImageTarget, reuse: Reuse) -> None:
        vectors = model.model.vqmodel.quantize.embedding.weight
        super().__init__(model, target, reuse, code_vectors=lambda: vectors, family=EMU3.title)
