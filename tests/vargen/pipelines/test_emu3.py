"""From text to pictures with Emu3: those of transformers by every method, and one line for what cannot be done."""

from typing import Any

import emu3_models
import numpy as np
import pytest
import torch
from emu3_models import AWAY, CODES, COLUMNS, PROMPTS, ROWS, SIZE
from family_pipelines import build
from pipeline_contract import PipelineContract
from random_heads import save_random_head
from refusals import refused
from seeds import seeded
from torch import Tensor

from vargen.methods.catalogue import resolve_method
from vargen.pipelines.emu3 import Emu3Pipeline

METHODS = pytest.mark.parametrize("method", ["jacobi", "gsd"])  # gsd is exact when greedy


@pytest.fixture(scope="module")
def pipeline() -> Emu3Pipeline:
    """With a processor; tests must leave it as it is."""
    return build("emu3")


@pytest.fixture(scope="module", params=[3.0, 1.0], ids=["guided", "unguided"])
def by_transformers(request: pytest.FixtureRequest, pipeline: Emu3Pipeline) -> tuple[float, Tensor, list[Any]]:
    """A guidance scale, greedy sequences [3, 18] and pictures, by transformers alone."""
    sequences = emu3_models.by_generate(pipeline.model, request.param)
    with torch.no_grad():
        pictures = pipeline.model.decode_image_tokens(image_tokens=sequences, height=ROWS, width=COLUMNS)
    images = pipeline.processor.postprocess(list(pictures.float()), return_tensors="PIL.Image.Image")["pixel_values"]
    return request.param, sequences, images


def codes(pipeline: Emu3Pipeline, prompt: str | list[str], seeds: list[int], **arguments: Any) -> Tensor:
    return pipeline(prompt, generator=seeded(*seeds), output_type="latent", **{**SIZE, **arguments}).images


@METHODS
def test_text_becomes_the_tokens_and_pixels_of_transformers(pipeline, by_transformers, method):
    scale, sequences, pictures = by_transformers
    output = pipeline(PROMPTS, negative_prompt=AWAY, guidance_scale=scale, temperature=0, method=method, **SIZE)
    assert torch.equal(output.tokens, emu3_models.as_drawn(pipeline.model, sequences))
    for made, wanted in zip(output.images, pictures, strict=True):
        assert made.size == (8 * COLUMNS, 8 * ROWS) and np.array_equal(made, wanted)


def test_tokens_may_be_given_instead_of_prompts(pipeline, by_transformers):
    scale, sequences, pictures = by_transformers
    bare = Emu3Pipeline(pipeline.model)
    (ids, mask), (away, away_mask) = emu3_models.tokens(PROMPTS), emu3_models.tokens([AWAY] * 3)
    given = {"input_ids": ids, "attention_mask": mask, "guidance_scale": scale, "temperature": 0, **SIZE}
    images, tokens, _ = bare(**given, negative_input_ids=away, negative_attention_mask=away_mask, return_dict=False)
    assert torch.equal(tokens, emu3_models.as_drawn(pipeline.model, sequences))
    assert all(np.array_equal(made, wanted) for made, wanted in zip(images, pictures, strict=True))
    refused("prompt needs a pipeline with a processor; give input_ids", bare, PROMPTS)
    if scale > 1:  # the null prompt
        refused("prompt needs a pipeline with a processor; give input_ids", bare, **given)


@pytest.mark.parametrize(
    ("arguments", "grid"),
    [({}, (4, 4)), ({"ratio": "16:9"}, (3, 5)), ({"ratio": "1:3"}, (7, 2)), ({"height": 40, "width": 8}, (5, 1))],
)
def test_any_ratio_of_the_processor(pipeline, arguments, grid):
    if "height" not in arguments:
        arguments = {"image_area": 32 * 32, **arguments}
        wanted = pipeline.processor.calculate_generate_size(arguments.get("ratio", "1:1"), 32 * 32, 8)
        assert wanted == grid
    output = pipeline("a dog", output_type="np", **arguments)
    assert output.images.shape == (1, 8 * grid[0], 8 * grid[1], 3)
    assert output.tokens.shape[1] == grid[0] * (grid[1] + 1) - 1


def test_negative_prompts_follow_their_pictures(pipeline):
    repeated = codes(pipeline, PROMPTS[:2], [1, 2, 3, 4], num_images_per_prompt=2, negative_prompt=["sand", "rain"])
    prompts, away = [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2, ["sand", "sand", "rain", "rain"]
    wanted = codes(pipeline, prompts, [1, 2, 3, 4], negative_prompt=away)
    assert torch.equal(repeated, wanted) and int(repeated.max()) < CODES


def test_what_a_call_does_not_say_is_the_models_own_and_then_generates():
    pipeline = build("emu3")
    usual = codes(pipeline, PROMPTS, [1, 2, 3])
    stated = {"guidance_scale": 3.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "negative_prompt": ""}
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], **stated), usual)
    pipeline.model.generation_config.guidance_scale = None  # its authors' scale
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3]), usual)
    pipeline.model.generation_config.top_k = 2
    assert not torch.equal(codes(pipeline, PROMPTS, [1, 2, 3]), usual)
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], top_k=50), usual)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_random_head(tmp_path_factory.mktemp("head"), CODES + 1)


TREE = {"total_tokens": 12, "depth": 6, "tree_top_k": 3}
DRAWN = {"tree": [[0], [1], [0, 0], [0, 1]], "children": "sampled"}


@pytest.mark.parametrize(("scale", "options"), [(3.0, TREE), (1.0, DRAWN)], ids=["guided tree", "drawn"])
def test_heads_draft_lines_that_end_where_they_end(pipeline, head, scale, options):
    plain = pipeline(PROMPTS, temperature=0, guidance_scale=scale, method="ar", output_type="latent", **SIZE)
    eagle = resolve_method("eagle", {"drafter": head, **options})
    drafted = pipeline(PROMPTS, temperature=0, guidance_scale=scale, method=eagle, output_type="latent", **SIZE)
    assert torch.equal(drafted.tokens, plain.tokens) and drafted.trace.target_passes < plain.trace.target_passes
    loose = resolve_method("lantern", {"drafter": head, "delta": 1.0, "num_neighbours": CODES - 1, **options})
    relaxed = pipeline(PROMPTS, temperature=2.0, guidance_scale=scale, method=loose, output_type="latent", **SIZE)
    assert torch.equal(relaxed.tokens == CODES, plain.tokens == CODES) and int(relaxed.images.max()) < CODES


# ---------------------------------------------------------------------------------------------------------------------
# Arguments

IDS = torch.ones(1, 3).long()


class TestEmu3(PipelineContract):
    """See `PipelineContract`."""

    prompts = PROMPTS
    arguments = {"negative_prompt": AWAY, **SIZE}  # noqa: RUF012 (of a class of tests)
    num_tokens = 14
    grid, side = (3, 4), 8
    refused = (
        ({"prompt": None}, "prompt or input_ids must be given, and not both"),
        ({"input_ids": IDS}, "prompt or input_ids must be given, and not both"),
        ({"prompt": " ".join(["dog"] * 60)}, r"\d+ tokens; in the model's context of 64 there is room for 50"),
        ({"negative_prompt": " ".join(["dog"] * 60)}, "prompt has 66 tokens; in the model's context of 64"),
        ({"negative_prompt": ["a", "b"]}, "negative_prompt must be one for all prompts or one for each, 1 here; got 2"),
        ({"prompt": None, "input_ids": torch.full((1, 3), 99)}, "input_ids must lie between 0 and 54, got 99"),
        ({"negative_input_ids": torch.full((1, 3), 99)}, "negative_input_ids must lie between 0 and 54, got 99"),
        ({"negative_input_ids": torch.ones(2, 3).long()}, "negative_input_ids must be given for every prompt"),
        ({"height": 20}, "height must be a multiple of 8, got 20"),
    )


def test_another_model_is_refused():
    refused("model must be a Emu3ForConditionalGeneration, got Linear", Emu3Pipeline, torch.nn.Linear(2, 2))
