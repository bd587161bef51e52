"""Measures of a pair: what is taken away is not read, what is planted is found, runs are counted from rejections."""

from __future__ import annotations

import itertools

import pair_measures as pair
import pytest
import torch
from scene_truth import render_video

from scenes.models.architectures import (
    TextModelConfig,
    TowerConfig,
    VideoLLMConfig,
    build_model,
)
from scenes.models.processor import build_processor
from scenes.rendering.story import sample_story
from scenes.training.video_views import View, hidden_states, without_visual_after
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.video.methods.base import VideoMethod
from vargen.video.models.frames import CAPTION_PROMPTS, VideoFrames, processor_inputs
from vargen.video.models.pruning import token_budget
from vargen.video.models.request import prepare_request
from vargen.video.models.target import VideoTarget

STORY = sample_story(1, 8, "heldout")
CONFIG = VideoLLMConfig(
    image_size=64,
    num_frames=8,
    text=TextModelConfig(32, 64, 6, 4, 2),
    vision=TowerConfig(32, 64, 1, 2),
)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = build_model(CONFIG, build_processor(CONFIG.image_size, CONFIG.patch_size).tokenizer).eval()
    for weight in model.parameters():
        weight.data.mul_(2 if weight.ndim == 2 else 1)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def question(model):
    frames = VideoFrames.from_frames(render_video(STORY, 64))
    return prepare_request(
        model, processor_inputs(build_processor(CONFIG.image_size, CONFIG.patch_size), frames, CAPTION_PROMPTS[0])
    )


def test_without_its_video_after_a_layer_a_target_says_what_training_without_it_says(model, question) -> None:
    places = question.is_visual.nonzero()[:, 0]
    view = View(question.inputs_embeds, question.position_ids, slice(int(places[0]), int(places[-1]) + 1))
    firsts = []
    for layer in (1, 4):
        target = pair.EarlyTarget(model, question, layer, max_new_tokens=8)
        with without_visual_after(model.model.language_model, layer, view):
            expected = model.lm_head(hidden_states(model.model.language_model, view)[:, -1:])
        logits = target.prefill().logits
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        firsts.append(logits)
        tokens = pair.answer_tokens(pair.EarlyTarget(model, question, layer, max_new_tokens=8), 8, [])
        assert len(tokens) == 8 and tokens[0] == int(logits.argmax())
    assert not torch.allclose(*firsts, atol=1e-3)
    with pytest.raises(ValueError, match="layer"):
        pair.EarlyTarget(model, question, 6)


def test_a_model_agrees_with_its_own_answer_and_not_with_another(model, question) -> None:
    room = {"max_new_tokens": 20, "max_draft_nodes": 20}
    tokens = pair.answer_tokens(VideoTarget(model, question, **room), 12, [])
    assert pair.agreements(VideoTarget(model, question, **room), tokens) == [True] * 12
    changed = [*tokens[:5], (tokens[5] + 1) % CONFIG.text.hidden_size, *tokens[6:]]
    matches = pair.agreements(VideoTarget(model, question, **room), changed)
    assert matches[:6] == [True] * 5 + [False]
    whole = pair.drafter_of(model, question, torch.arange(question.num_visual), 20)
    assert pair.agreements(whole, tokens) == [True] * 12


def test_what_is_drafted_is_held_against_the_answer(model, question) -> None:
    """A drafter that is the target and sees all is always right; one that says one word is right where that stands."""
    options = {
        "max_new_tokens": 12,
        "sampling": SamplingConfig(temperature=0.0),
        "streams": RandomStreams.from_seeds([0]),
        "stop_token": None,
    }

    def agreed(drafter) -> list[list[bool]]:
        target = VideoTarget(model, question, max_new_tokens=20)
        return pair.drafted_agreements(VideoMethod(drafter, target=target), **options)

    size = FixedDraftSize(DraftSize(4, 3))
    right = agreed(DraftModelDrafter(VideoTarget(model, question, max_new_tokens=20), size, "top"))
    assert [len(step) for step in right] == [3, 3, 3] and all(all(step) for step in right)
    answer = pair.answer_tokens(VideoTarget(model, question, max_new_tokens=20), 12, [])
    drafter = DraftModelDrafter(VideoTarget(model, question, max_new_tokens=20), size, "top")
    propose = drafter.propose

    def one_word(state):
        draft = propose(state)
        draft.tree.tokens[:, 1:] = answer[6]
        return draft

    drafter.propose = one_word
    places = [1]  # of the first word after the prompt's, by step
    for step in agreed(drafter):
        assert step == [word == answer[6] for word in answer[places[-1] : places[-1] + 3]]
        accepted = next((number for number, same in enumerate(step) if not same), len(step))
        places.append(places[-1] + accepted + 1)


def test_runs_are_what_lies_between_rejections() -> None:
    """Against a slow account: windows of any length, drafted anew behind each wrong guess."""
    for matches in itertools.product((True, False), repeat=7):
        expected, run = [], 0
        for match in matches:
            if match:
                run += 1
            else:
                expected.append(run)
                run = 0
        if matches[-1]:
            expected.append(run)
        assert pair.run_lengths(matches) == expected
    assert pair.run_lengths([True] * 4) == [4]


def test_pruning_finds_planted_objects(model, question) -> None:
    """Hidden states in which what shows an object turns to the text: UV-Prune then keeps objects and nothing else."""
    shown = pair.shows_object(STORY, CONFIG.grid_size)
    touched = pair.touches_object(STORY, CONFIG.grid_size)
    assert bool(touched[shown].all()) and int(shown.sum()) < int(touched.sum()) < len(touched)
    budget = token_budget(len(shown), 0.1)
    assert len(shown) == question.num_visual and budget < int(shown.sum()) < len(shown) / 2
    target = VideoTarget(model, question, capture_layers=(0, 2), capture_attention=True, max_new_tokens=4)
    target.prefill()
    ways = pair.pruning_scores(target, 2, seed=0)
    assert tuple(ways) == pair.PRUNINGS
    for choose in ways.values():
        kept = choose(budget)
        assert len(kept) == budget and bool((kept.diff() > 0).all())
    after = target.prompts[0].captured[2]
    text = after[question.question_places].mean(0)
    visual = question.is_visual.nonzero()[:, 0]
    after[visual[shown]] = text
    after[visual[~shown]] = -text
    assert bool(shown[pair.pruning_scores(target, 2, seed=0)["visual_gain"](budget)].all())
