"""GLM-Image from text and pictures to priors and pixels: those of diffusers, and one line for what cannot be done."""

import json
from pathlib import Path
from typing import Any

import glm_image_models
import numpy as np
import pytest
import torch
from diffusers import GlmImagePipeline
from glm_image_models import CODES, HEIGHT, PROMPTS, WIDTH
from PIL import Image
from pipeline_contract import PipelineContract
from random_heads import save_random_head
from refusals import refused
from seeds import seeded
from torch import Tensor
from transformers import GlmImageProcessor

from vargen.methods.catalogue import resolve_method
from vargen.pipelines.glm_image import GlmImagePriorPipeline

SIZE = {"height": HEIGHT, "width": WIDTH}
PICTURES = [[glm_image_models.picture(row)] for row in range(3)]
METHODS = pytest.mark.parametrize("method", ["jacobi", "gsd"])  # gsd is exact when greedy


@pytest.fixture(scope="module")
def pipe() -> GlmImagePipeline:
    """Of diffusers; tests must leave it as it is."""
    pipe = glm_image_models.make()
    glm_image_models.mend(pipe)
    return pipe


@pytest.fixture(scope="module")
def pipeline(pipe: GlmImagePipeline) -> GlmImagePriorPipeline:
    return GlmImagePriorPipeline.from_pipe(pipe)


@pytest.fixture(scope="module")
def by_diffusers(pipe: GlmImagePipeline) -> dict[bool, tuple[Tensor, Any, Any]]:
    """Greedy priors, without and with pictures."""
    return {bool(image): glm_image_models.by_diffusers(pipe, PROMPTS, image=image) for image in (None, PICTURES)}


def codes(pipeline: GlmImagePriorPipeline, prompt: str | list[str], seeds: list[int], **arguments: Any) -> Tensor:
    return pipeline(prompt, generator=seeded(*seeds), output_type="latent", **SIZE, **arguments).tokens


def test_a_head_drafts_and_the_priors_stay(pipeline, tmp_path):
    """A random one, in float64; and a teacher sees what decoding sees."""
    head = save_random_head(tmp_path, CODES)
    tree = resolve_method("eagle", {"drafter": head, "total_tokens": 8, "depth": 2, "tree_top_k": 3})
    plain = codes(pipeline, PROMPTS, [1, 2, 3], temperature=0)
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], temperature=0, method=tree), plain)


@METHODS
def test_text_becomes_the_priors_of_diffusers(pipeline, by_diffusers, method):
    priors = pipeline.generate_priors(PROMPTS, temperature=0, method=method, **SIZE)
    assert torch.equal(priors.prior_token_ids, by_diffusers[False][0])
    assert (priors.prior_token_image_ids, priors.source_image_grid_thw) == (None, None)
    assert priors.tokens.shape == (3, 4 + 6) and torch.equal(priors.picture_codes.flatten(1), priors.tokens[:, 4:])


@METHODS
def test_pictures_and_text_become_the_priors_of_diffusers(pipeline, by_diffusers, method):
    ids, image_ids, grids = by_diffusers[True]
    priors = pipeline.generate_priors(PROMPTS, PICTURES, temperature=0, method=method, **SIZE)
    assert torch.equal(priors.prior_token_ids, ids) and priors.tokens.shape == (3, 6)
    assert all(map(torch.equal, priors.prior_token_image_ids, image_ids))
    assert all(map(torch.equal, priors.source_image_grid_thw, grids))


def test_the_published_preview_and_size():
    """With diffusers' and the processor's own numbers: 256 codes of a preview, then 32 x 32 of 1024 pixels a side."""
    pipe = glm_image_models.make(kind=GlmImageProcessor)
    pipe.vision_language_encoder.config.text_config.max_position_embeddings = 2000
    request = GlmImagePriorPipeline.from_pipe(pipe).encode_request("a dog")
    assert request.grids == ((16, 16), (32, 32)) and request.num_tokens == 1280


@pytest.mark.parametrize("given", [False, True], ids=["text", "pictures"])
def test_pixels_are_made_by_diffusers_of_these_priors(pipe, pipeline, given):
    image = PICTURES if given else None
    output = pipeline(PROMPTS, image, generator=seeded(1, 2, 3), num_inference_steps=2, output_type="np", **SIZE)
    generators = seeded(1, 2, 3)
    priors = pipeline.generate_priors(PROMPTS, image, generator=generators, **SIZE)
    wanted = pipe(
        PROMPTS, image, generator=generators, num_inference_steps=2, output_type="np", **SIZE, **priors.arguments()
    ).images
    assert np.array_equal(output.images, wanted) and output.images.shape == (3, HEIGHT, WIDTH, 3)
    assert {"encode_prompt", "prefill", "decode", "decode_images"} <= set(output.trace.phase_seconds)


def test_every_picture_of_a_prompt_has_a_prior_of_its_own(pipeline):
    settings = {"num_inference_steps": 1, "num_images_per_prompt": 2, "output_type": "np"}
    output = pipeline(PROMPTS[:2], generator=seeded(1, 2, 3, 4), **SIZE, **settings)
    assert len({tuple(row) for row in output.tokens.tolist()}) == len(output.images) == 4
    repeated = [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    assert torch.equal(output.tokens, codes(pipeline, repeated, [1, 2, 3, 4]))
    images = pipeline(PROMPTS[:2], PICTURES[:2], **SIZE, **settings).images
    assert len(images) == 4


def test_a_seed_gives_the_same_prior_beside_other_pictures(pipeline):
    together = codes(pipeline, PROMPTS, [1, 2, 3], image=PICTURES)
    for row, (prompt, seed) in enumerate(zip(PROMPTS, (1, 2, 3), strict=True)):
        assert torch.equal(codes(pipeline, prompt, [seed], image=PICTURES[row])[0], together[row])
    assert not torch.equal(codes(pipeline, PROMPTS, [9, 8, 7], image=PICTURES), together)


def test_what_a_call_does_not_say_is_the_models_own_and_then_generates():
    pipeline = GlmImagePriorPipeline.from_pipe(glm_image_models.make())
    usual = codes(pipeline, PROMPTS, [1, 2, 3])
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], temperature=0.9, top_p=0.75, top_k=50), usual)
    assert not torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], temperature=1.0, top_p=1.0), usual)
    pipeline.vision_language_encoder.generation_config.repetition_penalty = 1.2
    refused(r"generation_config.repetition_penalty is 1.2, which is not served", codes, pipeline, PROMPTS, [1, 2, 3])


def test_from_pipe_shares_components_and_settings(pipe, pipeline):
    assert all(pipeline.components[name] is component for name, component in pipe.components.items())
    assert pipeline.vision_language_encoder.dtype == torch.float64
    assert pipeline._progress_bar_config == {"disable": True}
    load = GlmImagePriorPipeline.from_pipe
    refused("pipeline must be a GlmImagePipeline of diffusers, got Linear", load, torch.nn.Linear(2, 2))


# ---------------------------------------------------------------------------------------------------------------------
# Files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as diffusers saves it and the hub has it; tests must leave it as it is."""
    return glm_image_models.save(tmp_path_factory.mktemp("glm_image"))


def test_a_folder_is_loaded_and_saved_in_the_layout_of_diffusers(saved, tmp_path):
    loaded = GlmImagePriorPipeline.from_pretrained(saved, dtype=torch.float32)
    loaded.save_pretrained(tmp_path)
    again = GlmImagePipeline.from_pretrained(tmp_path, dtype=torch.float32)
    assert json.loads((tmp_path / "model_index.json").read_text())["_class_name"] == "GlmImagePipeline"
    wanted = glm_image_models.make_model().float().state_dict()
    for each in (loaded, again):
        found = each.vision_language_encoder.state_dict()
        assert all(torch.equal(value, wanted[name]) for name, value in found.items())


def test_priors_alone_need_no_diffusion(saved):
    nothing = dict.fromkeys(("transformer", "vae", "text_encoder", "tokenizer", "scheduler"))
    bare = GlmImagePriorPipeline.from_pretrained(saved, **nothing)
    bare.processor = glm_image_models.processor()
    assert codes(bare, PROMPTS, [1, 2, 3]).shape == (3, 10)
    refused(r'output_type must be "latent" \(codes\): the pipeline has no tokenizer', bare, PROMPTS, **SIZE)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


class TestGlmImage(PipelineContract):
    """See `PipelineContract`, of priors."""

    prompts = PROMPTS
    arguments = SIZE
    num_tokens = 10
    makes_pixels = False
    refused = (
        ({"prompt": " ".join(["dog"] * 90)}, r"\d+ tokens; in the model's context of 96 there is room for 86"),
        ({"height": 48}, "height must be a multiple of 32, got 48"),
        ({"width": 0}, "width must be at least 32, got 0"),
        ({"guidance_scale": 5.0}, "guidance_scale must be at most 1 .* the autoregressive part of GLM-Image has no"),
        ({"prompt": PROMPTS, "image": PICTURES[0]}, "images must be List"),
        ({"image": Image.new("RGB", (66, 48))}, "of 66 x 48 pixels is no whole number of tokens; resize it to 64"),
    )
    test_known_tokens_are_the_prefix_of_plain_decoding = None  # it takes pictures in prompts
    test_a_saved_pipeline_makes_the_same_pictures = None  # its small previews are of no class of transformers

    def test_codes_of_the_picture_follow_the_preview(self, pipeline):
        output = self.draw(pipeline, method="scd")
        assert torch.equal(output.images, output.tokens[:, 4:].view(3, 2, 3)) and int(output.tokens.max()) < CODES


def test_a_model_that_cannot_be_served_is_refused():
    broken = GlmImagePriorPipeline.from_pipe(glm_image_models.make())
    broken.processor.chat_template = None
    refused("prompt needs a processor with a chat template", codes, broken, PROMPTS, [1, 2, 3])
    load, parts = GlmImagePriorPipeline.from_pipe, {"vision_language_encoder": torch.nn.Linear(2, 2)}
    refused("_encoder must be a GlmImageForConditionalGeneration, got Linear", load, broken, **parts)
