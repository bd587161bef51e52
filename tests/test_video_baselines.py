"""Baselines of the papers' tables: against loops that hide what is left out, in batches, and by their script."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import video_baselines as script
from baselines import METHODS, lossy, resolve_with_baselines
from baselines.lossy import FastVConfig, FastVTarget, PruningTarget, SparseVLMConfig, SparseVLMTarget, sparsevlm_raters
from baselines.sparse_to_dense import SparseDraft, SparseToDenseConfig, prompt_cache
from refusals import raised, refused
from torch import Tensor

from specdecode.loop import decode as run
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.models.architectures.catalogue import ARCHITECTURES
from vargen.video.models.pruning import token_budget
from vargen.video.models.request import VideoRequest, prepare_request
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.answering import VideoAnswerer
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Generation, decode

Slowly = Callable[..., Tensor]
STAGES = {1: 0.5, 2: 0.2}


def answer(target: VideoTarget, count: int) -> list[int]:
    streams, sampling = RandomStreams.from_seeds([0]), SamplingConfig(temperature=0.0)
    return run(target, max_new_tokens=count, sampling=sampling, streams=streams).tokens[0].tolist()


def answers(
    method: VideoMethodConfig, model: Any, inputs: list[dict[str, Tensor]], temperature: float = 0.0
) -> list[list[int]]:
    """Twelve tokens of each, whose seeds go with the questions."""
    seeds = [int(each["input_ids"][0, -1]) for each in inputs]
    generation = Generation(12, SamplingConfig(temperature), seeds, (), DecodeTrace(len(inputs)))
    return decode(method.build(VideoLLMComponents(model, inputs, 12)), generation).token_ids


def left(target: PruningTarget) -> list[int]:
    """Places of the visual tokens that the last layer has cached."""
    return [place for place in target._prompts[0].places[-1].tolist() if target.requests[0].is_visual[place]]


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
            clusters = [[at for at, its in zip(recycled, owner, strict=True) if its == i] for i in range(len(centres))]
            means = [states[cluster].mean(0) for cluster in clusters]
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


@pytest.mark.parametrize(("layer", "keep_ratio"), [(1, 0.5), (2, 0.05)])
def test_fastv_is_the_loop_with_tokens_hidden(architecture, prepared, slowly, layer, keep_ratio):
    model, request = prepared(architecture, 3)
    target = FastVTarget(model, request, keep_ratio, layer)
    budget = round(request.num_visual * keep_ratio)
    slow = SlowFastV(slowly, model, request, budget, layer)
    torch.testing.assert_close(target.prefill().logits[0, 0], slow.logits([]), rtol=1e-3, atol=1e-3)
    assert answer(target, 10) == slow.answer(10)
    assert left(target) == slow.shown


@pytest.mark.parametrize("cluster_size", [10, 2])
def test_sparsevlm_is_the_loop_with_tokens_hidden_and_merged(architecture, prepared, slowly, cluster_size, monkeypatch):
    monkeypatch.setattr(lossy, "_TOKENS_OF_A_CLUSTER", cluster_size)
    model, request = prepared(architecture, 4)
    target = SparseVLMTarget(model, request, STAGES)
    budgets = {layer: token_budget(request.num_visual, share) for layer, share in sorted(STAGES.items())}
    slow = SlowSparseVLM(slowly, model, request, budgets, cluster_size)
    assert sparsevlm_raters(request).tolist() == slow.raters
    torch.testing.assert_close(target.prefill().logits[0, 0], slow.logits([]), rtol=1e-3, atol=1e-3)
    assert answer(target, 10) == slow.answer(10)
    assert left(target) == slow.shown


@torch.no_grad()
def slow_choice(slowly: Slowly, model: Any, request: VideoRequest, budget: int) -> list[list[Tensor]]:
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


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("method", [FastVConfig(layer=1), SparseVLMConfig(keep_ratio=0.5)], ids=lambda each: each.name)
def test_what_forgets_nothing_is_plain_decoding_and_rows_are_what_they_are_alone(name, method, models, inputs_of):
    model, inputs = models(name), [inputs_of(name, 3, 6, 4), inputs_of(name, 1, 9, 6)]
    whole = replace(method, **({"drop_ratio": 0.0} if isinstance(method, FastVConfig) else {"keep_ratio": 1.0}))
    plain = answers(resolve_with_baselines("ar"), model, inputs)
    assert answers(whole, model, inputs) == plain != answers(method, model, inputs)
    assert answers(method, model, inputs) == [answers(method, model, [each])[0] for each in inputs]


def test_a_sparse_cache_is_the_part_of_the_targets_own_that_the_question_attends_to(
    architecture, models, inputs_of, slowly
):
    model, budget = models(architecture), 7
    request = prepare_request(model, inputs_of(architecture))
    target = VideoTarget(model, request, capture_attention=True)
    draft = SparseDraft(target, [budget])
    assert torch.equal(target.prefill().logits, draft.prefill().logits) and not draft.forward_passes
    chosen = slow_choice(slowly, model, request, budget)
    for layer, (whole, sparse) in enumerate(zip(prompt_cache(target, 0), prompt_cache(draft, 0), strict=True)):
        for head, kept in enumerate(chosen[layer]):
            assert torch.equal(draft.kept[0][layer][head], kept)
            stays = ~request.is_visual
            stays[request.is_visual.nonzero()[:, 0][kept]] = True
            for mine, theirs in zip(sparse, whole, strict=True):
                assert torch.equal(mine[0, head], theirs[0, head, stays])
    for wrong in (0, request.num_visual + 1):
        raised(ValueError, "budget must lie between 1 and", SparseDraft, target, [wrong])


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_from_a_sparse_cache_changes_no_token(name, models, inputs_of, temperature):
    model, inputs = models(name), [inputs_of(name, 3, 6, 4), inputs_of(name, 1, 9, 6)]
    plain = answers(resolve_with_baselines("ar"), model, inputs, temperature)
    assert answers(SparseToDenseConfig(draft_length=3), model, inputs, temperature) == plain
    assert len({*plain[0]}) > 1, "a constant answer would prove nothing"


def test_transformers_own_assistant_drafts_blindly_and_greedily(qwen_pair, cases, answerer_of):
    twin = VideoAnswerer.from_pretrained(str(qwen_pair / "target"), str(qwen_pair / "target"))
    asked: Any = (cases[0].frames, "describe the video in detail.")
    plain, stock = (twin.answer(*asked, resolve_with_baselines(name), max_new_tokens=20) for name in ("ar", "assisted"))
    assert stock.token_ids == plain.token_ids
    assert stock.trace.mean_accepted_length < 1, "the assistant has the target's own weights, and sees no frame"
    assert stock.draft_passes and stock.trace.target_passes <= plain.trace.target_passes
    told, assisted = "temperature must be 0 for method assisted", resolve_with_baselines("assisted")
    refused(told, twin.answer, *asked, assisted, max_new_tokens=12, temperature=1.0)


def test_baselines_are_measured_beside_methods(tmp_path, qwen_pair, monkeypatch, capsys):
    monkeypatch.setattr(script, "RESULT", tmp_path / "baselines.json")
    monkeypatch.setattr("metrics.provenance.describe_commit", lambda *_: None)  # git is slow
    models = ["--model", str(qwen_pair / "target"), "--draft_model", str(qwen_pair / "draft"), "--videos", "1"]
    sizes = ["--num_frames", "8", "--image_size", "64", "--max_new_tokens", "8", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["video_baselines.py", *models, *sizes])
    script.main()
    rows = {row["method"]: row for row in json.loads((tmp_path / "baselines.json").read_text())["rows"]}
    assert [*rows] == ["ar", *METHODS] and "retention" in capsys.readouterr().out
    assert all(rows[name]["equal_to_plain"] == 1 for name in METHODS if rows[name]["exact"])
