"""From text to codes with every family that is described: its prompt, its rule, every exact method, and refusals."""

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import token_image_models
import torch
from diffusers.models.autoencoders.vq_model import VQModel
from PIL import Image
from pipeline_contract import PipelineContract, check_known_tokens
from refusals import refused
from seeds import seeded
from token_image_models import CODES, GRIDS, PROMPTS, slowly

from specdecode.verifiers.grouped import GroupedVerifier
from vargen.drafters.chameleon_head import ChameleonHead
from vargen.methods.catalogue import resolve_method
from vargen.models.description import describe_model
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES, find_family
from vargen.models.token_images.grammar import vocabulary_of
from vargen.models.token_images.token_image_loading import load_tokenizer
from vargen.models.token_images.token_image_target import _head_of_codes, decaying_scales
from vargen.pipelines.token_images import TokenImagePipeline
from vargen.training.drafter import DrafterTrainingConfig, PictureDrafterTask
from vargen.training.pictures import Lessons
from vargen.training.teachers import teacher_of

NAMES = sorted(TOKEN_IMAGE_FAMILIES)
BESIDE = {
    "jacobi": {"window": 3},
    "sjd": {"window": 3},
    "zipar": {"window": 2},
    "pjd": {"opens_after": 2, "guesses": 2},
    "vvs-rows": {"opens_after": 2, "max_visits": 1, "guesses": 1},
    "rows-quality": {},
}
"""Methods of each kind, with settings that fit every picture."""


def build(name: str) -> TokenImagePipeline:
    family = token_image_models.tiny_family(name)
    model, tokenizer = token_image_models.tiny_model(family), token_image_models.tiny_tokenizer(family)
    return TokenImagePipeline(model, tokenizer, family=family)


@pytest.fixture(scope="module", params=NAMES)
def pipeline(request: pytest.FixtureRequest) -> TokenImagePipeline:
    """Tests must leave it as it is."""
    return build(request.param)


def pixels(pipeline: TokenImagePipeline, grid: tuple[int, int]) -> dict[str, int]:
    side = pipeline.family.sizes.pixels_a_code
    return {"height": grid[0] * side, "width": grid[1] * side}


def draw(
    pipeline: TokenImagePipeline,
    prompts: list[str],
    grid: tuple[int, int] | None = None,
    rows: Sequence[int] = (),
    **arguments: Any,
) -> Any:
    """Codes of these prompts, or of these alone among them, each with its number as its seed."""
    numbers = rows or range(len(prompts))
    sizes = {} if grid is None else pixels(pipeline, grid)
    settings = {"generator": seeded(*numbers), "output_type": "latent", **sizes, **arguments}
    return pipeline([prompts[number] for number in numbers], **settings)


# ---------------------------------------------------------------------------------------------------------------------
# Exact methods


def every_size(pipeline: TokenImagePipeline) -> dict[str, list[int]]:
    """Arguments for a picture of each of `GRIDS`."""
    return {name: [pixels(pipeline, grid)[name] for grid in GRIDS] for name in ("height", "width")}


@pytest.mark.parametrize("scale", [None, 1.0], ids=["guided", "unguided"])
def test_exact_methods_draw_plain_decodings_codes(pipeline, scale):
    """In float32: greedy by every method, and by seed with jacobi; three prompts of unlike lengths and sizes, and each
    of them alone."""
    assert pipeline.model.dtype == torch.float32
    sizes = {**every_size(pipeline), "guidance_scale": scale}
    ends = [pipeline.family.num_tokens(grid) for grid in GRIDS]
    plain = draw(pipeline, PROMPTS, temperature=0, method="ar", **sizes)
    seeded = draw(pipeline, PROMPTS, temperature=1.0, method="ar", **sizes)
    assert [tuple(codes.shape) for codes in plain.images] == [*GRIDS]
    for row, (grid, end) in enumerate(zip(GRIDS, ends, strict=True)):
        marks = (plain.tokens[row, :end] == CODES).nonzero().flatten().tolist()
        assert marks == [*pipeline.family.row_ends(grid)] and not plain.tokens[row, end:].any()
    assert plain.trace.row_tokens == ends and plain.trace.row_passes == ends
    for method in ("jacobi", "sjd", "scd"):
        drafted = resolve_method(method, {"window": 4})
        made = draw(pipeline, PROMPTS, temperature=0, method=drafted, **sizes)
        assert torch.equal(made.tokens, plain.tokens), method
        assert made.trace.row_tokens == ends
        for row, grid in enumerate(GRIDS):
            assert made.trace.row_passes[row] <= ends[row] - len(pipeline.family.row_ends(grid)), method
    fixed = resolve_method("jacobi", {"window": 4})
    assert torch.equal(draw(pipeline, PROMPTS, temperature=1.0, method=fixed, **sizes).tokens, seeded.tokens)
    for row, grid in enumerate(GRIDS):
        alone = draw(pipeline, PROMPTS, grid, [row], temperature=1.0, method="ar", guidance_scale=scale)
        assert torch.equal(alone.tokens[0], seeded.tokens[row, : ends[row]])


@pytest.mark.parametrize("method", BESIDE)
def test_a_seeds_picture_is_the_same_whatever_is_drawn_beside_it(pipeline, method):
    """Alone, beside pictures of other sizes, and in a place that a picture of another size has left."""
    settings: dict[str, Any] = {"temperature": 1.0, "method": resolve_method(method, BESIDE[method])}
    together = draw(pipeline, PROMPTS, **every_size(pipeline), **settings)
    queue = {"generator": seeded(0, 1, 2), "batch_size": 2, "output_type": "latent", **every_size(pipeline)}
    finished = list(pipeline.stream(PROMPTS, **queue, **settings))
    assert sorted(each.index for each in finished) == [0, 1, 2]
    for each in finished:
        alone = draw(pipeline, PROMPTS, GRIDS[each.index], [each.index], **settings)
        assert torch.equal(alone.images[0], together.images[each.index])
        assert torch.equal(alone.images[0], each.image)
        for figure in ("row_passes", "row_tokens", "rows_fed", "drafted"):
            own = [getattr(trace, figure) for trace in (each.trace, alone.trace, together.trace.of_row(each.index))]
            assert own == own[:1] * 3, figure


def test_sizes_are_one_for_all_or_one_for_each(pipeline):
    sizes = every_size(pipeline)
    refused("height must be one for all prompts or one for each, 2 here; got 3", pipeline, ["a", "dog"], **sizes)
    wide = {**sizes, "method": resolve_method("zipar", {"window": 4}), "output_type": "latent"}
    refused("zipar.window must be between 1 and 2, .* of the narrowest picture, got 4", pipeline, PROMPTS, **wide)
    other = {"height": [GRIDS[0][0] * pipeline.family.sizes.pixels_a_code, 16], "width": sizes["width"][:2]}
    refused("height and width must be a size of this model|height must be a multiple", pipeline, PROMPTS[:2], **other)


def test_draft_heads_learn_from_every_family_and_draft_for_it(pipeline, tmp_path):
    plain = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method="ar")
    config = DrafterTrainingConfig(str(tmp_path), num_images=3, evaluation_size=1, batch_size=2, autocast=False)
    tokens = plain.tokens
    lessons = Lessons(teacher_of(pipeline), PROMPTS[1:], tokens[1:], PROMPTS[:1], tokens[:1], {})
    task = PictureDrafterTask(config, lessons)
    loss, _ = task.loss(0, 0.0)
    loss.backward()
    assert loss.isfinite() and all(each.grad.isfinite().all() for each in task.drafter.parameters())
    task.drafter.eval().save_pretrained(tmp_path / "head")
    options = {"drafter": str(tmp_path / "head"), "total_tokens": 8, "depth": 3, "tree_top_k": 2}
    fast = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method=resolve_method("eagle", options))
    assert torch.equal(fast.tokens, plain.tokens) and fast.trace.drafted > 0


@pytest.mark.parametrize("name", ["anole", "lumina_mgpt"])
def test_heads_of_lantern_draft_for_chameleons(name, tmp_path):
    pipeline = build(name)
    torch.manual_seed(0)
    head = ChameleonHead(16, 2, intermediate_size=20, vocab_size=pipeline.model.config.vocab_size)
    head.save_pretrained(tmp_path / "head")
    eagle = resolve_method("eagle", {"drafter": str(tmp_path / "head"), "total_tokens": 8, "depth": 3, "tree_top_k": 2})
    plain = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method="ar")
    fast = draw(pipeline, PROMPTS, GRIDS[0], temperature=0, method=eagle)
    assert torch.equal(fast.tokens, plain.tokens) and fast.trace.drafted > 0


def with_pixels(pipeline: TokenImagePipeline) -> TokenImagePipeline:
    """The same model beside something that makes pictures, by whose codes some methods compare."""
    vqvae = token_image_models.tiny_vqvae(pipeline.family)
    return TokenImagePipeline(pipeline.model, pipeline.tokenizer, vqvae, pipeline.family)


class TestAnole(PipelineContract):
    """See `PipelineContract`; tests below and above run every family."""

    prompts = PROMPTS
    arguments = {"height": 32, "width": 64}  # noqa: RUF012 (of a class of tests)
    num_tokens = 8
    grid, side = (2, 4), 16
    refused = (
        ({"prompt": None}, "prompt or input_ids must be given, and not both"),
        ({"negative_prompt": "sand"}, "negative_prompt cannot be used with"),
    )
    test_a_saved_pipeline_makes_the_same_pictures = None  # its few codes are no published family's
    test_known_tokens_are_the_prefix_of_plain_decoding = None  # of every family, below

    @pytest.fixture(scope="class")
    def pipeline(self) -> TokenImagePipeline:
        made = with_pixels(build("anole"))
        made.model.double()
        return made


def test_known_tokens_are_the_prefix_of_plain_decoding(pipeline):
    """Guided; without guidance `PipelineContract` has two families."""
    check_known_tokens(with_pixels(pipeline), PROMPTS, (4, 4), 16, None, **pixels(pipeline, (4, 4)))


def test_rows_side_by_side_draw_on_every_family(pipeline):
    """Plain decoding where a row waits for all of the one above; else in fewer passes, with marks where rows end."""
    plain = draw(pipeline, PROMPTS, GRIDS[2], temperature=0, method="ar")
    ends = [*pipeline.family.row_ends(GRIDS[2])]
    for name, setting in (("zipar", "window"), ("pjd", "opens_after"), ("vvs-rows", "opens_after")):
        whole, early = (
            draw(pipeline, PROMPTS, GRIDS[2], temperature=0, method=resolve_method(name, {setting: opens}))
            for opens in (4, 1)
        )
        assert name == "vvs-rows" or torch.equal(whole.tokens, plain.tokens), name
        assert early.trace.target_passes < plain.trace.target_passes
        for made in (whole, early):
            assert [(row == CODES).nonzero().flatten().tolist() for row in made.tokens] == [ends] * 3


def test_relaxed_methods_draw_on_every_family(pipeline, monkeypatch):
    """Pictures of several sizes; marks stand where rows end, whatever is taken unjudged or for another code."""
    monkeypatch.setattr(GroupedVerifier.__init__, "__defaults__", (1.0, 4.0))  # random codes are far apart
    made = with_pixels(pipeline)
    plain = draw(made, PROMPTS, temperature=0, method="ar", **every_size(made))
    loose = {"gsd": {"window": 4}, "vvs-jacobi": {"window": 4, "schedule": "likeness", "threshold": 0.0}}
    for name, settings in loose.items():
        drawn = draw(made, PROMPTS, method=resolve_method(name, settings), **every_size(made))
        assert torch.equal(drawn.tokens == CODES, plain.tokens == CODES), name
        assert [tuple(codes.shape) for codes in drawn.images] == [*GRIDS]
        assert drawn.trace.row_tokens == plain.trace.row_tokens
        assert drawn.trace.target_passes < plain.trace.target_passes, name
        assert drawn.trace.relaxed_tokens + drawn.trace.skipped_tokens > 0, name
    greedy = draw(made, PROMPTS, temperature=0, method=resolve_method("gsd", {"window": 4}), **every_size(made))
    assert torch.equal(greedy.tokens, plain.tokens)


def test_a_head_of_codes_alone_draws_what_the_whole_head_does(pipeline):
    """Its rows lie in the model's memory. A hooked head is called whole."""
    head, columns = _head_of_codes(pipeline.model.lm_head, pipeline.vocabulary, torch.device("cpu"))
    first = int(pipeline.vocabulary.ids[0])
    assert columns is None and head.out_features == CODES
    assert head.weight.data_ptr() == pipeline.model.lm_head.weight[first:].data_ptr()
    codes, mark = pipeline.vocabulary.ids[:CODES], pipeline.vocabulary.ids[CODES:]
    mixed = replace(pipeline.vocabulary, ids=torch.cat((codes.flip(0), mark)))
    whole_head, columns = _head_of_codes(pipeline.model.lm_head, mixed, torch.device("cpu"))
    assert whole_head is pipeline.model.lm_head and torch.equal(columns, codes.flip(0)), "codes that lie otherwise"
    states = torch.randn(3, 5, pipeline.model.lm_head.in_features)
    with torch.no_grad():
        torch.testing.assert_close(head(states), pipeline.model.lm_head(states)[..., first : first + CODES])
    part = draw(pipeline, PROMPTS, method="ar", **every_size(pipeline))
    calls: list[int] = []
    with pipeline.model.lm_head.register_forward_hook(lambda *_: calls.append(1)):
        whole = draw(pipeline, PROMPTS, method="ar", **every_size(pipeline))
    assert torch.equal(part.tokens, whole.tokens) and len(calls) == whole.trace.target_passes


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
    "liquid": ("<s> a dog Generate an image based on this description . <boi>", "<s> <unconditional> <boi>"),
}
"""By family, the prompt and the null prompt of a picture of 2 x 4 codes (of 4 x 4 for Lumina-mGPT 2.0, whose patches
have 4 x 4), in words of the tiny tokenizers."""


SETTINGS = {
    "emu3_5": {"guidance_scale": 5.0, "temperature": 1.0, "top_k": 5_120, "top_p": 1.0},
    "lumina_mgpt": {"guidance_scale": 4.0, "temperature": 1.0, "top_k": 2_000, "top_p": 1.0},
    "lumina_mgpt_2": {"guidance_scale": 4.0, "temperature": 1.0, "top_k": 4_096, "top_p": 1.0},
    "anole": {"guidance_scale": 3.0, "temperature": 0.7, "top_k": 0, "top_p": 0.9},
    "simplear": {"guidance_scale": 6.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "liquid": {"guidance_scale": 7.0, "temperature": 0.99, "top_k": 4_096, "top_p": 0.96},
}
"""How the authors' own scripts draw, by the files that each description names as its source."""


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_drawn_as_the_authors_draw_them(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config(name)))
    model = describe_model(tmp_path, family=name)
    found = {setting: getattr(model, setting) for setting in SETTINGS[name]}
    assert found == SETTINGS[name]
    rows = TOKEN_IMAGE_FAMILIES[name].guidance
    assert (rows.image_scale, rows.least) == {"anole": (1.2, None), "lumina_mgpt_2": (None, 4.0)}.get(name, (None,) * 2)


def test_prompts_are_those_of_the_authors(pipeline):
    name = pipeline.family.name
    grid = (4, 4) if name == "lumina_mgpt_2" else (2, 4)
    negative = pipeline.family.negative_prompt
    for null, text in enumerate(WRITTEN[name]):
        words = ids_of(pipeline, text)
        made, mask = pipeline.encode_prompt(negative if null else "a dog", grid, null=bool(null))
        assert made.tolist() == [words] and bool(mask.all())


# ---------------------------------------------------------------------------------------------------------------------
# Anole's and Liquid's rule, slowly


@pytest.mark.parametrize("name", ["anole", "liquid", "simplear"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_codes_are_those_of_the_rule(name, grid):
    pipeline = build(name)
    scale = pipeline.family.guidance.scale
    for text in PROMPTS:
        asked, null = (ids_of(pipeline, written.replace("a dog", text)) for written in WRITTEN[name])
        wanted, logits = slowly(pipeline, [asked, null], [(scale, 1 - scale)], grid)
        made = draw(pipeline, [text], grid, temperature=0, method="jacobi")
        assert made.images.flatten().tolist() == wanted
        target = pipeline._target([grid], [(torch.tensor([ids]), None) for ids in (asked, null)], guidance_scale=scale)
        torch.testing.assert_close(target.prefill().logits[0, 0], logits[0], atol=1e-4, rtol=1e-4)
    assert len(set(wanted)) > 2, "or the comparison says little"


def test_features_of_the_prompt_stand_before_those_of_the_null_prompt():
    pipeline = build("anole")
    asked, null = ((torch.tensor([ids_of(pipeline, text)]), None) for text in WRITTEN["anole"])
    guided = pipeline._target([GRIDS[0]], [asked, null], guidance_scale=3.0).prefill().hidden_states
    plain = pipeline._target([GRIDS[0]], [asked], guidance_scale=1.0).prefill().hidden_states
    torch.testing.assert_close(guided[..., : plain.shape[-1]], plain)
    assert not torch.allclose(guided[..., plain.shape[-1] :], plain, atol=1e-3)


def test_pictures_in_a_prompt_have_a_row_of_their_own():
    """Anole's three rows: null + 1.2 (picture - null) + 3.0 (all - picture)."""
    pipeline = build("anole")
    picture = [8_197, 4, 9, 17, 8_196]
    asked = [ids_of(pipeline, "<s> a dog")[0], *picture, *ids_of(pipeline, "a dog <reserved08706> <racm3:break>")]
    start = asked[0]
    image, null = [start, *picture, 8_197], [start, 8_197]
    wanted, logits = slowly(pipeline, [asked, image, null], [(3.0, 1.2 - 3.0, 1 - 1.2)], GRIDS[0])
    made = pipeline(input_ids=torch.tensor([asked]), temperature=0, output_type="latent", **pixels(pipeline, GRIDS[0]))
    assert made.images.flatten().tolist() == wanted
    two = slowly(pipeline, [asked, null], [(3.0, -2.0)], GRIDS[0])[1]
    assert not torch.allclose(two, logits, atol=1e-2), "or the third row would not matter"


def test_a_scale_decays_as_in_lumina_mgpt_2():
    """Each token multiplies what the one before left, in terms of halved rows and columns, never below 4."""
    scale, wanted = 9.0, []
    for drawn in range(2, 2 + 19):
        scale = max(4.0, scale * (1 - drawn / (4 * 2)))
        wanted.append(scale)
    assert decaying_scales(9.0, 4.0, 8, 4, 19) == wanted and wanted[0] == 6.75 and wanted[-1] == 4.0
    pipeline = build("lumina_mgpt_2")
    refused("guidance_scale must be at least 4 for Lumina-mGPT 2.0", pipeline, "a dog", guidance_scale=3.0)
    family = replace(pipeline.family, guidance=replace(pipeline.family.guidance, least=1.01))
    decaying = TokenImagePipeline(pipeline.model, pipeline.tokenizer, family=family)
    asked, null = (pipeline.encode_prompt(each, GRIDS[2], null=bool(null)) for null, each in enumerate(["a dog", ""]))
    weights = [(scale, 1 - scale) for scale in decaying_scales(20.0, 1.01, 4, 4, 19)]
    drawn, _ = slowly(pipeline, [asked[0][0].tolist(), null[0][0].tolist()], weights, GRIDS[2])
    for method in ("ar", resolve_method("jacobi", {"window": 4})):
        made = draw(decaying, ["a dog"], GRIDS[2], temperature=0, method=method, guidance_scale=20.0)
        assert made.tokens[0].tolist() == drawn
    sizes, settings = every_size(pipeline), {"guidance_scale": 20.0, "method": "ar", "output_type": "latent"}
    queue = decaying.stream(PROMPTS, generator=seeded(0, 1, 2), batch_size=2, **sizes, **settings)
    for each in [*queue]:
        alone = draw(decaying, PROMPTS, GRIDS[each.index], [each.index], **settings)
        assert torch.equal(alone.images[0], each.image), "each picture's scale decays by its own size"


# ---------------------------------------------------------------------------------------------------------------------
# Pictures and files


def test_codes_become_pictures_and_a_saved_pipeline_draws_them_again(tmp_path):
    made = build("lumina_mgpt")
    family, vqvae = made.family, token_image_models.tiny_vqvae(made.family)
    pipeline = TokenImagePipeline(made.model.float(), made.tokenizer, vqvae, family)
    settings = {"method": resolve_method("gsd", {"window": 4}), **pixels(pipeline, GRIDS[0])}
    drawn = pipeline(PROMPTS[:2], generator=torch.Generator().manual_seed(3), **settings)
    assert [image.size for image in drawn.images] == [(64, 32)] * 2
    codes = pipeline.vocabulary.codes(drawn.tokens, *GRIDS[0])
    with torch.no_grad():
        wanted = vqvae.decode(codes, force_not_quantize=True, shape=(2, *GRIDS[0], 8)).sample
    levels = ((wanted.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1).byte()
    for image, level in zip(drawn.images, levels, strict=True):
        assert (torch.tensor(np.array(image)).int() - level.int()).abs().max() <= 1
    parts = made.model, made.tokenizer, VQModel(num_vq_embeddings=16, norm_num_groups=1), family
    refused("vqvae must have the 24 codes of the model, got 16", TokenImagePipeline, *parts)
    pipeline.save_pretrained(tmp_path)
    assert describe_model(tmp_path).family == "lumina_mgpt"
    again = TokenImagePipeline.from_pretrained(tmp_path, family=family)
    repeated = again(PROMPTS[:2], generator=torch.Generator().manual_seed(3), **settings)
    assert torch.equal(repeated.tokens, drawn.tokens)
    assert [*map(Image.Image.tobytes, repeated.images)] == [*map(Image.Image.tobytes, drawn.images)]
    for wrong, match in (
        ({}, "model must name each of its 8192 codes"),  # as the published one has
        ({"family": "simplear"}, "holds a model of type 'chameleon', where one of type 'qwen2' is needed"),
    ):
        refused(match, TokenImagePipeline.from_pretrained, tmp_path, **wrong)
    (tmp_path / "tokenizer.json").write_text("{")
    refused("tokenizer: .* cannot be read", TokenImagePipeline.from_pretrained, tmp_path, family=family)


def test_a_description_says_what_commands_need(tmp_path):
    text = json.dumps(config("emu3_5"))
    (tmp_path / "config.json").write_text(text)
    model = describe_model(tmp_path)
    assert (model.family, model.num_tokens, model.guidance_scale, model.top_k) == ("emu3_5", 64 * 65 - 1, 5.0, 5_120)
    wide = model.sized(ratio="16:9")
    assert wide.size == {"height": 47 * 16, "width": 85 * 16} and len(wide.beside_grid) == 46
    assert wide.num_tokens == 47 * 86 - 1
    refused("ratio must be that of a size of this model, got '5:1'", model.sized, ratio="5:1")
    refused("ratio cannot be given beside height and width", model.sized, height=1024, width=1024, ratio="1:1")


@pytest.mark.parametrize(
    ("name", "asked", "grid"),
    [
        ("lumina_mgpt", {}, (48, 48)),
        ("lumina_mgpt", {"height": 1024, "width": 1024}, (64, 64)),
        ("lumina_mgpt", {"ratio": "4:3"}, (42, 54)),
        ("lumina_mgpt_2", {"height": 512, "width": 1024}, (64, 128)),
        ("emu3_5", {"ratio": "21:9"}, (41, 97)),
        ("emu3_5", {"ratio": "4:3"}, (55, 73)),
        ("emu3_5", {"ratio": "2:3"}, (78, 52)),
        ("simplear", {"height": 512, "width": 512}, (32, 32)),
        ("lumina_mgpt", {"height": 1056, "width": 1024}, "the area is at most 1,048,576 pixels"),
        ("lumina_mgpt", {"height": 1024, "width": 224}, "the longer side is at most 4 times the shorter"),
        ("lumina_mgpt", {"height": 528, "width": 512}, "sides are multiples of 32"),
        ("anole", {"height": 256, "width": 256}, "it draws 512 x 512"),
        ("liquid", {"ratio": "16:9"}, "ratio must be that of a size of this model"),
    ],
)
def test_sizes_are_those_of_the_family(name, asked, grid):
    sizes = TOKEN_IMAGE_FAMILIES[name].sizes
    if isinstance(grid, str):
        refused(grid, sizes.grid, **asked)
    else:
        assert sizes.grid(**asked) == grid


def test_emu3_5s_words_are_read_from_its_own_file(tmp_path):
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
    for apart, together in (("bce\u0301", "bcé"), ("\u1112\u1161\u11ab", "\ud55c"), ("A\u030a", "\u212b")):
        assert tokenizer(apart)["input_ids"] == tokenizer(together)["input_ids"], "as their authors: in NFC"
    (tmp_path / "emu3.tiktoken").write_text("no words")
    refused("tokenizer: .*emu3.tiktoken cannot be read", load_tokenizer, tmp_path, TOKEN_IMAGE_FAMILIES["emu3_5"])


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def test_what_cannot_be_done_is_refused_in_one_line(pipeline):
    family, side = pipeline.family, pipeline.family.sizes.pixels_a_code
    refused(f"height must be a multiple of {side}", pipeline, "a dog", height=side + 1, width=side)
    refused("ratio must be that of a size of this model, got '7:1'", pipeline, "a dog", ratio="7:1")
    refused("vqvae must be given to make pictures of codes", pipeline, "a dog", method="ar", **pixels(pipeline, (2, 4)))
    bare = TokenImagePipeline(pipeline.model, family=family)
    refused("prompt needs a pipeline with a tokenizer; give input_ids", bare, "a dog")
    words = token_image_models.tiny_tokenizer(replace(family, special_tokens={}))
    refused(r"tokenizer must have the token <", TokenImagePipeline, pipeline.model, words, family=family)
    if "{prompt}" not in family.null_prompt:
        refused("negative_prompt cannot be used with", pipeline, "a dog", negative_prompt="sand")
    refused("model must be a .*, got Linear", TokenImagePipeline, torch.nn.Linear(2, 2), family=family)


def test_another_vocabulary_is_refused(pipeline):
    family = pipeline.family
    if family.codes.behind_text:
        tokenizer = token_image_models.tiny_tokenizer(family)
        tokenizer.add_tokens(["another"])
        refused("model must have the 24 codes", TokenImagePipeline, pipeline.model, tokenizer, family=family)
    published = {name: number for name, number in family.special_tokens.items() if number is not None}
    if published:
        moved = replace(family, special_tokens={**family.special_tokens, next(iter(published)): 1})
        refused("whose token .* is number", TokenImagePipeline, pipeline.model, pipeline.tokenizer, family=moved)


def test_codes_are_found_by_their_names():
    """Their ids may lie in any order; as many names as codes are not enough."""
    family = token_image_models.tiny_family("anole")
    model = token_image_models.tiny_model(family)
    names = model.model.vocabulary_mapping.vocab_map
    for code in range(CODES):
        names[token_image_models.letters(code)] = 3 + CODES - code
    assert vocabulary_of(family, model).ids.tolist() == [3 + CODES - code for code in range(CODES)]
    other = token_image_models.tiny_model(family)
    names = other.model.vocabulary_mapping.vocab_map
    names[token_image_models.letters(CODES)] = names.pop(token_image_models.letters(3))
    refused("model must name each of its 24 codes", vocabulary_of, family, other)


def config(name: str, **other: Any) -> dict[str, Any]:
    family = TOKEN_IMAGE_FAMILIES[name]
    return {"model_type": family.model_type, "vocab_size": family.vocab_size, **other}


def test_families_are_told_apart_by_their_config():
    for name in ("emu3_5", "lumina_mgpt_2", "liquid"):
        assert find_family(None, config(name)).name == name
    assert find_family(None, config("simplear", architectures=["SimpARForCausalLM"])).name == "simplear"
    tuned = config("lumina_mgpt", architectures=["ChameleonXLLMXForConditionalGeneration"])
    assert find_family(None, tuned).name == "lumina_mgpt"
    plain = config("anole", architectures=["ChameleonForConditionalGeneration"])
    refused("config.json of here fits several: lumina_mgpt or anole", find_family, None, plain, "here")
    assert find_family("anole", plain).name == "anole"
    assert find_family(None, {**plain, "vargen_family": "anole"}).name == "anole"
    refused("family must be one of .*, got 'anol' .did you mean 'anole'", find_family, "anol", plain)
    for spelling in ("x-omni", "X_Omni"):
        refused("X-Omni cannot be drawn with", find_family, None, {"model_type": spelling})
    refused("fits no family which draws token by token", find_family, None, {"model_type": "qwen2"}, "here")
