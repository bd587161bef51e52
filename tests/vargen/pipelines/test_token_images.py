"""From text to codes with every family that is described: its prompt, its rule, every exact method, and refusals."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import token_image_models
import torch
from diffusers.models.autoencoders.vq_model import VQModel
from PIL import Image
from random_heads import save_random_head
from token_image_models import CODES, GRIDS, PROMPTS
from torch import Tensor

from vargen.base.errors import UserError
from vargen.drafters.chameleon_head import ChameleonHead
from vargen.methods.catalogue import resolve_method
from vargen.models.description import describe_model
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES, find_family
from vargen.models.token_images.loading import load_tokenizer
from vargen.models.token_images.target import TokenImageTarget, decaying_scales
from vargen.pipelines.token_images import TokenImagePipeline

NAMES = sorted(TOKEN_IMAGE_FAMILIES)


def build(name: str) -> TokenImagePipeline:
    family = token_image_models.tiny_family(name)
    model, tokenizer = token_image_models.tiny_model(family), token_image_models.tiny_tokenizer(family)
    pipeline = TokenImagePipeline(model, tokenizer, family=family)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module", params=NAMES)
def pipeline(request: pytest.FixtureRequest) -> TokenImagePipeline:
    """Tests must leave it as it is."""
    return build(request.param)


def pixels(pipeline: TokenImagePipeline, grid: tuple[int, int]) -> dict[str, int]:
    side = pipeline.family.sizes.pixels_a_code
    return {"height": grid[0] * side, "width": grid[1] * side}


def draw(pipeline: TokenImagePipeline, prompts: list[str], grid: tuple[int, int], **arguments: Any) -> Any:
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    settings = {"generator": generators, "output_type": "latent", **pixels(pipeline, grid), **arguments}
    return pipeline(prompts, **settings)


# ---------------------------------------------------------------------------------------------------------------------
# Exact methods


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("scale", [None, 1.0], ids=["guided", "unguided"])
def test_exact_methods_draw_plain_decodings_codes(
    pipeline: TokenImagePipeline, grid: tuple[int, int], scale: float | None
) -> None:
    """In float64: greedy by every method, and by seed with jacobi; three prompts of unlike lengths, and one."""
    plain = draw(pipeline, PROMPTS, grid, temperature=0, method="ar", guidance_scale=scale)
    seeded = draw(pipeline, PROMPTS, grid, temperature=1.0, method="ar", guidance_scale=scale)
    assert plain.images.shape == (3, *grid) and int(plain.images.max()) < CODES
    ends = torch.zeros(plain.tokens.shape[1]).bool()
    ends[[*pipeline.family.row_ends(grid)]] = True
    assert torch.equal(plain.tokens == CODES, ends.expand(3, -1))
    for method in ("jacobi", "sjd", "scd"):
        drafted = resolve_method(method, {"window": 4})
        made = draw(pipeline, PROMPTS, grid, temperature=0, method=drafted, guidance_scale=scale)
        assert torch.equal(made.tokens, plain.tokens), method
        assert made.trace.target_passes <= plain.trace.target_passes - int(ends.sum())
    fixed = resolve_method("jacobi", {"window": 4})
    assert torch.equal(
        draw(pipeline, PROMPTS, grid, temperature=1.0, method=fixed, guidance_scale=scale).tokens, seeded.tokens
    )
    alone = draw(pipeline, PROMPTS[:1], grid, temperature=1.0, method=fixed, guidance_scale=scale)
    assert torch.equal(alone.tokens[0], seeded.tokens[0])


def test_draft_heads_draft_for_every_family(pipeline: TokenImagePipeline, tmp_path: Any) -> None:
    count = len(pipeline.vocabulary.ids)
    head = save_random_head(tmp_path / "head", count, grid_size=5, dim=16)
    eagle = resolve_method("eagle", {"drafter": head, "total_tokens": 8, "depth": 3, "tree_top_k": 2})
    plain = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method="ar")
    assert torch.equal(draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method=eagle).tokens, plain.tokens)


@pytest.mark.parametrize("name", ["anole", "lumina_mgpt"])
def test_heads_of_lantern_draft_for_chameleons(name: str, tmp_path: Any) -> None:
    pipeline = build(name)
    torch.manual_seed(0)
    head = ChameleonHead(16, 2, intermediate_size=20, vocab_size=pipeline.model.config.vocab_size)
    head.save_pretrained(tmp_path / "head")
    eagle = resolve_method("eagle", {"drafter": str(tmp_path / "head"), "total_tokens": 8, "depth": 3, "tree_top_k": 2})
    plain = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method="ar")
    fast = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method=eagle)
    assert torch.equal(fast.tokens, plain.tokens) and fast.trace.drafted > 0


# ---------------------------------------------------------------------------------------------------------------------
# Prompts, as their authors write them


def ids_of(pipeline: TokenImagePipeline, text: str) -> list[int]:
    return [pipeline.tokenizer.convert_tokens_to_ids(word) for word in re.findall(r"<[^>]*>|\S+", text)]


WRITTEN = {
    "emu3_5": (
        "<|extra_203|> You are a helpful assistant for t 2 i task . USER : a dog ASSISTANT : <|extra_100|> "
        "<|image start|> 2 * 4 <|image token|>",
        "<|extra_203|> You are a helpful assistant . USER : ASSISTANT : <|extra_100|> <|image start|> 2 * 4 "
        "<|image token|>",
    ),
    "lumina_mgpt": (
        "<s> Generate an image of 6 4 x 3 2 according to the following prompt : a dog <reserved08706> "
        "<racm3:break> <reserved08801> <reserved08802>",
        "<racm3:break> <reserved08801> <reserved08802>",
    ),
    "lumina_mgpt_2": (
        "<s> Generate an image of 3 2 x 3 2 according to the following prompt : a dog <reserved08706> "
        "<racm3:break> <reserved08801> <reserved08801>",
        "<racm3:break> <reserved08801> <reserved08801>",
    ),
    "anole": ("<s> a dog <reserved08706> <racm3:break>", "<s> <racm3:break>"),
    "simplear": (
        "<|t2i|> A highly realistic image of a dog <|soi|>",
        "<|t2i|> An image of aerial view , overexposed , low quality , deformation , a poor composition , bad hands , "
        "bad teeth , bad eyes , bad limbs , distortion <|soi|>",
    ),
    "liquid": (
        "<s> a dog Generate an image based on this description . <boi>",
        "<s> <unconditional> <boi>",
    ),
}
"""By family, the prompt and the null prompt of a picture of 2 x 4 codes (of 4 x 4 for Lumina-mGPT 2.0, whose patches
have 4 x 4), in words of the tiny tokenizers."""


def test_prompts_are_those_of_the_authors(pipeline: TokenImagePipeline) -> None:
    name = pipeline.family.name
    grid = (4, 4) if name == "lumina_mgpt_2" else (2, 4)
    negative = pipeline.family.negative_prompt
    for null, text in enumerate(WRITTEN[name]):
        words = ids_of(pipeline, text)
        made, mask = pipeline.encode_prompt(negative if null else "a dog", grid, null=bool(null))
        assert made.tolist() == [words] and bool(mask.all())


# ---------------------------------------------------------------------------------------------------------------------
# Anole's and Liquid's rule, slowly


@torch.no_grad()
def slowly(pipeline: TokenImagePipeline, rows: list[tuple[list[int], float]], count: int) -> tuple[list[int], Tensor]:
    """Codes, greedily, and the guided logits [count, C] of all codes at every place.

    Every row is run anew for every token, without a cache and without padding.

    Args:
        rows: ids of a prompt and the weight of its logits.
    """
    model, first, drawn, seen = pipeline.model, int(pipeline.vocabulary.ids[0]), [], []
    for _ in range(count):
        guided = 0
        for ids, weight in rows:
            states = model.model(input_ids=torch.tensor([ids + drawn])).last_hidden_state[0, -1]
            guided = guided + weight * model.lm_head(states)
        seen.append(guided[first : first + CODES].float())
        drawn.append(first + int(seen[-1].argmax()))
    return [token - first for token in drawn], torch.stack(seen)


@pytest.mark.parametrize("name", ["anole", "liquid", "simplear"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_codes_are_those_of_the_rule(name: str, grid: tuple[int, int]) -> None:
    pipeline = build(name)
    scale = pipeline.family.guidance.scale
    for text in PROMPTS:
        asked, null = (ids_of(pipeline, written.replace("a dog", text)) for written in WRITTEN[name])
        wanted, logits = slowly(pipeline, [(asked, scale), (null, 1 - scale)], grid[0] * grid[1])
        made = draw(pipeline, [text], grid, temperature=0, method="jacobi")
        assert made.images.flatten().tolist() == wanted
        target = pipeline._target(grid, [(torch.tensor([ids]), None) for ids in (asked, null)], guidance_scale=scale)
        torch.testing.assert_close(target.prefill().logits[0, 0], logits[0], atol=1e-4, rtol=1e-4)
    assert len(set(wanted)) > 2, "or the comparison says little"


def test_pictures_in_a_prompt_have_a_row_of_their_own() -> None:
    """Anole's three rows: null + 1.2 (picture - null) + 3.0 (all - picture)."""
    pipeline = build("anole")
    picture = [8_197, 4, 9, 17, 8_196]
    asked = [ids_of(pipeline, "<s> a dog")[0], *picture, *ids_of(pipeline, "a dog <reserved08706> <racm3:break>")]
    start = asked[0]
    image, null = [start, *picture, 8_197], [start, 8_197]
    wanted, logits = slowly(pipeline, [(asked, 3.0), (image, 1.2 - 3.0), (null, 1 - 1.2)], 8)
    made = pipeline(input_ids=torch.tensor([asked]), temperature=0, output_type="latent", **pixels(pipeline, GRIDS[0]))
    assert made.images.flatten().tolist() == wanted
    two = slowly(pipeline, [(asked, 3.0), (null, -2.0)], 8)[1]
    assert not torch.allclose(two, logits, atol=1e-2), "or the third row would not matter"


def test_a_scale_decays_as_in_lumina_mgpt_2() -> None:
    """Each token multiplies what the one before left, in terms of halved rows and columns, never below 4."""
    scale, wanted = 9.0, []
    for drawn in range(2, 2 + 19):
        scale = max(4.0, scale * (1 - drawn / (4 * 2)))
        wanted.append(scale)
    assert decaying_scales(9.0, 4.0, 8, 4, 19) == wanted and wanted[0] == 6.75 and wanted[-1] == 4.0
    pipeline = build("lumina_mgpt_2")
    family = replace(pipeline.family, guidance=replace(pipeline.family.guidance, least=1.01))
    decaying = TokenImagePipeline(pipeline.model, pipeline.tokenizer, family=family)
    decaying.set_progress_bar_config(disable=True)
    asked, null = (pipeline.encode_prompt(each, GRIDS[2], null=bool(null)) for null, each in enumerate(["a dog", ""]))
    scales = decaying_scales(20.0, 1.01, 4, 4, 19)
    rows = [asked[0][0].tolist(), null[0][0].tolist()]
    ids, drawn = pipeline.vocabulary.ids, []
    for place, scale in enumerate(scales):
        logits = []
        for row in rows:
            fed = torch.tensor([row + [int(ids[token]) for token in drawn]])
            logits.append(pipeline.model.lm_head(pipeline.model.model(input_ids=fed).last_hidden_state[0, -1]))
        guided = logits[1] + scale * (logits[0] - logits[1])
        drawn.append(CODES if place % 5 == 4 else int(guided[ids[:CODES]].argmax()))
    for method in ("ar", resolve_method("jacobi", {"window": 4})):
        made = draw(decaying, ["a dog"], GRIDS[2], temperature=0, method=method, guidance_scale=20.0)
        assert made.tokens[0].tolist() == drawn


# ---------------------------------------------------------------------------------------------------------------------
# Pictures and files


def test_codes_become_pictures_and_a_saved_pipeline_draws_them_again(tmp_path: Path) -> None:
    made = build("lumina_mgpt")
    family, vqvae = made.family, token_image_models.tiny_vqvae(made.family)
    pipeline = TokenImagePipeline(made.model.float(), made.tokenizer, vqvae, family)
    pipeline.set_progress_bar_config(disable=True)
    settings = {"method": resolve_method("gsd", {"window": 4}), **pixels(pipeline, GRIDS[0])}
    drawn = pipeline(PROMPTS[:2], generator=torch.Generator().manual_seed(3), **settings)
    assert [image.size for image in drawn.images] == [(64, 32)] * 2
    codes = pipeline.vocabulary.codes(drawn.tokens, *GRIDS[0])
    with torch.no_grad():
        wanted = vqvae.decode(codes, force_not_quantize=True, shape=(2, *GRIDS[0], 8)).sample
    levels = ((wanted.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1).byte()
    for image, level in zip(drawn.images, levels, strict=True):
        assert (torch.tensor(np.array(image)).int() - level.int()).abs().max() <= 1
    with pytest.raises(UserError, match=r"vqvae must have the 24 codes of the model, got 16"):
        TokenImagePipeline(made.model, made.tokenizer, VQModel(num_vq_embeddings=16, norm_num_groups=1), family)
    pipeline.save_pretrained(tmp_path)
    assert describe_model(tmp_path).family == "lumina_mgpt"
    again = TokenImagePipeline.from_pretrained(tmp_path, family=family)
    again.set_progress_bar_config(disable=True)
    repeated = again(PROMPTS[:2], generator=torch.Generator().manual_seed(3), **settings)
    assert torch.equal(repeated.tokens, drawn.tokens)
    assert [*map(Image.Image.tobytes, repeated.images)] == [*map(Image.Image.tobytes, drawn.images)]
    for wrong, match in (
        ({}, "model must name each of its 8192 codes"),  # as the published one has
        ({"family": "simplear"}, "holds a model of type 'chameleon', where one of type 'qwen2' is needed"),
        ({"family": family, "trust_remote_code": True}, "trust_remote_code cannot be used: no code of a repository"),
    ):
        refused(match, TokenImagePipeline.from_pretrained, tmp_path, **wrong)
    (tmp_path / "tokenizer.json").write_text("{")
    refused("tokenizer: .* cannot be read", TokenImagePipeline.from_pretrained, tmp_path, family=family)


def test_a_description_says_what_commands_need(tmp_path: Path) -> None:
    text = json.dumps(config("emu3_5"))
    (tmp_path / "config.json").write_text(text)
    model = describe_model(tmp_path)
    assert (model.family, model.num_tokens, model.guidance_scale, model.top_k) == ("emu3_5", 64 * 65 - 1, 5.0, 5_120)
    wide = model.sized(ratio="16:9")
    assert wide.size == {"height": 47 * 16, "width": 85 * 16} and len(wide.beside_grid) == 46
    assert wide.num_tokens == 47 * 86 - 1
    refused("ratio must be that of a size of this model, got '5:1'", model.sized, ratio="5:1")
    refused("ratio cannot be given beside height and width", model.sized, height=1024, width=1024, ratio="1:1")
    other = config("anole", architectures=["ChameleonForConditionalGeneration"])
    (tmp_path / "config.json").write_text(json.dumps(other))
    assert describe_model(tmp_path, family="anole").family == "anole"
    refused("fits several: lumina_mgpt or anole", describe_model, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x-omni"}))
    refused("X-Omni cannot be drawn with", describe_model, tmp_path)


@pytest.mark.parametrize(
    ("name", "asked", "grid"),
    [
        ("lumina_mgpt", {}, (48, 48)),
        ("lumina_mgpt", {"height": 1024, "width": 1024}, (64, 64)),
        ("lumina_mgpt", {"ratio": "4:3"}, (42, 54)),
        ("lumina_mgpt_2", {"height": 512, "width": 1024}, (64, 128)),
        ("emu3_5", {"ratio": "21:9"}, (41, 97)),
        ("emu3_5", {"ratio": "2:3"}, (78, 52)),
        ("simplear", {"height": 512, "width": 512}, (32, 32)),
        ("lumina_mgpt", {"height": 1056, "width": 1024}, "the area is at most 1,048,576 pixels"),
        ("lumina_mgpt", {"height": 1024, "width": 224}, "the longer side is at most 4 times the shorter"),
        ("lumina_mgpt", {"height": 528, "width": 512}, "sides are multiples of 32"),
        ("anole", {"height": 256, "width": 256}, "it draws 512 x 512"),
        ("liquid", {"ratio": "16:9"}, "ratio must be that of a size of this model"),
    ],
)
def test_sizes_are_those_of_the_family(name: str, asked: dict[str, Any], grid: Any) -> None:
    sizes = TOKEN_IMAGE_FAMILIES[name].sizes
    if isinstance(grid, str):
        refused(grid, sizes.grid, **asked)
    else:
        assert sizes.grid(**asked) == grid


def test_emu3_5s_words_are_read_from_its_own_file(tmp_path: Path) -> None:
    """Bytes, and a few words that are made of others, by rank; marks lie behind."""
    words = [bytes([byte]) for byte in range(256)]
    words += [b"ab", b"abc", b"bc", b" d", b"og", b" dog", b"\xc3\xa9"]
    lines = [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]
    (tmp_path / "emu3.tiktoken").write_text("\n".join(lines))
    tokenizer = load_tokenizer(tmp_path, TOKEN_IMAGE_FAMILIES["emu3_5"])
    assert tokenizer is not None and len(tokenizer) == len(words) + 3 + 205 + 3
    read = tokenizer("abc abcc dog bcé12<|extra_200|>", add_special_tokens=False)["input_ids"]
    rank = {word: number for number, word in enumerate(words)}
    text = [b"abc", b" ", b"abc", b"c", b" dog", b" ", b"bc", b"\xc3\xa9", b"1", b"2"]
    assert read == [*(rank[each] for each in text), len(words) + 3 + 200]
    (tmp_path / "emu3.tiktoken").write_text("no words")
    refused("tokenizer: .*emu3.tiktoken cannot be read", load_tokenizer, tmp_path, TOKEN_IMAGE_FAMILIES["emu3_5"])


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def refused(match: str, function: Any, *arguments: Any, **settings: Any) -> None:
    with pytest.raises(UserError, match=match) as error:
        function(*arguments, **settings)
    assert "\n" not in str(error.value)


def test_what_cannot_be_done_is_refused_in_one_line(pipeline: TokenImagePipeline) -> None:
    family, side = pipeline.family, pipeline.family.sizes.pixels_a_code
    refused(
        r"height and width must be a size of this model, got .*: it draws",
        pipeline,
        "a dog",
        **pixels(pipeline, (3, 7)),
    )
    refused(f"height must be a multiple of {side}", pipeline, "a dog", height=side + 1, width=side)
    refused("ratio must be that of a size of this model, got '7:1'", pipeline, "a dog", ratio="7:1")
    refused("vqvae must be given to make pictures of codes", pipeline, "a dog", method="ar", **pixels(pipeline, (2, 4)))
    bare = TokenImagePipeline(pipeline.model, family=family)
    refused("prompt needs a pipeline with a tokenizer; give input_ids", bare, "a dog")
    words = token_image_models.tiny_tokenizer(replace(family, marks={}))
    refused(r"tokenizer must have the token <", TokenImagePipeline, pipeline.model, words, family=family)
    if "{prompt}" not in family.null_prompt:
        refused("negative_prompt cannot be used with", pipeline, "a dog", negative_prompt="sand")
    refused("model must be a .*, got Linear", TokenImagePipeline, torch.nn.Linear(2, 2), family=family)


def test_another_vocabulary_is_refused(pipeline: TokenImagePipeline) -> None:
    family = pipeline.family
    many = replace(family, codes=replace(family.codes, count=300_000))
    found = (
        "model must name each of its 300000 codes" if family.codes.first == "named" else "model must have the 300,000"
    )
    refused(found, TokenImagePipeline, pipeline.model, family=many)
    if family.codes.behind_text:
        tokenizer = token_image_models.tiny_tokenizer(family)
        tokenizer.add_tokens(["another"])
        refused("model must have the 24 codes", TokenImagePipeline, pipeline.model, tokenizer, family=family)
    published = {name: number for name, number in family.marks.items() if number is not None}
    if published:
        moved = replace(family, marks={**family.marks, next(iter(published)): 1})
        refused("whose token .* is number", TokenImagePipeline, pipeline.model, pipeline.tokenizer, family=moved)


def test_a_scale_that_its_authors_would_raise_is_refused() -> None:
    pipeline = build("lumina_mgpt_2")
    refused("guidance_scale must be at least 4 for Lumina-mGPT 2.0", pipeline, "a dog", guidance_scale=3.0)


def config(name: str, **other: Any) -> dict[str, Any]:
    family = TOKEN_IMAGE_FAMILIES[name]
    return {"model_type": family.model_type, "vocab_size": family.vocab_size, **other}


def test_families_are_told_apart_by_their_config() -> None:
    assert find_family(None, config("emu3_5")).name == "emu3_5"
    assert find_family(None, config("lumina_mgpt_2")).name == "lumina_mgpt_2"
    assert find_family(None, config("liquid")).name == "liquid"
    assert find_family(None, config("simplear", architectures=["SimpARForCausalLM"])).name == "simplear"
    tuned = config("lumina_mgpt", architectures=["ChameleonXLLMXForConditionalGeneration"])
    assert find_family(None, tuned).name == "lumina_mgpt"
    plain = config("anole", architectures=["ChameleonForConditionalGeneration"])
    refused("config.json of here fits several: lumina_mgpt or anole", find_family, None, plain, "here")
    assert find_family("anole", plain).name == "anole"
    assert find_family(None, {**plain, "vargen_family": "anole"}).name == "anole"
    refused("family must be one of .*, got 'anol' .did you mean 'anole'", find_family, "anol", plain)
    refused("X-Omni cannot be drawn with", find_family, None, {"model_type": "x-omni"})
    refused("fits no family which draws token by token", find_family, None, {"model_type": "qwen2"}, "here")


def test_the_target_wants_a_null_prompt_for_every_prompt() -> None:
    pipeline = build("liquid")
    asked = pipeline.encode_prompt("a dog", GRIDS[0])
    with pytest.raises(ValueError, match="negative_input_ids must be given for every prompt where guidance is on"):
        TokenImageTarget(pipeline.model, pipeline.vocabulary, [asked], height=2, width=4, guidance_scale=3.0)
