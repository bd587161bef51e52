"""What a seed promises, what the trace counts, and that a saved pipeline is the same pipeline."""

from typing import Any

import pytest
import torch
from pipeline_contract import PipelineContract, masks
from refusals import refused
from seeds import seeded
from tiny_pipelines import build_drafting_pipeline, build_tiny_pipeline

from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.arguments import DrawSettings
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on sand", "two cones"]


def codes(pipeline: LlamaGenPipeline, prompt: str | list[str], seeds: list[int], **arguments: object) -> torch.Tensor:
    return pipeline(prompt, generator=seeded(*seeds), output_type="latent", **arguments).images


@pytest.fixture(scope="module")
def pipeline() -> LlamaGenPipeline:
    """In float64; tests must leave it as it is."""
    return build_tiny_pipeline().to(torch.float64)


class TestLlamaGen(PipelineContract):
    """See `PipelineContract`."""

    prompts = PROMPTS
    refused = (
        ({"prompt": None}, "prompt or prompt_embeds must be given, and not both"),
        ({"height": 64}, "height must be 8, the only size this model makes, got 64"),
        ({"class_labels": 3}, "class_labels cannot be used: the model is text-conditional; give prompt"),
    )


@pytest.mark.parametrize("guided", [True, False])
def test_networks_that_draft_follow_known_tokens(guided):
    """In a batch, and in rows that others have left, whose caches have room for given tokens alone."""
    pipeline = build_drafting_pipeline().to(torch.float64)
    shown = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    about: dict[str, Any] = {"image": shown, "mask_image": masks(4, 4, 2), "guidance_scale": 3.0 if guided else 1.0}
    asked = {"output_type": "latent", "temperature": 0, **about}
    plain = pipeline(PROMPTS, method="ar", **asked)
    known = pipeline._request(PROMPTS, DrawSettings(image=shown, mask_image=about["mask_image"])).forced_tokens
    assert known is not None
    options = {"total_tokens": 8, "depth": 3, "tree_top_k": 2}
    for name, settings in (("eagle", options), ("draft-model", {}), ("vvs", options)):
        method = resolve_method(name, settings)
        drafted = pipeline(PROMPTS, method=method, generator=seeded(1, 2, 3), **asked).tokens
        expected = plain.tokens if name != "vvs" else torch.where(known >= 0, known, drafted)
        assert torch.equal(drafted, expected), name
        for each in pipeline.stream(PROMPTS, generator=seeded(1, 2, 3), batch_size=2, method=method, **asked):
            assert torch.equal(each.tokens, drafted[each.index]), name


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("batch", [[0, 1, 2], [2, 0, 1, 2]])
def test_no_neighbour_rounds_a_picture_where_our_own_kernels_compute(tiny_pipeline, monkeypatch, batch):
    """The very logits of every step, so that no near tie is needed to see a difference."""
    said: list[torch.Tensor] = []
    for name in ("prefill", "forward"):
        kept = getattr(LlamaGenTarget, name)

        def told(target: LlamaGenTarget, *arguments: Any, kept: Any = kept) -> Any:
            output = kept(target, *arguments)
            said.append(output.logits[:, -1].clone())
            return output

        monkeypatch.setattr(LlamaGenTarget, name, told)
    codes(tiny_pipeline, [PROMPTS[number] for number in batch], [1 + number for number in batch], method="ar")
    together = torch.stack(said, dim=1)  # [B, steps, V]
    for row, number in enumerate(batch):
        said.clear()
        codes(tiny_pipeline, PROMPTS[number], [1 + number], method="ar")
        assert torch.equal(torch.stack(said, dim=1)[0], together[row])


@pytest.mark.parametrize("trim", [True, False])
def test_no_neighbour_rounds_the_features_of_a_prompt(tiny_pipeline, trim):
    prompts = [*PROMPTS, PROMPTS[0]]
    together, mask = tiny_pipeline.encode_prompt(prompts, trim=trim)
    for row, prompt in enumerate(prompts):
        alone, alone_mask = tiny_pipeline.encode_prompt(prompt, trim=trim)
        assert torch.equal(together[row][mask[row]], alone[0][alone_mask[0]])
        assert not together[row][~mask[row]].any() and (mask.shape[1] < 120) == trim


def test_pixels_can_be_decoded_in_bfloat16(tiny_pipeline, monkeypatch):
    codes = torch.arange(32).view(2, 16) % 24
    weights = {name: value.clone() for name, value in tiny_pipeline.vqvae.state_dict().items()}
    exact = tiny_pipeline.decode_tokens(codes, "pt")
    monkeypatch.setattr(tiny_pipeline, "pixel_dtype", torch.bfloat16)
    near = tiny_pipeline.decode_tokens(codes, "pt")
    assert near.dtype == exact.dtype == torch.float32
    assert 0 < (near - exact).abs().max() < 0.1
    monkeypatch.setattr(tiny_pipeline, "pixel_dtype", torch.float16)
    refused("pixel_dtype must be", tiny_pipeline.decode_tokens, codes, "pt")
    monkeypatch.undo()
    assert torch.equal(tiny_pipeline.decode_tokens(codes, "pt"), exact)
    assert all(torch.equal(value, weights[name]) for name, value in tiny_pipeline.vqvae.state_dict().items())
