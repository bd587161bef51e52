"""The EAGLE head beside a LlamaGen target: its cache and masks against a forward without either, and its errors."""

import pytest
import torch
from random_chains import token_paths
from refusals import refused
from synthetic import decoded
from torch import Tensor
from watching_eagle import Watching

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.sampling import SamplingConfig
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.transformer_layers import CONDITION_POSITION
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget, LlamaGenTargetOutput
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]


def build_drafter(pipeline: LlamaGenPipeline, seed: int = 0, **overrides: object) -> EagleHead:
    torch.manual_seed(seed)
    config = pipeline.transformer.config
    sizes: dict[str, object] = {
        "dim": config.dim, "num_attention_heads": config.num_attention_heads, "intermediate_size": 20,
        "vocab_size": config.vocab_size, "grid_size": config.grid_size,
    }  # fmt: skip
    drafter = EagleHead(**{**sizes, **overrides})  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(std=0.4)
    return drafter.eval()


def build_target(pipeline: LlamaGenPipeline, guidance_scale: float, nodes: int, trim: bool = True) -> LlamaGenTarget:
    with torch.no_grad():
        embeds, mask = pipeline.encode_prompt(PROMPTS, trim=trim)
        condition = pipeline.transformer.embed_condition(caption_embeds=embeds)
    return LlamaGenTarget(pipeline.transformer, condition, mask, guidance_scale=guidance_scale, max_draft_nodes=nodes)


def slow_logits(
    drafter: EagleHead, target: LlamaGenTarget, condition: Tensor, features: list[Tensor], tokens: list[int]
) -> Tensor:
    """Guided logits after the last token, by one forward over all pairs of one row, without cache, mask or batch.

    Args:
        condition: [T', halves * dim] features of the prompt without padding. features: of the tokens that the target
            has judged; pairs beyond them get the drafter's own guesses. tokens: from the start of the picture.
    """
    halves = 2 if target.is_guided else 1
    known = [*condition, *features]
    length = len(condition) - 1
    ids = torch.tensor([0] * length + tokens)
    positions = torch.tensor([CONDITION_POSITION] * length + list(range(len(tokens))))
    while True:
        count = min(len(known), len(ids))
        pairs = torch.stack(known[:count]).view(count, halves, -1).transpose(0, 1)  # [halves, count, dim]
        causal = torch.ones(1, 1, count, count, dtype=torch.bool).tril()
        states = drafter(ids[:count].expand(halves, -1), pairs, positions[:count].expand(halves, -1), causal)
        if count == len(ids):
            break
        known.append(states[:, -1].flatten())
    logits = target.transformer.lm_head(states[:, -1]).float()
    if halves == 1:
        return logits[0]
    return logits[1] + target.guidance_scale * (logits[0] - logits[1])


@pytest.mark.parametrize("shape", [DynamicTree(3), StaticTree.published("mc_sim_7b_63_balanced"), StaticTree.chain(3)])
@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@torch.no_grad()
def test_every_tree_is_what_a_forward_without_cache_would_draft(tiny_pipeline, shape, guidance_scale):
    drafter = build_drafter(tiny_pipeline)
    size = DraftSize(shape.num_nodes, shape.max_depth) if isinstance(shape, StaticTree) else DraftSize(9, 3)
    target = build_target(tiny_pipeline, guidance_scale, size.total_tokens)
    head = LlamaGenDraftHead(drafter, target, EagleDrafter.most_new_pairs(shape, size))
    eagle = Watching(head, shape, FixedDraftSize(size), "top")
    result = decoded(target, 16, SamplingConfig(), drafter=eagle)
    assert result.trace.drafted > 0
    prompt = head.features(eagle.prompt)
    mask = target.condition_mask
    assert mask is not None
    checked = 0
    for draft, lengths in eagle.trees:
        tree = draft.tree
        for row, length in enumerate(lengths.tolist()):
            if length >= 12:  # the oracle has no positions past the picture's end
                continue
            done = result.tokens[row, :length].tolist()
            condition, paths = prompt[row][mask[row]], [(), *token_paths(tree, row)]
            for node in range(tree.num_nodes):
                children = tree.tokens[row, tree.parents[row] == node].tolist()
                if not children or int(tree.depth[row, node]) > 3:
                    continue
                # The newest token is a pair of the target's feature before it, so one feature less than tokens.
                features = eagle.known[row][: length - 1]
                logits = slow_logits(drafter, target, condition, features, [*done, *paths[node]])
                best = logits.topk(len(children)).indices.tolist()
                assert sorted(children) == sorted(best), (row, length, node)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("sampling", [SamplingConfig(temperature=0), SamplingConfig()], ids=["greedy", "sampling"])
@torch.no_grad()
def test_rows_that_diverge_and_end_apart_equal_plain_decoding(tiny_pipeline, sampling):
    plain = decoded(build_target(tiny_pipeline, 3.0, 1), 16, sampling)
    size, shape = DraftSize(20, 4), DynamicTree(6)
    target = build_target(tiny_pipeline, 3.0, size.total_tokens)
    head = LlamaGenDraftHead(build_drafter(tiny_pipeline), target, EagleDrafter.most_new_pairs(shape, size))
    drafter = EagleDrafter(head, shape, FixedDraftSize(size))
    fast = decoded(target, 16, sampling, drafter=drafter)
    assert torch.equal(plain.tokens, fast.tokens)
    assert len({tuple(lengths) for lengths in fast.trace.accepted_lengths}) > 1


@torch.no_grad()
def test_padding_of_a_prompt_is_seen_only_by_drafters_trained_on_it(tiny_pipeline):
    def first_guess(trim: bool, attend_to_padding: bool) -> Tensor:
        target = build_target(tiny_pipeline, 3.0, 1, trim=trim)
        drafter = build_drafter(tiny_pipeline, attend_to_padding=attend_to_padding)
        head = LlamaGenDraftHead(drafter, target, 4)
        feature = head.start(target.prefill())
        one = torch.ones(1, 1, 1, dtype=torch.bool)
        tokens = torch.zeros(3, 1, dtype=torch.long)
        return head.forward(tokens, feature, one, tokens[:1]).logits

    torch.testing.assert_close(first_guess(True, False), first_guess(False, False), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first_guess(False, True), first_guess(False, False), atol=1e-3)
    refused("full length of 120", first_guess, True, True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"vocab_size": 25}, "25 image tokens, this model has 24"),
        ({"grid_size": 8}, "8 tokens along a side, this model has 4"),
        ({"dim": 24}, "24 channels"),
    ],
)
def test_a_drafter_of_another_model_is_refused(tiny_pipeline, overrides, message):
    drafter, target = build_drafter(tiny_pipeline, **overrides), build_target(tiny_pipeline, 1.0, 1)
    refused(message, LlamaGenDraftHead, drafter, target, 4)


@torch.no_grad()
def test_guided_features_hold_both_halves(tiny_pipeline):
    target = build_target(tiny_pipeline, 3.0, 1)
    output = target.prefill()
    assert isinstance(output, LlamaGenTargetOutput) and output.unconditional_hidden_states is not None
    features = LlamaGenDraftHead(build_drafter(tiny_pipeline), target, 4).features(output)
    assert torch.equal(features[..., :16], output.hidden_states)
    assert torch.equal(features[..., 16:], output.unconditional_hidden_states)


def test_states_of_several_layers_are_normed_one_by_one_and_the_last_is_left(tiny_pipeline, own_kernels):
    """Against a loop over layers: the root of the mean square plus 1e-6, no weight."""
    head = build_drafter(tiny_pipeline, feature_layers=[1, 2, 3])
    states = torch.randn(2, 5, 3 * head.config.dim, generator=torch.Generator().manual_seed(0)) * 1e-3
    layers = list(states.split(head.config.dim, dim=-1))
    for number, layer in enumerate(layers[:-1]):
        layers[number] = layer / (layer.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    wanted = torch.cat(layers, dim=-1) @ head.fuse.weight.T + (0 if head.fuse.bias is None else head.fuse.bias)
    assert torch.allclose(head.fused(states), wanted, atol=1e-5)
    with torch.no_grad():  # in the kernels, and in a graph, which has no calls of theirs
        assert torch.allclose(head.fused(states), wanted, atol=1e-5)
        compiled = torch.compile(head.fused, backend="eager", fullgraph=True)
        assert torch.allclose(compiled(states), wanted, atol=1e-5)
