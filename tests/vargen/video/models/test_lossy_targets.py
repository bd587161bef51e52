"""FastV and SparseVLM: against loops that hide what is left out, and on a model with planted attention."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import decode
from specdecode.roles import Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.tree import TokenTree
from vargen.video.models import lossy_targets
from vargen.video.models.lossy_targets import (
    FastVTarget,
    PruningTarget,
    SparseVLMTarget,
    density_peaks,
    sparsevlm_raters,
    sparsevlm_stages,
)
from vargen.video.models.pruning import keep_by_attention, keep_highest, token_budget, visual_gain
from vargen.video.models.request import VideoRequest, prepare_request
from vargen.video.models.target import VideoTarget

Models = Callable[..., Any]
Inputs = Callable[..., dict[str, Tensor]]
Slowly = Callable[..., Tensor]
STAGES = {1: 0.5, 2: 0.2}


def answer(target: VideoTarget, count: int = 16, drafter: Drafter | None = None) -> list[int]:
    result = decode(
        target,
        max_new_tokens=count,
        sampling=SamplingConfig(temperature=0.0),
        streams=RandomStreams.from_seeds([0]),
        drafter=drafter,
    )
    return result.tokens[0].tolist()


def left(target: PruningTarget, layer: int = -1) -> list[int]:
    """Numbers of the visual tokens that a layer has cached."""
    visual = target.requests[0].is_visual
    places = target.prompts[0].places[layer].tolist()
    return (visual.cumsum(0) - 1)[[place for place in places if visual[place]]].tolist()


class SlowTarget:
    """What a target with some tokens hidden from later layers says, every time from the start."""

    def __init__(self, slowly: Slowly, model: Any, request: VideoRequest) -> None:
        self.slowly, self.model, self.request = slowly, model, request
        self.num_prompt = request.input_ids.shape[1]
        self.visual = request.is_visual.nonzero()[:, 0].tolist()

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        """[V] after the prompt and some tokens."""
        request, self.shown = self.request, list(self.visual)
        new = self.model.get_input_embeddings()(torch.tensor([tokens], dtype=torch.long))
        embeds = torch.cat((request.inputs_embeds, new), 1)
        places = (request.next_position + torch.arange(len(tokens))).expand(len(request.position_ids), 1, -1)
        length = self.num_prompt + len(tokens)

        def sees(layer: int, key_head: int) -> Tensor:
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            gone = [place for place in self.visual if place not in self.shown]
            mask[:, gone] = False
            mask[gone, gone] = True  # so that their softmax has something; nobody reads them
            return mask

        positions = torch.cat((request.position_ids, places), 2)
        states = self.slowly(self.model.model.language_model, embeds, positions, sees, self.between)
        return self.model.lm_head(states[-1]).float()

    def answer(self, count: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens

    def between(self, layer: int, states: Tensor, attention: Tensor) -> Tensor:
        raise NotImplementedError


class SlowFastV(SlowTarget):
    def __init__(self, slowly: Slowly, model: Any, request: VideoRequest, budget: int, layer: int) -> None:
        super().__init__(slowly, model, request)
        self.budget, self.layer = budget, layer

    def between(self, layer: int, states: Tensor, attention: Tensor) -> Tensor:
        if layer + 1 == self.layer:
            paid = attention.mean(0)[self.num_prompt - 1]
            self.shown = sorted(sorted(self.shown, key=lambda place: -float(paid[place]))[: self.budget])
        return states


class SlowSparseVLM(SlowTarget):
    def __init__(
        self, slowly: Slowly, model: Any, request: VideoRequest, budgets: dict[int, int], cluster_size: int
    ) -> None:
        super().__init__(slowly, model, request)
        self.budgets, self.cluster_size = budgets, cluster_size
        after = range(self.visual[-1] + 1, self.num_prompt)
        embeds = request.inputs_embeds[0]
        shares = torch.stack([torch.stack([embeds[v] @ embeds[t] for t in after]).softmax(0) for v in self.visual])
        relevance = shares.mean(0).tolist()
        self.raters = [t for t, each in zip(after, relevance, strict=True) if each > sum(relevance) / len(relevance)]

    def between(self, layer: int, states: Tensor, attention: Tensor) -> Tensor:
        if layer + 1 not in self.budgets:
            return states
        paid = torch.stack([attention[:, rater].mean(0) for rater in self.raters]).mean(0)
        ranked = sorted(self.shown, key=lambda place: -float(paid[place]))
        kept, gone = ranked[: self.budgets[layer + 1]], ranked[self.budgets[layer + 1] :]
        if gone:
            recycled = gone[: int(0.3 * len(gone)) + 1]
            centres, owner = slow_density_peaks(states[recycled], len(recycled) // self.cluster_size + 1)
            states = states.clone()
            means = [
                states[[recycled[i] for i in range(len(recycled)) if owner[i] == number]].mean(0)
                for number in range(len(centres))
            ]
            for centre, mean in zip(centres, means, strict=True):
                states[recycled[centre]] = mean
            kept = kept + [recycled[centre] for centre in centres]
        self.shown = sorted(kept)
        return states


def slow_density_peaks(points: Tensor, num_clusters: int) -> tuple[list[int], list[int]]:
    """Centres by falling score, and each point's cluster."""
    count = len(points)
    distance = [
        [float((points[i].double() - points[j].double()).norm() / points.shape[1] ** 0.5) for j in range(count)]
        for i in range(count)
    ]
    density = []
    for row in distance:
        nearest = sorted(row)[:num_clusters]
        density.append(2.718281828459045 ** -(sum(each**2 for each in nearest) / len(nearest)))
    furthest = max(max(row) for row in distance)
    scores = []
    for i in range(count):
        # Two points that are each other's nearest are often equally dense; the first one then counts as the denser.
        to_denser = [distance[i][j] for j in range(count) if (-density[j], j) < (-density[i], i)]
        scores.append(min(to_denser, default=furthest) * density[i])
    centres = sorted(range(count), key=lambda i: -scores[i])[:num_clusters]
    owner = [min(range(num_clusters), key=lambda number: distance[i][centres[number]]) for i in range(count)]
    for number, centre in enumerate(centres):
        owner[centre] = number
    return centres, owner


@pytest.mark.parametrize(("layer", "keep_ratio"), [(1, 0.5), (2, 0.25), (2, 0.05)])
def test_fastv_is_the_loop_with_tokens_hidden(
    architecture: str, models: Models, inputs_of: Inputs, slowly: Slowly, layer: int, keep_ratio: float
) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, 3))
    target = FastVTarget(model, request, keep_ratio, layer)
    budget = round(request.num_visual * keep_ratio)
    slow = SlowFastV(slowly, model, request, budget, layer)
    torch.testing.assert_close(target.prefill().logits[0, 0], slow.logits([]), rtol=1e-3, atol=1e-3)
    assert answer(target, 10) == slow.answer(10)
    assert [request.is_visual.nonzero()[:, 0].tolist()[number] for number in left(target)] == slow.shown
    check_budgets(target, [request.num_visual] * layer + [budget] * (3 - layer))


def check_budgets(target: PruningTarget, counts: list[int]) -> None:
    """Visual tokens cached by each layer."""
    num_text = int((~target.requests[0].is_visual).sum())
    assert [keys.shape[2] for keys, _ in target.prompt_cache()] == [num_text + count for count in counts]
    assert len(target.prompts[0].visual_hidden_states) == counts[-1]


@pytest.mark.parametrize("cluster_size", [10, 2])
@pytest.mark.parametrize("seed", [1, 4])
def test_sparsevlm_is_the_loop_with_tokens_hidden_and_merged(
    architecture: str,
    models: Models,
    inputs_of: Inputs,
    slowly: Slowly,
    cluster_size: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lossy_targets, "_TOKENS_OF_A_CLUSTER", cluster_size)
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, seed))
    target = SparseVLMTarget(model, request, STAGES)
    budgets = {layer: token_budget(request.num_visual, share) for layer, share in sorted(STAGES.items())}
    slow = SlowSparseVLM(slowly, model, request, budgets, cluster_size)
    assert sparsevlm_raters(request).tolist() == slow.raters
    torch.testing.assert_close(target.prefill().logits[0, 0], slow.logits([]), rtol=1e-3, atol=1e-3)
    assert answer(target, 10) == slow.answer(10)
    assert target.prompts[0].places[-1].tolist() == [
        place for place in range(slow.num_prompt) if place in slow.shown or place not in slow.visual
    ]
    counts = [request.num_visual]
    for budget in budgets.values():
        recycled = int(0.3 * (counts[-1] - budget)) + 1
        counts.append(budget + recycled // cluster_size + 1)
    check_budgets(target, counts)


def lossy(method: str, model: Any, request: VideoRequest, keep_ratio: float = 0.25) -> PruningTarget:
    if method == "fastv":
        return FastVTarget(model, request, keep_ratio)
    return SparseVLMTarget(model, request, sparsevlm_stages(3, keep_ratio))


METHODS = pytest.mark.parametrize("method", ["fastv", "sparsevlm"])


@METHODS
def test_keeping_everything_is_plain_decoding(
    architecture: str, models: Models, inputs_of: Inputs, method: str
) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, 3))
    plain = answer(VideoTarget(model, request))
    assert answer(lossy(method, model, request, 1.0)) == plain
    assert answer(lossy(method, model, request, 0.05)) != plain, "leaving out must matter"


@METHODS
def test_trees_are_judged_as_chains_are(architecture: str, models: Models, inputs_of: Inputs, method: str) -> None:
    """Every layer's part of the mask fits its cache: drafting changes nothing of what a lossy target says."""
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, 3))
    alone = answer(lossy(method, model, request))
    tree = DraftModelTreeDrafter(VideoTarget(model, request), StaticTree.published("mc_sim_7b_63"))
    assert answer(lossy(method, model, request), drafter=tree) == alone
    itself = DraftModelDrafter(lossy(method, model, request), FixedDraftSize(DraftSize(4, 3)), "top")
    target = lossy(method, model, request)
    assert answer(target, drafter=itself) == alone
    assert target.forward_passes == 1 + -(-15 // 4)


@METHODS
def test_requests_on_one_model_leave_each_other_alone(
    architecture: str, models: Models, inputs_of: Inputs, method: str
) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture, 3))
    target, plain = lossy(method, model, request), VideoTarget(model, request)
    wanted = plain.prefill().logits
    token = TokenTree.chain(torch.tensor([[20]]))
    wanted_after = plain.forward(token.tokens, token.ancestor_mask(), token.depth).logits
    before = count_hooks(model)
    target.prefill()
    for hooks in (lambda: target._hooks(target.prompts[0]), target._narrowing):
        handles = hooks()
        assert torch.equal(plain.prefill().logits, wanted)
        after = plain.forward(token.tokens, token.ancestor_mask(), token.depth).logits
        assert torch.equal(after, wanted_after)
        for handle in handles:
            handle.remove()
    assert count_hooks(model) == before


def count_hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_mask_that_is_spelled_out_is_cut_as_well(architecture: str, models: Models, inputs_of: Inputs) -> None:
    """The fast path has no mask in a prefill; the slow one has."""
    model = deepcopy(models(architecture))
    request = prepare_request(model, inputs_of(architecture, 3))
    fast = FastVTarget(model, request, 0.25).prefill().logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(FastVTarget(model, request, 0.25).prefill().logits, fast, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("depth", "ratio", "stages"),
    [
        (32, 192 / 576, {3: 300 / 576, 7: 200 / 576, 16: 110 / 576}),
        (32, 128 / 576, {3: 303 / 576, 7: 110 / 576, 16: 36 / 576}),
        (32, 64 / 576, {3: 66 / 576, 7: 30 / 576, 16: 17 / 576}),
        (28, 32 / 576, {3: 33 / 576, 6: 15 / 576, 14: 8.5 / 576}),
        (32, 1.0, {3: 1.0, 7: 1.0, 16: 1.0}),
        (3, 1.0, {1: 1.0, 2: 1.0}),
        (3, 64 / 576, {1: 30 / 576, 2: 17 / 576}),
    ],
)
def test_schedules_are_the_published_ones(depth: int, ratio: float, stages: dict[int, float]) -> None:
    found = sparsevlm_stages(depth, ratio)
    assert list(found) == list(stages)
    assert list(found.values()) == pytest.approx(list(stages.values()))


@given(st.integers(2, 80), st.floats(0.01, 1.0))
def test_schedules_fall_and_fit(depth: int, ratio: float) -> None:
    stages = sparsevlm_stages(depth, ratio)
    assert all(1 <= layer < depth for layer in stages) and list(stages) == sorted(stages)
    shares = list(stages.values())
    assert all(0 < share <= 1 for share in shares) and shares == sorted(shares, reverse=True)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 14), st.integers(0, 10_000), st.data())
def test_clusters_against_loops(count: int, seed: int, data: st.DataObject) -> None:
    num_clusters = data.draw(st.integers(1, count))
    points = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    centres, owner = density_peaks(points, num_clusters)
    assert (centres.tolist(), owner.tolist()) == slow_density_peaks(points, num_clusters)


def test_clusters_of_equal_points_and_of_separate_ones() -> None:
    centres, owner = density_peaks(torch.zeros(6, 3), 3)
    assert len(set(centres.tolist())) == 3 and owner[centres].tolist() == [0, 1, 2]
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    noise = 0.01 * torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    _, owner = density_peaks(10 * torch.eye(3, 4)[groups] + noise, 3)
    assert len({(int(group), int(each)) for group, each in zip(groups, owner, strict=True)}) == 3


# A model with planted attention. Embeddings say what a token is in some channels and are noise in the others.
WORD, SHOWN, SINK, FILLER, DECOY, TOPIC, NOISE = 0, 1, 2, 3, 4, 5, 8
NUM_VISUAL, SHOWN_TOKENS, DECOYS, SINK_TOKEN = 24, [5, 11, 12, 20], [2, 9, 15, 18], 7


def plant(model: Any) -> Any:
    """Words attend to what is shown, fillers to decoys, everything to the sink; the layers turn what is shown into
    words. Values are zero, so attention moves nothing."""
    model = deepcopy(model)
    with torch.no_grad():
        for layer in model.model.language_model.layers:
            for parameter in (*layer.self_attn.parameters(), *layer.mlp.parameters()):
                parameter.zero_()
            # Channels that the positions hardly turn; one per way of attending.
            queries, keys = layer.self_attn.q_proj, layer.self_attn.k_proj
            queries.weight[7::16, WORD], keys.weight[7::16, SHOWN] = 0.5, 0.5
            queries.weight[15::16, FILLER], keys.weight[15::16, DECOY] = 0.5, 0.5
            queries.bias[6::16], keys.weight[6::16, SINK] = 2.0, 2.0
            layer.mlp.gate_proj.weight[0, SHOWN], layer.mlp.up_proj.weight[0, SHOWN] = 0.5, 0.5
            layer.mlp.down_proj.weight[WORD, 0] = 0.1
    return model


def planted_request(model: Any, with_sink: bool) -> VideoRequest:
    """Three tokens, the video, and a question: filler, word, filler, filler, filler, word."""
    generator = torch.Generator().manual_seed(0)
    question = [FILLER, WORD, FILLER, FILLER, FILLER, WORD]
    is_visual = torch.tensor([False] * 3 + [True] * NUM_VISUAL + [False] * len(question))
    embeds = torch.zeros(len(is_visual), 64)
    embeds[:, NOISE:] = 0.05 * torch.randn(len(is_visual), 64 - NOISE, generator=generator)
    video = embeds[3 : 3 + NUM_VISUAL]
    video[:, TOPIC] = 0.5
    video[SHOWN_TOKENS, SHOWN] = 1.0
    video[DECOYS, DECOY] = 1.5
    if with_sink:
        video[SINK_TOKEN, SINK] = 1.0
    for number, kind in enumerate(question):
        embeds[3 + NUM_VISUAL + number, kind] = 1.0
        if kind == WORD:
            embeds[3 + NUM_VISUAL + number, TOPIC] = 0.5
    axes = 3 if hasattr(model.model, "get_rope_index") else 1
    places = torch.arange(len(is_visual)).expand(axes, 1, -1)
    return VideoRequest(
        torch.zeros(1, len(is_visual), dtype=torch.long), embeds[None], places, is_visual, len(is_visual)
    )


def by_gain(model: Any, request: VideoRequest, budget: int) -> list[int]:
    """UV-Prune's choice after two layers."""
    target = VideoTarget(model, request, capture_layers=(0, 2))
    target.prefill()
    before, after = (target.prompts[0].captured[layer] for layer in (0, 2))
    visual, text = request.is_visual, ~request.is_visual
    return keep_highest(visual_gain(before[visual], after[visual], before[text], after[text]), budget).tolist()


@METHODS
def test_what_the_question_is_about_is_kept(architecture: str, models: Models, method: str) -> None:
    model = plant(models(architecture))
    request = planted_request(model, with_sink=False)
    share = len(SHOWN_TOKENS) / NUM_VISUAL
    if method == "fastv":
        target: PruningTarget = FastVTarget(model, request, share, layer=1)
        target.prefill()
        assert left(target) == SHOWN_TOKENS
    else:
        # Were fillers asked, too, the decoys would win.
        words = [3 + NUM_VISUAL + 1, 3 + NUM_VISUAL + 5]
        assert sparsevlm_raters(request).tolist() == words
        target = SparseVLMTarget(model, request, {1: 0.5, 2: share})
        target.prefill()
        assert set(SHOWN_TOKENS) <= set(left(target)) and len(left(target)) == len(SHOWN_TOKENS) + 1
    assert by_gain(model, request, len(SHOWN_TOKENS)) == SHOWN_TOKENS


@METHODS
def test_attention_keeps_a_sink_and_gain_does_not(architecture: str, models: Models, method: str) -> None:
    """A visual token that every query is drawn to, whatever it asks, costs a place among the few that are kept."""
    model = plant(models(architecture))
    request = planted_request(model, with_sink=True)
    budget = len(SHOWN_TOKENS)
    target: PruningTarget
    if method == "fastv":
        target = FastVTarget(model, request, budget / NUM_VISUAL, layer=1)
    else:
        target = SparseVLMTarget(model, request, {1: 0.5, 2: budget / NUM_VISUAL})
    target.prefill()
    assert SINK_TOKEN in left(target)
    whole = VideoTarget(model, request, capture_attention=True)
    whole.prefill()
    assert SINK_TOKEN in keep_by_attention(whole.video_attention(), budget).tolist()
    assert by_gain(model, request, budget) == SHOWN_TOKENS


def test_raters_alike_all_count(models: Models) -> None:
    request = planted_request(models("llava_onevision"), with_sink=False)
    request.inputs_embeds[0, 3 + NUM_VISUAL :] = 1.0
    assert sparsevlm_raters(request).tolist() == list(range(3 + NUM_VISUAL, 9 + NUM_VISUAL))


def test_what_cannot_be_used_is_named(architecture: str, models: Models, inputs_of: Inputs) -> None:
    model = models(architecture)
    request = prepare_request(model, inputs_of(architecture))
    for layer in (0, 3):
        with pytest.raises(ValueError, match="after layer 1 to 2 of this model"):
            FastVTarget(model, request, 0.5, layer)
    with pytest.raises(ValueError, match="keep_ratio"):
        FastVTarget(model, request, 0.0)
    with pytest.raises(ValueError, match="keep_ratio"):
        sparsevlm_stages(32, 1.5)
    with pytest.raises(ValueError, match="num_layers"):
        sparsevlm_stages(1, 0.5)
