"""All levels of a draft at once, against drafting: pair by pair, with a cache, beside a target that decodes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vargen.drafters.eagle_head import EagleHead
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.training.teachers import guided_features
from vargen.training.unrolled import guesses_by_level

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone"]


@pytest.fixture
def drafter(tiny_pipeline: LlamaGenPipeline) -> EagleHead:
    """Of random weights, reading both layers."""
    torch.manual_seed(3)
    sizes = {"dim": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 24, "grid_size": 4}
    made = EagleHead(**sizes, feature_layers=[1, 2]).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 1.0)
    return made


def drafted(pipeline: LlamaGenPipeline, drafter: EagleHead, codes: Tensor, root: int, levels: int) -> list[Tensor]:
    """What a draft along given tokens guesses behind picture token `root`, level by level, both halves [4, dim]."""
    transformer = pipeline.transformer
    embeds, mask = pipeline.encode_prompt(PROMPTS)
    condition = transformer.embed_condition(caption_embeds=embeds)
    target = LlamaGenTarget(transformer, condition, mask, guidance_scale=3.0, max_draft_nodes=16)
    head = LlamaGenDraftHead(drafter, target, most_new_pairs=16)
    before = head.start(target.prefill())
    causal = torch.ones(16, 16, dtype=torch.bool).tril().expand(2, -1, -1)
    places = torch.arange(16).expand(2, -1)
    if root > 0:
        output = target.forward(codes[:, :root], causal[:, :root, :root], places[:, :root])
        before = torch.cat((before, head.features(output)), 1)
    count = root + 1
    output = head.forward(codes[:, :count], before, causal[:, :count, :count], places[:, :count])
    head.advance(torch.tensor([count, count]))
    found = [output.hidden_states[:, -1]]
    for level in range(1, levels):
        alone, depth = torch.ones(2, 1, level, dtype=torch.bool), torch.full((2, 1), level - 1)
        output = head.forward(codes[:, None, root + level], found[-1][:, None], alone, depth)
        found.append(output.hidden_states[:, -1])
    return [torch.cat(each.chunk(2, dim=-1)) for each in found]


def all_at_once(pipeline: LlamaGenPipeline, drafter: EagleHead, codes: Tensor, levels: int) -> list[Tensor]:
    """`levels` times [4, N - 1, dim]."""
    states, mask, length = guided_features(pipeline, PROMPTS, codes, drafter.feature_layers)
    tokens = F.pad(codes[:, :-1].repeat(2, 1), (length - 1, 0))
    positions = torch.arange(1 - length, 16 - 1)[None].clamp(min=-1)
    valid = F.pad(mask[:, : length - 1], (0, 15), value=True)
    features = drafter.fused(states)[:, : tokens.shape[1]]
    return guesses_by_level(drafter, tokens, features, positions, valid, length, levels)


@torch.no_grad()
def test_every_level_is_that_of_drafting(tiny_pipeline, drafter):
    codes = torch.randint(24, (2, 16), generator=torch.Generator().manual_seed(0))
    levels = all_at_once(tiny_pipeline, drafter, codes, 4)
    for root in (0, 1, 5, 11):
        for level, wanted in enumerate(drafted(tiny_pipeline, drafter, codes, root, 4)):
            torch.testing.assert_close(levels[level][:, root + level], wanted, rtol=1e-3, atol=1e-3)
