"""Feature drafters beside tiny targets: no token changes, and what is cached is what a fresh run says."""

from typing import Any

import pytest
import torch
from refusals import raised
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.loop import DecodeResult, decode
from specdecode.roles import TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.video.drafters.video_draft_head import VideoDraftHead
from vargen.video.drafters.video_head import KINDS, TargetStates, VideoHead
from vargen.video.drafters.video_head_folder import new_video_head
from vargen.video.methods.trained import SparrowConfig
from vargen.video.models.pruning import keep_uniform
from vargen.video.models.request import VideoRequest, keep_visual, prepare_request
from vargen.video.models.target import VideoTarget

GREEDY = SamplingConfig(temperature=0.0)
TREE = DynamicTree(4), FixedDraftSize(DraftSize(12, 4))
CHAIN = StaticTree.chain(4), FixedDraftSize(DraftSize(5, 4))


def drafter_of(kind: str, model: Any, **changes: Any) -> VideoHead:
    """An untrained drafter whose parts all do something."""
    network = new_video_head(kind, model, **changes).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return network


def answer(
    network: VideoHead | None,
    model: Any,
    request: VideoRequest,
    shape: tuple[Any, FixedDraftSize] = CHAIN,
    count: int = 9,
    head_of: type[VideoDraftHead] = VideoDraftHead,
) -> tuple[DecodeResult, VideoDraftHead | None]:
    layers = () if network is None else network.config.capture_layers
    target = VideoTarget(model, request, capture_layers=layers)
    head = None if network is None else head_of(network, target)
    drafter = None if head is None else head.drafter(*shape)
    result = decode(
        target, max_new_tokens=count, sampling=GREEDY, streams=RandomStreams.from_seeds([0]), drafter=drafter
    )
    return result, head


class Remembering(VideoDraftHead):
    """Compares every guess with one made without a cache, of the prompt and the pairs that the guess may see."""

    checked = 0
    deepest = 0

    def start(self, prompt: TargetOutput) -> Tensor:
        request = self.target.requests[0]
        layers = self.network.config.capture_layers
        middle = self.target.prompts[0].captured[layers[0]][None, request.is_visual] if layers else None
        features = self.target.prompts[0].hidden_states[None]
        states = TargetStates(request.inputs_embeds, features, request.position_ids, request.is_visual, middle)
        self.prompt = self.network.rows(states, with_video=not self.network.config.text_only)
        self.accepted: list[tuple[Tensor, Tensor]] = []
        self.new: list[tuple[Tensor, Tensor]] = []
        return super().start(prompt)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        output = super().forward(tokens, features, mask, depths)
        self.new = self.new[: mask.shape[2] - tokens.shape[1]]
        self.new += [(tokens[0, i], features[0, i]) for i in range(tokens.shape[1])]
        for query in range(tokens.shape[1]):
            seen = mask[0, query].nonzero()[:, 0].tolist()
            if len(seen) > int(depths[0, query]) + 1:
                continue  # what fills up a row is read by nobody
            self.deepest = max(self.deepest, len(seen))
            wanted = self.slowly([*self.accepted, *(self.new[i] for i in seen)])
            torch.testing.assert_close(output.hidden_states[0, query], wanted, rtol=1e-3, atol=1e-3)
            self.checked += 1
        return output

    def advance(self, counts: Tensor) -> None:
        super().advance(counts)
        self.accepted += self.new[: int(counts[0])]
        self.new = []
        assert int(self._cache.allocated().lengths) == self.prompt.inputs.shape[1] + len(self.accepted)

    def slowly(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        embeds = self.target.model.get_input_embeddings()(torch.stack([token for token, _ in pairs])[None])
        rows = self.network.pairs(embeds, torch.stack([feature for _, feature in pairs])[None], self.prompt.scene)
        compact = self.network.config.compact
        first = self.prompt.inputs.shape[1] if compact else self.target.requests[0].next_position
        places = (first + torch.arange(len(pairs))).expand(len(self.prompt.positions), 1, -1)
        hidden_states = self.network(
            torch.cat((self.prompt.inputs, rows), 1), torch.cat((self.prompt.positions, places), 2)
        )
        return self.network.guesses(hidden_states[:, -1:]).flatten()


@pytest.mark.parametrize(("kind", "compact"), [*((kind, False) for kind in KINDS), ("sparrow", True), ("flash", True)])
def test_cached_drafting_is_what_a_fresh_run_says(architecture, prepared, kind, compact):
    model, request = prepared(architecture, 3)
    network = drafter_of(kind, model, compact=compact)
    result, head = answer(network, model, request, TREE, count=8, head_of=Remembering)
    assert isinstance(head, Remembering) and head.checked >= 3
    if kind != "flash":
        assert head.deepest > 2
    assert len(head.accepted) >= 8 - 2 - TREE[1].size.depth
    # The pairs that stay are each token with the target's own hidden state before it, nobody's guess.
    tokens = result.tokens[0].tolist()
    assert [int(token) for token, _ in head.accepted] == tokens[: len(head.accepted)]
    target = VideoTarget(model, request)
    before = target.prefill().hidden_states
    assert before is not None
    chain = torch.ones(1, len(tokens), len(tokens), dtype=torch.bool).tril()
    states = target.forward(result.tokens, chain, torch.arange(len(tokens))[None]).hidden_states
    assert states is not None
    wanted = torch.cat((before[0, -1:], states[0]))
    for place, (_, feature) in enumerate(head.accepted):
        torch.testing.assert_close(feature, wanted[place], rtol=1e-3, atol=1e-3)


def test_rows_of_text_join_a_token_and_the_state_before_it(architecture, prepared):
    """Written down token by token for a drafter that gives back what it is fed."""
    model, request = prepared(architecture)
    length, visual = request.input_ids.shape[1], request.is_visual.nonzero()[:, 0].tolist()
    features = torch.randn(1, length, 64, generator=torch.Generator().manual_seed(0))
    middle = torch.randn(1, len(visual), 64, generator=torch.Generator().manual_seed(1))
    states = TargetStates(request.inputs_embeds, features, request.position_ids, request.is_visual, middle)
    expected = {"eagle": None, "msd": request.inputs_embeds[0, visual], "sparrow": middle[0]}
    for kind, instead in expected.items():
        network = new_video_head(kind, model)
        rows = network.rows(states, with_video=True)
        assert rows.inputs.shape[1] == length - 1
        seen = 0
        for place in range(1, length):
            pair = torch.cat((request.inputs_embeds[0, place], features[0, place - 1]))
            wanted = network.fc(pair)
            if place in visual:
                wanted = wanted if instead is None else instead[seen]
                seen += 1
            torch.testing.assert_close(rows.inputs[0, place - 1], wanted)
            assert torch.equal(rows.positions[:, 0, place - 1], request.position_ids[:, 0, place])
        text = [place for place in range(1, length) if place not in visual]
        assert rows.text_places.tolist() == text and rows.text_rows.tolist() == [place - 1 for place in text]
        alone = network.rows(states, with_video=False)
        torch.testing.assert_close(alone.inputs, rows.inputs[:, rows.text_rows])
        assert torch.equal(alone.positions, rows.positions[..., rows.text_rows])


def test_compressed_videos_stand_where_their_last_tokens_did(architecture, prepared):
    model, request = prepared(architecture)
    visual = request.is_visual.nonzero()[:, 0]
    states = TargetStates(request.inputs_embeds, request.inputs_embeds.flip(1), request.position_ids, request.is_visual)
    for queries, count in ((5, 5), (len(visual) + 3, len(visual) + 3)):
        network = drafter_of("flash", model, num_queries=queries)
        rows = network.rows(states, with_video=True)
        assert rows.inputs.shape[1] == int((~request.is_visual).sum()) - 1 + count
        wanted = (network.compressor.queries @ states.features[0, visual].T).softmax(-1) @ states.features[0, visual]  # type: ignore[union-attr]
        first = int(visual[0]) - 1
        torch.testing.assert_close(rows.inputs[0, first : first + count], wanted, rtol=1e-4, atol=1e-4)
        at = visual[max(0, len(visual) - count) :]
        torch.testing.assert_close(
            rows.positions[:, 0, first + count - len(at) : first + count], request.position_ids[:, 0, at]
        )
    network = drafter_of("vispec", model, num_queries=3)
    rows = network.rows(states, with_video=True)
    compressed = network.compressor(request.inputs_embeds[:, visual])  # type: ignore[misc]
    torch.testing.assert_close(rows.inputs[0, int(visual[0]) - 1 :][:2], compressed[0, :2])
    torch.testing.assert_close(rows.scene, compressed[:, 2:])
    last = torch.cat((states.features[0, -2], rows.scene[0, 0]))  # type: ignore[index]
    wanted = network.fc(torch.cat((request.inputs_embeds[0, -1], network.mix_scene(last))))  # type: ignore[misc]
    torch.testing.assert_close(rows.inputs[0, -1], wanted)
    before = network.fc(torch.cat((request.inputs_embeds[0, 1], states.features[0, 0])))
    torch.testing.assert_close(rows.inputs[0, 0], before)


def test_only_some_drafters_pay_for_a_longer_video(architecture, models, inputs_of):
    """Keys and values held, counted: flat for text-anchored and compressed drafters, one for one in the others."""
    model = models(architecture)
    whole = prepare_request(model, inputs_of(architecture))
    lengths = (4, 8, whole.num_visual)
    requests = [keep_visual(whole, keep_uniform(whole.num_visual, length)) for length in lengths]
    more = lengths[2] - lengths[0]
    with_video = {"sparrow": more, "msd": more, "eagle": more, "vispec": 0, "flash": 0}
    for kind, text_only, grows in (("sparrow", True, 0), *((kind, False, grows) for kind, grows in with_video.items())):
        network = drafter_of(kind, model, text_only=text_only)
        held, work = [], []
        for request in requests:
            target = VideoTarget(model, request, capture_layers=network.config.capture_layers)
            head = VideoDraftHead(network, target)
            head.start(target.prefill())
            held.append(int(head._cache.allocated().lengths))
            work.append(head.flops)
        text = int((~whole.is_visual).sum()) - 1
        assert held[0] >= text and held[2] - held[0] == grows, kind
        assert (work[0] == work[2]) == (grows == 0), kind
        if text_only:
            assert held == [text] * 3


def test_a_drafter_of_several_places_is_asked_once_a_round(architecture, prepared, monkeypatch):
    model, request = prepared(architecture)
    calls = []
    forward = VideoHead.forward
    monkeypatch.setattr(VideoHead, "forward", lambda *args: calls.append(1) or forward(*args))
    for kind, shape, each in (("flash", CHAIN, 1), ("flash", TREE, 1), ("sparrow", CHAIN, 4), ("sparrow", TREE, 4)):
        calls.clear()
        result, head = answer(drafter_of(kind, model), model, request, shape)
        rounds = result.trace.target_passes - 1
        assert head is not None and rounds > 1
        assert len(calls) == head.forward_passes == 1 + each * rounds  # one is the prompt's


def test_rows_of_several_lengths_guess_what_each_guesses_alone(models, inputs_of):
    model = models("llava_onevision")
    network = drafter_of("eagle", model)
    one = torch.ones(1, 1, 1, dtype=torch.bool)

    def guesses(requests: list[VideoRequest]) -> Tensor:
        target = VideoTarget(model, requests)
        head = VideoDraftHead(network, target)
        head.drafter(*CHAIN)
        tokens = torch.full((len(requests), 1), 3)
        output = head.forward(tokens, head.start(target.prefill()), one, torch.zeros(1, 1, dtype=torch.long))
        assert head.forward_passes == len(requests) + 1  # prompts are fed one after the other, new pairs together
        return output.logits

    requests = [prepare_request(model, inputs_of("llava_onevision", *each)) for each in ((3, 6, 4), (1, 9, 2))]
    together = guesses(requests)
    for row, request in enumerate(requests):
        torch.testing.assert_close(together[row], guesses([request])[0], rtol=1e-4, atol=1e-4)


def test_later_places_are_guessed_from_their_own_features(models, inputs_of):
    model = models("llava_onevision")
    head = VideoDraftHead(
        drafter_of("flash", model), VideoTarget(model, prepare_request(model, inputs_of("llava_onevision")))
    )
    features = torch.randn(2, 4, head.network.dim, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model.lm_head(features)[..., : head.vocab_size]
        torch.testing.assert_close(head.later_logits(features.flatten(1)), wanted[:, 1:])


def test_work_is_counted_as_torch_counts_it(models):
    from torch.utils.flop_counter import FlopCounterMode

    network = drafter_of("flash", models("qwen2_5_vl"))
    network.set_attention("eager")  # whose matrices the counter sees on a CPU
    rows, positions = torch.randn(1, 9, 64), torch.arange(9).expand(3, 1, -1)
    with FlopCounterMode(display=False) as counter:
        network.guesses(network(rows, positions, torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()))
        network.pairs(rows, rows)
    angles = 2 * 9 * 8 * 3  # of rotary positions, if they are a product of matrices
    assert abs(counter.get_total_flops() - network.flops(9, 9)) <= angles


def test_what_a_head_cannot_do_is_refused(prepared):
    model, request = prepared("qwen2_5_vl")
    bridged = drafter_of("sparrow", model, text_only=False)
    raised(ValueError, r"capture_layers=\(1,\)", VideoDraftHead, bridged, VideoTarget(model, request))
    flash = drafter_of("flash", model, draft_length=2)
    short = VideoDraftHead(flash, VideoTarget(model, request))
    raised(ValueError, "draft_length must be at most 2", short.drafter, *CHAIN)
    far = keep_visual(request, torch.arange(request.num_visual))
    object.__setattr__(far, "next_position", 4096)
    raised(ValueError, "too long: the prompt reaches position 4096", VideoDraftHead, flash, VideoTarget(model, far))
    states = TargetStates(request.inputs_embeds, request.inputs_embeds, request.position_ids, request.is_visual)
    raised(ValueError, "visual_states after 1 layers are missing", bridged.rows, states, with_video=True)


def test_sparrows_published_tree_is_a_setting():
    published = SparrowConfig(tree="sparrow_30_4_8", total_tokens=5, depth=2).shape(1)
    assert published == (DynamicTree(8), DraftSize(30, 4))
    assert SparrowConfig(tree="dynamic", total_tokens=30, depth=4, tree_top_k=8).shape(1) == published
