"""Video-LLMs on the core give what transformers' own `generate` gives, token for token, in fp32."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import raised
from tiny_video_llms import states_behind
from torch import Tensor

from specdecode.tree import TokenTree, chain_layout
from vargen.video.methods.base import SPREADS
from vargen.video.methods.speculative import SpeculativeConfig
from vargen.video.models.pruning import keep_jittered, keep_low_discrepancy, keep_random, keep_uniform, token_budget
from vargen.video.models.request import (
    VideoRequest,
    encode_video,
    keep_share,
    keep_spread,
    keep_visual,
    prepare_request,
)
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.components import VideoLLMComponents


def logits_behind(model: Any, request: VideoRequest, tokens: list[int]) -> Tensor:
    """[V] that the model says after a prompt and the last of the tokens behind it, without a cache."""
    return model.lm_head(states_behind(model, request, tokens)[-1]).float().detach()


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """A tree of up to seven nodes in breadth-first order."""
    count = draw(st.integers(1, 7))
    parents = [-1]
    for node in range(1, count):
        parents.append(draw(st.integers(max(parents[-1], 0), node - 1)))
    tokens = [draw(st.integers(3, 280)) for _ in range(count)]
    return TokenTree.from_parents(torch.tensor([tokens]), torch.tensor([parents]))


def way_to(tree: TokenTree, node: int) -> list[int]:
    """Nodes from the root to `node`."""
    way = []
    while node >= 0:
        way.append(node)
        node = int(tree.parents[0, node])
    return way[::-1]


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(trees(), st.integers(0, 6)), min_size=1, max_size=3), st.booleans())
def test_trees_and_what_is_kept_of_them_are_what_a_fresh_run_says(architecture, prepared, steps, pruned):
    model, request = prepared(architecture, 7)
    if pruned:
        request = keep_visual(request, keep_uniform(request.num_visual, 5))
    target = VideoTarget(model, request)
    target.prefill()
    sequence: list[int] = []
    for tree, choice in steps:
        output = target.forward(tree.tokens, tree.ancestor_mask(), tree.depth)
        for node in range(tree.num_nodes):
            tokens = [int(tree.tokens[0, each]) for each in way_to(tree, node)]
            wanted = logits_behind(model, request, sequence + tokens)
            torch.testing.assert_close(output.logits[0, node], wanted, rtol=1e-3, atol=1e-3)
        kept = way_to(tree, choice % tree.num_nodes)
        target.commit(torch.tensor([kept]), torch.tensor([len(kept)]))
        sequence += [int(tree.tokens[0, each]) for each in kept]


def test_rewinding_forgets(architecture, prepared):
    model, request = prepared(architecture, 7)
    target = VideoTarget(model, request)
    target.prefill()
    chain = TokenTree.chain(torch.tensor([[10, 11, 12, 13]]))
    target.forward(chain.tokens, chain.ancestor_mask(), chain.depth)
    target.commit(torch.arange(4)[None], torch.tensor([3]))
    target.rewind(torch.tensor([2]))
    one = TokenTree.chain(torch.tensor([[20]]))
    logits = target.forward(one.tokens, one.ancestor_mask(), one.depth).logits
    torch.testing.assert_close(logits[0, 0], logits_behind(model, request, [10, 20]), rtol=1e-3, atol=1e-3)


def test_pruning_keeps_text_order_and_positions(architecture, models, inputs_of):
    model, inputs = models(architecture), inputs_of(architecture, 1)
    request = prepare_request(model, inputs)
    kept = torch.tensor([0, 3, 4])
    pruned = keep_visual(request, kept)
    places = torch.cat((request.is_visual.nonzero()[:, 0][kept], (~request.is_visual).nonzero()[:, 0])).sort().values
    assert torch.equal(pruned.inputs_embeds, request.inputs_embeds[:, places])
    assert torch.equal(pruned.position_ids, request.position_ids[..., places])
    assert pruned.num_visual == 3 and pruned.next_position == request.next_position


def test_a_share_is_of_what_shows_something_and_separators_stay(architecture, models, inputs_of):
    request = prepare_request(models(architecture), inputs_of(architecture, 1))
    assert request.num_separators == (1 if architecture == "llava_onevision" else 0)
    shown, asked = request.num_visual - request.num_separators, []

    def first(count: int, budget: int) -> Tensor:
        asked.append((count, budget))
        return torch.arange(budget)

    kept = keep_share(request, 0.5, first)
    assert asked == [(shown, token_budget(shown, 0.5))]
    assert kept.tolist() == [*range(asked[0][1]), *range(shown, request.num_visual)]
    pruned = keep_visual(request, kept)
    if request.num_separators:
        last = request.is_visual.nonzero()[-1, 0]
        assert torch.equal(pruned.inputs_embeds[0, pruned.is_visual][-1], request.inputs_embeds[0, last])


def test_a_spread_has_a_seeded_generator_of_its_own_for_each_request(architecture, models, inputs_of):
    """What a request is shown depends on the seed, and not on who was asked before it."""
    requests = [prepare_request(models(architecture), inputs_of(architecture, 1, length)) for length in (6, 9)]
    shown = requests[0].num_visual - requests[0].num_separators
    budget, separators = token_budget(shown, 0.5), [*range(shown, requests[0].num_visual)]
    places = requests[0].position_ids[:, 0, requests[0].is_visual][:, :shown]
    expected = {
        "uniform": keep_uniform(shown, budget),
        "random": keep_random(shown, budget, torch.Generator().manual_seed(5)),
        "jittered": keep_jittered(shown, budget, torch.Generator().manual_seed(5)),
        "low_discrepancy": keep_low_discrepancy(places, budget, torch.Generator().manual_seed(5)),
    }
    assert tuple(expected) == SPREADS
    for by, kept in expected.items():
        found = [keep_spread(request, 0.5, by, 5).tolist() for request in requests]
        assert found[0] == found[1] == kept.tolist() + separators
        others = [keep_spread(requests[0], 0.5, by, seed).tolist() for seed in range(6)]
        assert all(other == found[0] for other in others) == (by == "uniform")
        pruned = SpeculativeConfig(keep_ratio=0.5, pruning=by, pruning_seed=5, drafter="self").build(
            VideoLLMComponents(models(architecture), [inputs_of(architecture, 1)], max_new_tokens=9)
        )
        pruned.target.prefill()
        pruned.network.prefill()
        seen = keep_visual(requests[0], torch.tensor(found[0]))
        assert torch.equal(pruned.network.requests[0].inputs_embeds, seen.inputs_embeds)
    raised(ValueError, "by must be one of uniform, random", keep_spread, requests[0], 0.5, "even", 0)


@pytest.mark.parametrize("layer", [1, 2])
def test_hidden_states_after_a_layer_are_those_of_the_decoder(architecture, prepared, layer):
    """Of prompts and new tokens, against what the decoder itself gives out."""
    model, request = prepared(architecture, 2)
    own, asked = VideoTarget(model, request, states_after=layer), VideoTarget(model, request)
    asked.feature_layers = (layer,)
    tokens = torch.tensor([[5, 7, 9]])
    layout = chain_layout(*tokens.shape, tokens.device)
    for target in (own, asked):
        target.prefill()
    assert torch.equal(own.prompts[0].visual_hidden_states, asked.prompts[0].hidden_states[request.is_visual])
    ours, theirs = (target.forward(tokens, layout.mask, layout.depth) for target in (own, asked))
    assert ours.hidden_states is not None and theirs.hidden_states is not None
    assert torch.equal(ours.hidden_states, theirs.hidden_states) and torch.equal(ours.logits, theirs.logits)
    hooks = dict(own.language_model.layers[layer - 1]._forward_hooks)
    own.prefill()
    assert own.language_model.layers[layer - 1]._forward_hooks == hooks, "no hook is left"
    raised(ValueError, "states_after must lie between", VideoTarget, model, request, states_after=0)


@pytest.mark.parametrize("kept", [[3, 1], [1, 1], [-1], [999]])
def test_impossible_choices_are_refused(architecture, models, inputs_of, kept):
    request = prepare_request(models(architecture), inputs_of(architecture))
    raised(ValueError, "kept must be ascending", keep_visual, request, torch.tensor(kept))


def test_prompts_without_a_video_are_refused(architecture, models, inputs_of):
    model, inputs = models(architecture), inputs_of(architecture)
    ids, pixels = inputs["input_ids"], inputs.pop("pixel_values_videos")
    raised(ValueError, "pixel_values_videos", prepare_request, model, inputs)
    raised(ValueError, "no frames", encode_video, model, {**inputs, "pixel_values_videos": pixels[:0]})
    for wrong, message in (
        (torch.tensor([[5, 6, 7]]), "no place for the video"),
        (ids.repeat(2, 1), "one prompt"),
        (ids.repeat(1, 2), "visual tokens, the video gives"),
    ):
        given = {**inputs, "pixel_values_videos": pixels, "input_ids": wrong}
        raised(ValueError, message, prepare_request, model, given)


def test_layers_and_vocabularies_that_are_not_there(prepared):
    model, request = prepared("llava_onevision")
    raised(ValueError, "capture_layers", VideoTarget, model, request, capture_layers=(4,))
    raised(ValueError, "on_layer must .* the model's 3 layers, got 4", VideoTarget, model, request, on_layer={4: print})
    assert VideoTarget(model, request, vocab_size=295).prefill().logits.shape == (1, 1, 295)
