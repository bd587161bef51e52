"""Parts of videos in training: what is shown keeps its place, and what is taken away is seen until then only."""

from dataclasses import replace

import pytest
import torch

from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig, build_model
from scenes.models.processor import build_processor
from scenes.training import video_views
from vargen.video.models.frames import CAPTION_PROMPTS, VideoFrames, processor_inputs
from vargen.video.models.pruning import keep_uniform, visual_gain
from vargen.video.models.request import keep_visual, prepare_request

TOWERS = {"text": TextModelConfig(32, 64, 4, 4, 2), "vision": TowerConfig(32, 64, 1, 2)}
CONFIG = VideoLLMConfig(image_size=64, num_frames=8, **TOWERS)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = build_model(CONFIG, build_processor(CONFIG.image_size, CONFIG.patch_size).tokenizer).eval()
    for weight in model.parameters():
        weight.data.mul_(3 if weight.ndim == 2 else 1)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def request_of(model):
    frames = VideoFrames.from_frames(torch.randint(0, 255, (8, 3, 64, 64), dtype=torch.uint8))
    processor = build_processor(CONFIG.image_size, CONFIG.patch_size)
    return prepare_request(model, processor_inputs(processor, frames, CAPTION_PROMPTS[0]))


def view_of(request) -> video_views.View:
    places = request.is_visual.nonzero()[:, 0]
    return video_views.View(request.inputs_embeds, request.position_ids, slice(int(places[0]), int(places[-1]) + 1))


def test_a_part_is_what_a_drafter_is_shown(model, request_of):
    kept = keep_uniform(request_of.num_visual, 9)
    expected, actual = keep_visual(request_of, kept), view_of(request_of).with_kept(kept[None])
    assert torch.equal(actual.embeds, expected.inputs_embeds)
    assert torch.equal(actual.positions, expected.position_ids)
    assert actual.visual.stop - actual.visual.start == 9


def test_a_repeated_token_counts_as_so_many(model):
    """Copies that see nothing but each other are all alike, so text behind them sees one value so many times."""
    language_model = model.model.language_model
    generator = torch.Generator().manual_seed(3)
    token, text = torch.randn(2, 1, 1, 32, generator=generator)
    words = torch.cat((text, text.flip(-1), text.roll(5, -1)), dim=1)

    def answered(copies: int, repeats: int) -> torch.Tensor:
        positions = torch.tensor([0] * copies + [1, 2, 3]).expand(3, 1, -1)
        embeds = torch.cat((token.expand(1, copies, 32), words), dim=1)
        view = video_views.View(embeds, positions, slice(0, copies), repeats)
        return video_views.hidden_states(language_model, view)[:, copies:]

    torch.testing.assert_close(answered(1, 6), answered(6, 1), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(answered(1, 1), answered(6, 1), atol=1e-2)


def test_views_of_views_keep_their_repeats(model, request_of):
    view = replace(view_of(request_of), repeats=4)
    assert view.with_kept(torch.tensor([[0, 2]])).stretched(2).repeats == 4


def test_visual_tokens_taken_away_are_seen_before_and_not_after(model, request_of):
    """An oracle by masks: all rows stay, and text may no longer look at visual ones from that layer on."""
    view, language_model = view_of(request_of), model.model.language_model
    layer = 2
    with video_views.without_visual_after(language_model, layer, view):
        actual = video_views.hidden_states(language_model, view)
    length = view.embeds.shape[1]
    states, rope = view.embeds, language_model.rotary_emb(view.embeds, view.positions)
    for number, each in enumerate(language_model.layers):
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if number >= layer:
            mask[:, view.visual] = torch.eye(length, dtype=torch.bool)[:, view.visual]
        states = each(states, attention_mask=mask[None, None], position_embeddings=rope)
        states = states if isinstance(states, torch.Tensor) else states[0]
    expected = language_model.norm(states)[:, view.text_columns]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    whole = video_views.hidden_states(language_model, view)[:, view.text_columns]
    assert not torch.allclose(actual, whole, atol=1e-2)
    again = video_views.hidden_states(language_model, view)[:, view.text_columns]
    torch.testing.assert_close(again, whole)  # nothing is left


def test_greedy_goes_on_as_a_pass_over_everything_says(model, request_of):
    view = view_of(request_of).with_kept(keep_uniform(request_of.num_visual, 5)[None])
    (answer,) = video_views.greedy(model, view, 12, [10**6])
    assert len(answer) == 12
    embeds, positions = view.embeds, view.positions
    for token in answer:
        states = video_views.hidden_states(model.model.language_model, video_views.View(embeds, positions, view.visual))
        assert int(model.lm_head(states[0, -1]).argmax()) == token
        embeds = torch.cat((embeds, model.get_input_embeddings()(torch.tensor([[token]]))), dim=1)
        positions = torch.cat((positions, positions[..., -1:] + 1), dim=-1)
    (stopped,) = video_views.greedy(model, view, 12, [answer[4]])
    assert stopped == answer[: answer.index(answer[4])]


def test_stretching_moves_time_and_nothing_else(request_of):
    view = view_of(request_of)
    far = view.stretched(3)
    time, before = far.positions[0, 0, view.visual], view.positions[0, 0, view.visual]
    assert torch.equal(time - time[0], 3 * (before - before[0])) and int(time[0]) == int(before[0])
    assert torch.equal(far.positions[1:], view.positions[1:])
    assert torch.equal(far.positions[..., view.text_columns], view.positions[..., view.text_columns])


@pytest.mark.parametrize("how", video_views.CHOICES)
def test_choices_have_their_budget_in_order_and_objects_are_preferred_where_asked(how):
    shows_object = torch.rand(4, 1000, generator=torch.Generator().manual_seed(1)) < 0.11
    kept = video_views.choose_visual(how, 0.1, shows_object, torch.Generator().manual_seed(0))
    assert kept.shape == (4, 100) and bool((kept.diff() > 0).all())
    share = float(shows_object.gather(1, kept).float().mean())
    assert 0.45 < share < 0.75 if how == "objects" else share < 0.2


def test_alignment_makes_uv_prune_prefer_objects():
    """States that follow the loss: what UV-Prune then keeps shows objects, of which it kept none at first."""
    torch.manual_seed(0)
    embeds, shown = torch.randn(2, 60, 16), torch.rand(2, 40) < 0.2
    view = video_views.View(embeds, torch.zeros(3, 2, 60, dtype=torch.int64), slice(5, 45))
    asks = torch.arange(15).expand(2, 15) < torch.tensor([[6], [9]])
    states = embeds.clone()
    states[:, 5:45][shown] = -embeds[:, 45:51].mean(1, keepdim=True).expand(2, 40, 16)[shown]
    states.requires_grad_(True)

    def object_share() -> float:
        found = []
        for row in range(2):
            text = slice(45, 45 + int(asks[row].sum()))
            gain = visual_gain(embeds[row, 5:45], states[row, 5:45], embeds[row, text], states[row, text])
            found.append(shown[row][gain.topk(4).indices].float().mean())
        return float(torch.stack(found).mean())

    assert object_share() < 0.2
    optimizer = torch.optim.Adam([states], lr=0.05)
    first = float(video_views.alignment_loss(view, states.detach(), asks, shown))
    for _ in range(60):
        optimizer.zero_grad()
        loss = video_views.alignment_loss(view, states, asks, shown)
        loss.backward()
        optimizer.step()
    assert object_share() == 1 and float(loss.detach()) < 0.5 * first
    assert torch.equal(states[0, 51:].detach(), embeds[0, 51:])  # the answer is told nothing
