"""Pictures in a prompt: the prompt as its authors write it, their rule of guidance, exact methods, and refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import token_image_models
import torch
from family_pipelines import build as build_family
from PIL import Image
from refusals import refused, refuses
from seeds import seeded
from tiny_pipelines import build_tiny_pipeline
from token_image_models import PROMPTS, slowly
from torch import Tensor

from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES

NOISE = np.random.default_rng(1)
SHOWN = [
    Image.fromarray(NOISE.integers(0, 256, (high, wide, 3), np.uint8)) for high, wide in ((30, 40), (48, 24), (9, 9))
]
EACH = [SHOWN[:1], SHOWN[1:2], [SHOWN[2], SHOWN[0]]]
"""Pictures of each of `PROMPTS`."""
GRIDS = {"emu3_5": ((2, 3), (4, 2), (3, 3)), "anole": ((2, 4),) * 3}
"""Rows and columns of `SHOWN` in a prompt, reckoned by hand: of Emu3.5 about 2,048 pixels in their own ratio."""
FORMS = {
    "emu3_5": (
        "<|extra_203|> You are a helpful assistant for x 2 i task . USER : {pictures} {prompt} ASSISTANT : "
        "<|extra_100|>",
        "<|extra_203|> You are a helpful assistant . USER : {pictures} ASSISTANT : <|extra_100|>",
    ),
    "anole": ("<s> {pictures} {prompt} <reserved08706>", "<s> {pictures}", "<s>"),
}
"""What each row of guidance reads before the drawn picture begins."""


def build(family: str) -> Any:
    """With a codebook as near as what the encoder makes, so that pictures have several codes."""
    made = build_family(family)
    if family == "anole":
        with torch.no_grad():
            latents = made.vqvae.encode(torch.rand(1, 3, 64, 64) * 2 - 1).latents
            weight = made.vqvae.quantize.embedding.weight
            weight.mul_(latents.std()).add_(latents.mean((0, 2, 3)))
    return made


@pytest.fixture(scope="module", params=sorted(FORMS))
def pipeline(request: pytest.FixtureRequest) -> Any:
    """Tests must leave it as it is."""
    return build(request.param)


def written(name: str, grid: tuple[int, int], codes: Tensor | None = None) -> str:
    """A picture in words, as the authors' string has it; without codes, what begins one."""
    if name == "anole":
        words = "" if codes is None else " ".join(map(token_image_models.letters, codes.flatten().tolist()))
        return f"<racm3:break> {words}" + ("" if codes is None else " <eoss>")
    begin = f"<|image start|> {grid[0]} * {grid[1]} <|image token|> "
    if codes is None:
        return begin
    rows = [" ".join(f"<|visual-token-{code:06d}|>" for code in row) for row in codes.tolist()]
    return begin + " <|extra_200|> ".join(rows) + " <|image end|>"


def ids_of(pipeline: Any, text: str) -> list[int]:
    def number(word: str) -> int:
        if found := re.match(r"<\|visual-token-(\d+)", word):
            return 151_854 + int(found[1])
        if word.startswith("IMGIMG"):
            return 4 + int("".join(str(ord(letter) - ord("A")) for letter in word[6:-1]))
        return int(pipeline.tokenizer.convert_tokens_to_ids(word))

    return [number(word) for word in re.findall(r"<[^>]*>|\S+", text)]


def codes_of(pipeline: Any, picture: Image.Image, grid: tuple[int, int]) -> Tensor:
    """Scaled as the authors do it: to the whole size, or with its middle filling it."""
    high, wide = (16 * side for side in grid)
    if pipeline.family.name == "anole":
        scale = max(wide / picture.width, high / picture.height)
        size = round(scale * picture.width), round(scale * picture.height)
        left, top = (size[0] - wide) // 2, (size[1] - high) // 2
        scaled = picture.resize(size, Image.Resampling.LANCZOS).crop((left, top, left + wide, top + high))
    else:
        scaled = picture.resize((wide, high), Image.Resampling.BICUBIC)
    levels = torch.from_numpy(np.array(scaled)).permute(2, 0, 1)[None] / 127.5 - 1
    return pipeline._encoder()(levels.float())[0]


def rows_of(pipeline: Any, number: int, grid: tuple[int, int]) -> list[list[int]]:
    """Ids of every row of guidance, of one of `PROMPTS` and its pictures."""
    name = pipeline.family.name
    own = [(SHOWN.index(picture), picture) for picture in EACH[number]]
    texts = [written(name, GRIDS[name][which], codes_of(pipeline, each, GRIDS[name][which])) for which, each in own]
    begin = written(name, grid)
    forms = [form.format(pictures=" ".join(texts), prompt=PROMPTS[number]) for form in FORMS[name]]
    return [ids_of(pipeline, f"{form} {begin}") for form in forms]


def by_rule(pipeline: Any, rows: list[list[int]], grid: tuple[int, int], guided: bool) -> list[int]:
    """By the authors' formulas: Chameleon's of three rows goes 1.2 from none towards the pictures, and 3 from there to
    all; Emu3.5's for any-to-image is of two."""
    weights = {3: (3.0, 1.2 - 3.0, 1 - 1.2), 2: (3.0, -2.0)}[len(rows)]
    return slowly(pipeline, rows, [weights], grid)[0] if guided else slowly(pipeline, rows[:1], [(1.0,)], grid)[0]


def size(grid: tuple[int, int]) -> dict[str, int]:
    return {"height": 16 * grid[0], "width": 16 * grid[1]}


@pytest.mark.parametrize("scale", [None, 1.0], ids=["guided", "unguided"])
def test_every_exact_method_draws_what_the_authors_rule_does(pipeline, scale):
    """In float32, greedily: three prompts with unlike pictures together, and each alone; the size of the last picture
    where none is asked for."""
    name, settings = pipeline.family.name, {"temperature": 0, "output_type": "latent", "guidance_scale": scale}
    grids = [GRIDS[name][0], GRIDS[name][1], GRIDS[name][0]]
    slow = [by_rule(pipeline, rows_of(pipeline, row, grid), grid, scale is None) for row, grid in enumerate(grids)]
    assert len({token for tokens in slow for token in tokens}) > 3, "or the comparison says little"
    shown = [codes_of(pipeline, each, grid) for each, grid in zip(SHOWN, GRIDS[name], strict=True)]
    assert all(len(codes.unique()) > 2 for codes in shown), "or their order says little"
    for method in ("ar", *(resolve_method(each, {"window": 3}) for each in ("jacobi", "sjd", "scd"))):
        made = pipeline(PROMPTS, reference_images=EACH, method=method, **settings)
        assert [tuple(codes.shape) for codes in made.images] == grids
        for row, tokens in enumerate(slow):
            assert made.tokens[row, : len(tokens)].tolist() == tokens
            alone = pipeline(PROMPTS[row], reference_images=EACH[row], method=method, **settings)
            assert alone.tokens[0].tolist() == tokens


def test_a_seed_keeps_its_picture_beside_others_and_on_top_of_a_users(pipeline):
    fixed, grid = resolve_method("jacobi", {"window": 3}), (2, 4)
    settings: dict[str, Any] = {"output_type": "latent", "reference_images": EACH, **size(grid)}

    plain = pipeline(PROMPTS, generator=seeded(0, 1, 2), method="ar", **settings)
    assert torch.equal(pipeline(PROMPTS, generator=seeded(0, 1, 2), method=fixed, **settings).tokens, plain.tokens)
    for each in pipeline.stream(PROMPTS, generator=seeded(0, 1, 2), batch_size=2, method=fixed, **settings):
        assert torch.equal(each.tokens, plain.tokens[each.index])
    words = pipeline(PROMPTS, generator=seeded(0, 1, 2), method="ar", output_type="latent", **size(grid))
    assert not torch.equal(words.tokens, plain.tokens), "pictures of a prompt matter"
    kept = {"image": SHOWN[0].resize((64, 32)), "start_rows": 1}
    both = [pipeline(PROMPTS, generator=seeded(0, 1, 2), method=method, **kept, **settings) for method in ("ar", fixed)]
    assert torch.equal(both[0].tokens, both[1].tokens)
    assert torch.equal(both[0].images[:, 0], codes_of(pipeline, kept["image"], grid)[:1].expand(3, -1))


def test_anole_reads_pictures_among_words():
    pipeline, grid = build("anole"), GRIDS["anole"][0]
    asked = pipeline("a <image> on <image> sand", reference_images=SHOWN[:2], temperature=0, output_type="latent")
    texts = [written("anole", grid, codes_of(pipeline, each, grid)) for each in SHOWN[:2]]
    begin = written("anole", grid)
    full = f"<s> a {texts[0]} on {texts[1]} sand <reserved08706> {begin}"
    rows = [full, f"<s> {' '.join(texts)} {begin}", f"<s> {begin}"]
    assert asked.tokens[0].tolist() == by_rule(pipeline, [ids_of(pipeline, row) for row in rows], grid, True)
    faint = Image.merge("RGBA", (*SHOWN[0].split(), Image.new("L", SHOWN[0].size, 0)))
    settings = {"temperature": 0, "output_type": "latent"}
    white = pipeline("a dog", reference_images=Image.new("RGB", SHOWN[0].size, "white"), **settings)
    assert torch.equal(pipeline("a dog", reference_images=faint, **settings).tokens, white.tokens)


@pytest.mark.parametrize(
    ("pixels", "area", "grid"),
    [
        ((512, 512), None, (64, 64)),
        ((3000, 2000), None, (52, 78)),
        ((1600, 900), None, (48, 85)),
        ((600, 800), 512 * 512, (37, 28)),
        ((4000, 100), None, "must have sides of 1 to 99 codes in the prompt, got 4000 x 100 pixels, which become"),
    ],
)
def test_emu3_5_scales_to_an_area(pixels, area, grid):
    family = TOKEN_IMAGE_FAMILIES["emu3_5"]
    if isinstance(grid, str):
        refused(grid, family.references.grid, pixels, family.sizes, area)
    else:
        assert family.references.grid(pixels, family.sizes, area) == grid


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("emu3_5", {"reference_images": SHOWN[:1] * 4}, "reference_images must be at most 3 of a prompt, got 4"),
        ("emu3_5", {"reference_images": [SHOWN[:1]] * 2}, "a list of pictures for each prompt, 1 here; got 2"),
        ("emu3_5", {"reference_images": []}, "for each prompt a list of pictures, none of them empty"),
        ("emu3_5", {"reference_images": [SHOWN[:1], SHOWN[0]]}, "for each prompt a list of pictures"),
        ("emu3_5", {"reference_images": "cup.png"}, "reference_images must be an image, an array"),
        ("emu3_5", {"reference_images": SHOWN[0].resize((4000, 40))}, "must have sides of 1 to 99 codes"),
        ("emu3_5", {"reference_images": SHOWN[0], "input_ids": torch.ones(1, 4).long()}, "needs prompt"),
        ("emu3_5", {"reference_images": SHOWN[0], "height": 48, "width": 48}, "height and width must be a size of"),
        ("anole", {"reference_images": SHOWN[0], "prompt": "<image> on <image>"}, "has <image> 2 times, for 1 of"),
        ("anole", {"reference_images": SHOWN * 4}, "in the model's context of 128 there is room"),
        ("lumina_mgpt", {"reference_images": SHOWN[0]}, "with Lumina-mGPT: it learned to draw from words alone"),
        ("emu3", {"reference_images": SHOWN[0]}, "with Emu3: its authors say that it cannot edit untuned"),
        ("janus", {"reference_images": SHOWN[0]}, "Janus, whose authors say that it cannot edit untuned"),
        ("llamagen", {"reference_images": SHOWN[0]}, "with LlamaGen; Emu3.5 and Anole read them"),
    ],
)
def test_pictures_that_cannot_be_read_are_refused_in_one_line(name, arguments, said):
    made = build_tiny_pipeline() if name == "llamagen" else build(name)
    prompt = {} if "input_ids" in arguments else {"prompt": "a dog"}
    refused(said, made, **{**prompt, **arguments}, output_type="latent")


def test_no_encoder_and_joining_streams_are_refused():
    pipeline = build("emu3_5")
    bare = type(pipeline)(pipeline.model, pipeline.tokenizer, family=pipeline.family)
    shown = {"reference_images": SHOWN[0], "output_type": "latent"}
    refused("reference_images cannot be used with Emu3.5: no encoder", bare, "a dog", **shown)
    joined = {"generator": [torch.Generator()], "arriving": lambda *_: [], **shown}
    refused("reference_images cannot be given to a stream that others join", pipeline.stream, ["a dog"], **joined)


def test_the_command_reads_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    made = build("emu3_5")
    family = replace(made.family, text_file=None)
    monkeypatch.setitem(TOKEN_IMAGE_FAMILIES, "emu3_5", family)
    made.save_pretrained(tmp_path / "model")
    for number, picture in enumerate(SHOWN[:2]):
        picture.save(tmp_path / f"{number}.png")
    asked = ["generate", "a dog", "--model", str(tmp_path / "model"), "--quiet", "--num_images_per_prompt", "2"]
    both = f"[{tmp_path / '1.png'}, {tmp_path / '0.png'}]"
    assert main([*asked, "--output", str(tmp_path / "out"), "--reference_images", both]) == 0
    for seed in range(2):
        drawn = made("a dog", reference_images=[SHOWN[1], SHOWN[0]], generator=torch.Generator().manual_seed(seed))
        assert np.array_equal(Image.open(tmp_path / "out" / "images" / f"{seed:06d}.png"), drawn.images[0])
        assert drawn.images[0].size == (48, 32)
    told = json.loads((tmp_path / "out" / "config.json").read_text())["settings"]
    assert told["guidance_scale"] == 3.0 and len(told["reference_images"]) == 2
    capsys.readouterr()
    assert main([*asked, "--output", str(tmp_path / "out")]) == 2, "another run"
    monkeypatch.setitem(TOKEN_IMAGE_FAMILIES, "emu3_5", replace(family, references="it learned from words alone"))
    code = main([*asked, "--output", str(tmp_path / "no"), "--reference_images", both])
    refuses(capsys, code, "reference_images cannot be used with a model of the family emu3_5: it learned")
