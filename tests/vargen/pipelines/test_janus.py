"""From text to pictures with Janus: those of transformers by every method, and one line for what cannot be done."""

import json
from typing import Any

import janus_models
import numpy as np
import pytest
import torch
from family_pipelines import build
from janus_models import PROMPTS
from pipeline_contract import PipelineContract
from refusals import refused
from safetensors.torch import load_file, save_file
from seeds import seeded
from torch import Tensor

from vargen.pipelines.janus import JanusPipeline


@pytest.fixture(scope="module")
def pipeline() -> JanusPipeline:
    """With a processor; tests must leave it as it is."""
    return build("janus")


@pytest.fixture(scope="module")
def tokens_of_prompts(pipeline: JanusPipeline) -> dict[str, Tensor]:
    """`PROMPTS` as a user of transformers makes tokens of them."""
    chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in PROMPTS]
    texts = pipeline.processor.apply_chat_template(chats, add_generation_prompt=True)
    return dict(pipeline.processor(text=texts, generation_mode="image", padding=True, return_tensors="pt"))


@pytest.fixture(scope="module")
def by_transformers(pipeline: JanusPipeline, tokens_of_prompts: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Guided greedy codes [3, 16] and pictures [3, 16, 16, 3] uint8, by transformers alone."""
    ids, mask = tokens_of_prompts["input_ids"], tokens_of_prompts["attention_mask"]
    assert len(set(mask.sum(1).tolist())) > 1, "prompts of different lengths"
    codes = janus_models.by_generate(pipeline.model, ids, mask, 5.0)
    with torch.no_grad():
        pictures = list(pipeline.model.decode_image_tokens(codes).float())
    return codes, pipeline.processor.postprocess(pictures, return_tensors="pt")["pixel_values"].permute(0, 2, 3, 1)


def codes(pipeline: JanusPipeline, prompt: str | list[str], seeds: list[int], **arguments: Any) -> Tensor:
    return pipeline(prompt, generator=seeded(*seeds), output_type="latent", **arguments).images.flatten(1)


@pytest.mark.parametrize("method", ["jacobi", "gsd"])
def test_text_becomes_the_tokens_and_pixels_of_transformers(pipeline, by_transformers, method):
    output = pipeline(PROMPTS, temperature=0, method=method)  # gsd is exact when greedy
    assert torch.equal(output.tokens, by_transformers[0])
    for made, wanted in zip(output.images, by_transformers[1], strict=True):
        assert made.size == (16, 16) and np.array_equal(made, wanted)


def test_skipping_needs_no_drafter(pipeline):
    """The likeness is by the model's own codebook."""
    trace = pipeline(PROMPTS, generator=seeded(1, 2, 3), method="vvs-jacobi", output_type="latent").trace
    assert trace.row_tokens == [16] * 3 and 0 < trace.skipped_tokens < 48


def test_eager_attention_in_float32():
    """In float64 transformers' own eager attention gives no numbers for rows that are padded on the left."""
    model, (ids, mask) = janus_models.make().float(), janus_models.prompts()
    model.set_attn_implementation("eager")
    bare = JanusPipeline(model)
    made = bare(input_ids=ids, attention_mask=mask, temperature=0, method="scd", output_type="latent")
    assert torch.equal(made.tokens, janus_models.by_generate(model, ids, mask, 5.0))


def test_tokens_may_be_given_instead_of_prompts(pipeline, tokens_of_prompts, by_transformers):
    bare = JanusPipeline(pipeline.model)
    images, tokens, _ = bare(**tokens_of_prompts, temperature=0, return_dict=False)
    assert torch.equal(tokens, by_transformers[0])
    assert all(np.array_equal(made, wanted) for made, wanted in zip(images, by_transformers[1], strict=True))
    refused("prompt needs a pipeline with a processor; give input_ids", bare, PROMPTS)


def test_what_a_call_does_not_say_is_as_generate_takes_it():
    pipeline = build("janus")
    plain, stated = codes(pipeline, PROMPTS, [1, 2, 3]), {"guidance_scale": 5.0, "temperature": 1.0, "top_p": 1.0}
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], top_k=50, **stated), plain)
    pipeline.model.generation_config.top_k = 2
    assert not torch.equal(codes(pipeline, PROMPTS, [1, 2, 3]), plain)
    assert torch.equal(codes(pipeline, PROMPTS, [1, 2, 3], top_k=50), plain)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def test_a_folder_without_a_processor_serves_tokens(tmp_path):
    janus_models.make().save_pretrained(tmp_path)
    assert JanusPipeline.from_pretrained(tmp_path).processor is None


def test_folders_that_cannot_draw_are_refused(tmp_path, tiny_model_folder):
    load, folder = JanusPipeline.from_pretrained, janus_models.save(tmp_path)
    stored = (folder / "model.safetensors").read_bytes()
    refused("cannot be loaded .*; name a folder, or try again", load, "nobody/no-such-janus", local_files_only=True)
    refused("config.json is missing; name a folder that holds a model of transformers", load, tiny_model_folder)
    weights = load_file(folder / "model.safetensors")
    text_only = {name: value for name, value in weights.items() if "generation" not in name and "vqmodel" not in name}
    save_file(text_only, folder / "model.safetensors", {"format": "pt"})
    refused(r"lacks \d+ weights of a JanusForConditionalGeneration, such as model.generation_aligner", load, folder)
    (folder / "model.safetensors").write_bytes(stored[:-1000])
    refused(r"cannot be loaded \(.*\); copy or download it again", load, folder)
    (folder / "model.safetensors").unlink()
    refused(r"cannot be loaded \(.*no file named.*\); copy or download it again", load, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "emu3"}))
    refused("holds a model of type 'emu3', where one of type 'janus' is needed", load, folder)
    (folder / "config.json").write_text("{")
    refused("cannot be loaded", load, folder)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments

GIVEN = {"prompt": None, "input_ids": torch.ones(1, 3).long()}


class TestJanus(PipelineContract):
    """See `PipelineContract`."""

    prompts = PROMPTS
    side = 4
    refused = (
        ({"prompt": None}, "prompt or input_ids must be given, and not both"),
        ({"input_ids": torch.ones(1, 3).long()}, "prompt or input_ids must be given, and not both"),
        ({"prompt": " ".join(["dog"] * 60)}, r"\d+ tokens; in the model's context of 64 there is room for 48"),
        ({"prompt": None, "input_ids": torch.ones(2, 3)}, "input_ids must be int64"),
        ({"prompt": None, "input_ids": torch.full((1, 3), 99)}, "input_ids must lie between 0 and 19, got 99"),
        ({**GIVEN, "attention_mask": torch.ones(1, 4)}, r"attention_mask must be \[1, 3\], got \[1, 4\]"),
        ({**GIVEN, "attention_mask": torch.tensor([[1, 1, 0]])}, "attention_mask must be 0 at padding on the left"),
        ({"height": 512}, "height must be 16, the only size this model makes, got 512"),
    )


def test_a_model_that_cannot_be_served_is_refused(pipeline):
    broken = build("janus")
    broken.processor.chat_template = None
    refused("prompt needs a processor with a chat template", broken, PROMPTS)
    broken = build("janus")
    broken.model.train()
    refused(r"must be in evaluation mode; call model.eval\(\)", broken, PROMPTS)
    broken = build("janus")
    broken.model.generation_config.pad_token_id = None
    refused(r"guidance_scale must be at most 1 .* lacks pad_token_id", broken, PROMPTS)
    refused("model must be a JanusForConditionalGeneration, got Linear", JanusPipeline, torch.nn.Linear(2, 2))
