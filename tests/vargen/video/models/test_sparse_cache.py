"""STD: what the sparse cache says against a loop over layers and heads, and drafting with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import DecodeResult, decode
from specdecode.roles import Drafter, TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.tree import TokenTree
from vargen.video.models.request import VideoRequest, prepare_request
from vargen.video.models.sparse_cache import SparseDraft
from vargen.video.models.target import VideoTarget

Models = Callable[..., Any]
Inputs = Callable[..., dict[str, Tensor]]
GREEDY, DRAWN = SamplingConfig(temperature=0.0), SamplingConfig()
BUDGET = 7
# Two branches below the root, of which the first goes on.
TREE = TokenTree.from_parents(torch.tensor([[10, 11, 12, 13, 14]]), torch.tensor([[-1, 0, 0, 1, 3]]))


def prefilled(model: Any, request: VideoRequest) -> VideoTarget:
    target = VideoTarget(model, request, capture_attention=True)
    target.prefill()
    return target


@torch.no_grad()
def slow_choice(slowly: Callable[..., Tensor], model: Any, request: VideoRequest, budget: int) -> list[list[Tensor]]:
    """By layer and key head, the visual tokens with most attention, from whole maps."""
    length = request.input_ids.shape[1]
    maps: list[Tensor] = []

    def keep(layer: int, states: Tensor, attention: Tensor) -> Tensor:
        maps.append(attention)
        return states

    causal = torch.ones(length, length, dtype=torch.bool).tril()
    slowly(model.model.language_model, request.inputs_embeds, request.position_ids, lambda *_: causal, keep)
    after = int(request.is_visual.nonzero()[-1]) + 1
    chosen = []
    for attention in maps:  # [heads, T, T]
        scores = attention[:, after:, request.is_visual].mean(1)  # [heads, m]
        groups = [scores[:2].sum(0), scores[2:].sum(0)]
        chosen.append([group.argsort(descending=True)[:budget].sort().values for group in groups])
    return chosen


@torch.no_grad()
def slow_logits(
    slowly: Callable[..., Tensor], model: Any, request: VideoRequest, chosen: list[list[Tensor]], tokens: list[int]
) -> Tensor:
    """[V] after the last of some tokens behind the prompt, which see the chosen visual tokens only."""
    length, num_new = request.input_ids.shape[1], len(tokens)
    embeds = torch.cat((request.inputs_embeds, model.get_input_embeddings()(torch.tensor([tokens]))), 1)
    places = (request.next_position + torch.arange(num_new)).expand(len(request.position_ids), 1, -1)
    visual = request.is_visual.nonzero()[:, 0]

    def sees(layer: int, key_head: int) -> Tensor:
        mask = torch.ones(length + num_new, length + num_new, dtype=torch.bool).tril()
        hidden = torch.ones(len(visual), dtype=torch.bool)
        hidden[chosen[layer][key_head]] = False
        mask[length:, visual[hidden]] = False
        return mask

    positions = torch.cat((request.position_ids, places), 2)
    states = slowly(model.model.language_model, embeds, positions, sees)
    return model.lm_head(states[-1]).float()


def largest_error(slowly: Callable[..., Tensor], model: Any, request: VideoRequest, draft: SparseDraft) -> float:
    """Feeds a tree, keeps a branch of it, feeds a token; how far any logit is from the slow one."""
    chosen = slow_choice(slowly, model, request, BUDGET)
    errors = []
    output = draft.forward(TREE.tokens, TREE.ancestor_mask(), TREE.depth)
    for node, path in enumerate(([10], [10, 11], [10, 12], [10, 11, 13], [10, 11, 13, 14])):
        errors.append(output.logits[0, node] - slow_logits(slowly, model, request, chosen, path))
    draft.commit(torch.tensor([[0, 2, 0]]), torch.tensor([2]))
    one = TokenTree.chain(torch.tensor([[20]]))
    output = draft.forward(one.tokens, one.ancestor_mask(), one.depth)
    errors.append(output.logits[0, 0] - slow_logits(slowly, model, request, chosen, [10, 12, 20]))
    draft.commit(torch.tensor([[0]]), torch.tensor([1]))
    draft.rewind(torch.tensor([2]))
    output = draft.forward(one.tokens, one.ancestor_mask(), one.depth)
    errors.append(output.logits[0, 0] - slow_logits(slowly, model, request, chosen, [10, 20]))
    return float(torch.stack(errors).abs().max())


class CompactPositions(SparseDraft):
    """Planted fault: new tokens stand where the sparse cache ends."""

    def prefill(self) -> TargetOutput:
        output = super().prefill()
        self._next_positions.fill_(self.prompt_length)
        return output


class OneChoice(SparseDraft):
    """Planted fault: all layers keep what the first chooses."""

    def prefill(self) -> TargetOutput:
        (seen,) = self.target.prompts
        seen.attention = seen.attention[:1] * len(seen.attention)
        return super().prefill()


class OneHead(SparseDraft):
    """Planted fault: all key heads keep what the first chooses."""

    def prefill(self) -> TargetOutput:
        (seen,) = self.target.prompts
        seen.attention = [layer[:1].expand_as(layer) for layer in seen.attention]
        return super().prefill()


@pytest.mark.parametrize("seed", [0, 3])
def test_it_says_what_the_loop_says(
    architecture: str, models: Models, inputs_of: Inputs, slowly: Callable[..., Tensor], seed: int
) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, seed))
    draft = SparseDraft(prefilled(model, request), [BUDGET])
    draft.prefill()
    assert largest_error(slowly, model, request, draft) < 2e-3


@pytest.mark.parametrize("fault", [CompactPositions, OneChoice, OneHead])
def test_faults_are_noticed(
    architecture: str, models: Models, inputs_of: Inputs, slowly: Callable[..., Tensor], fault: type[SparseDraft]
) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture))
    draft = fault(prefilled(model, request), [BUDGET])
    draft.prefill()
    assert largest_error(slowly, model, request, draft) > 0.05


def test_the_cache_is_the_targets_own_in_order(architecture: str, models: Models, inputs_of: Inputs) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture))
    target = prefilled(model, request)
    draft = SparseDraft(target, [BUDGET])
    draft.prefill()
    for layer, (whole, sparse) in enumerate(zip(target.prompt_cache(), draft.prompt_cache(), strict=True)):
        for head in range(2):
            kept = draft.kept[0][layer][head]
            assert len(kept) == BUDGET and bool((kept.diff() > 0).all())
            stays = ~request.is_visual
            stays[request.is_visual.nonzero()[:, 0][kept]] = True
            for mine, theirs in zip(sparse, whole, strict=True):
                assert torch.equal(mine[0, head], theirs[0, head, stays])


def answer(
    target: VideoTarget, drafter: Drafter | None = None, sampling: SamplingConfig = GREEDY, count: int = 24
) -> DecodeResult:
    return decode(
        target,
        max_new_tokens=count,
        sampling=sampling,
        streams=RandomStreams.from_seeds([5]),
        drafter=drafter,
    )


def chain_over(draft: SparseDraft, length: int = 4) -> DraftModelDrafter:
    return DraftModelDrafter(draft, FixedDraftSize(DraftSize(length + 1, length)), "top")


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_drafting_changes_no_token(
    architecture: str, models: Models, inputs_of: Inputs, shape: str, sampling: SamplingConfig
) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, 3))
    plain = answer(VideoTarget(model, request), sampling=sampling)
    assert len(set(plain.tokens[0].tolist())) > 1, "a constant answer would prove nothing"
    target = VideoTarget(model, request, capture_attention=True)
    draft = SparseDraft(target, [BUDGET])
    tree = DraftModelTreeDrafter(draft, StaticTree.published("mc_sim_7b_63"))
    fast = answer(target, chain_over(draft) if shape == "chain" else tree, sampling)
    assert torch.equal(fast.tokens, plain.tokens)


def test_a_cache_of_everything_is_always_right(architecture: str, models: Models, inputs_of: Inputs) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, 3))
    target = VideoTarget(model, request, capture_attention=True)
    result = answer(target, chain_over(SparseDraft(target, [request.num_visual])))
    assert result.trace.target_passes == 1 + -(-23 // 5)  # all four of every draft, and the bonus


def test_drafting_starts_without_a_pass(architecture: str, models: Models, inputs_of: Inputs) -> None:
    model = models(architecture)
    target = VideoTarget(model, prepare_request(model, inputs_of(architecture)), capture_attention=True)
    draft = SparseDraft(target, [BUDGET])
    logits = target.prefill().logits
    passes: list[int] = []
    handle = model.model.language_model.register_forward_hook(lambda *_: passes.append(1))
    assert torch.equal(draft.prefill().logits, logits)
    handle.remove()
    assert not passes and draft.forward_passes == 0 and target.forward_passes == 1


def test_what_cannot_be_used_is_named(architecture: str, models: Models, inputs_of: Inputs) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture))
    with pytest.raises(ValueError, match="capture_attention=True"):
        SparseDraft(VideoTarget(model, request), [BUDGET])
    target = VideoTarget(model, request, capture_attention=True)
    for budget in (0, request.num_visual + 1):
        with pytest.raises(ValueError, match="budget must lie between 1 and"):
            SparseDraft(target, [budget])
    with pytest.raises(ValueError, match="must have been prefilled first"):
        SparseDraft(target, [BUDGET]).prefill()
    with pytest.raises(ValueError, match="must have been prefilled"):
        target.prompt_cache()
