"""Captions say only what is true, can be read back to what they claim, and consist of known words."""

import json
import re
from dataclasses import asdict

import pytest
from scene_truth import reading_from_scene, scene_from_record

from scenes.captions.picture_caption_parser import CaptionError, parse_caption
from scenes.captions.picture_captions import (
    MAX_CAPTION_TOKENS,
    compose_caption,
    compose_training_caption,
    counts_everyone,
    is_complete,
    vocabulary,
)
from scenes.captions.text_tokenizer import MODEL_MAX_LENGTH, build_tokenizer
from scenes.judge.claim_checks import claims_from_scene, judge_claims
from scenes.rendering.scene import RELATIONS, is_heldout_combination, object_boxes, relation_between, sample_scene

SEEDS = range(1500)


def test_every_claim_holds_in_the_scene():
    for seed in SEEDS:
        scene = sample_scene(seed, "all")
        caption, truth = compose_caption(scene, seed), reading_from_scene(scene)
        assert judge_claims(truth, caption.claims).right, caption.text
        assert judge_claims(truth, claims_from_scene(scene)).right
        assert parse_caption(caption.text) == caption.claims, caption.text


def test_captions_to_learn_from_pass_over_nobody_and_mostly_say_everything():
    complete = 0
    for seed in SEEDS:
        scene = sample_scene(seed, "all")
        caption = compose_training_caption(scene, seed, 0.7)
        assert judge_claims(reading_from_scene(scene), caption.claims).right, caption.text
        assert parse_caption(caption.text) == caption.claims, caption.text
        assert counts_everyone(caption.claims, scene), caption.text
        complete += is_complete(caption.claims, scene)
    assert 0.68 < complete / len(SEEDS) < 0.8
    others = [compose_caption(sample_scene(seed, "all"), seed) for seed in SEEDS]
    assert not all(counts_everyone(other.claims, sample_scene(seed, "all")) for seed, other in enumerate(others))
    scene = sample_scene(4)
    assert all(is_complete(compose_training_caption(scene, seed, 1.0).claims, scene) for seed in range(200))
    assert len({compose_training_caption(scene, seed, 1.0).text for seed in range(50)}) > 30


def test_captions_are_reproducible_and_vary():
    scene = sample_scene(4)
    assert compose_caption(scene, 7) == compose_caption(scene, 7)
    assert len({compose_caption(scene, seed).text for seed in range(50)}) > 30


def test_every_word_is_known_and_no_caption_is_too_long(tmp_path):
    build_tokenizer().save_pretrained(tmp_path)
    tokenizer = type(build_tokenizer()).from_pretrained(tmp_path)
    texts = [compose_caption(sample_scene(seed), seed).text for seed in SEEDS]
    ids = tokenizer(texts)["input_ids"]
    assert all(tokenizer.unk_token_id not in row and row[-1] == tokenizer.eos_token_id for row in ids)
    assert max(map(len, ids)) <= MAX_CAPTION_TOKENS <= MODEL_MAX_LENGTH
    assert len({*vocabulary()}) == len(vocabulary())


@pytest.mark.parametrize("text", ["", "a corgi", "cube red a left"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(CaptionError):
        parse_caption(text)


@pytest.mark.parametrize("compose", [compose_caption, lambda scene, seed: compose_training_caption(scene, seed, 0.2)])
@pytest.mark.parametrize(
    "kind",
    [
        r"\btwo [a-z ]+s (to the |on the )?(left of|right of|in front of|behind) (a|an|one) ",
        r"\bthree (?!objects|shapes|things)[a-z ]+s\b",
        r"^(?!.*\b(a|an|one|two|three|is|are)\b)",
        r"\b(red|green|blue),? (and )?(large|small|shiny|matte) ",
    ],
)
def test_captions_are_also_worded_as_people_write(compose, kind):
    assert any(re.search(kind, compose(sample_scene(seed, "all"), seed).text) for seed in SEEDS)


def test_the_splits_never_meet():
    for seed in range(400):
        assert not is_heldout_combination(sample_scene(seed, "train"))
        assert is_heldout_combination(sample_scene(seed, "heldout"))


def test_scenes_are_data_and_reproducible():
    for seed in range(100):
        scene = sample_scene(seed, "all")
        assert scene == sample_scene(seed, "all")
        assert scene_from_record(json.loads(json.dumps(asdict(scene)))) == scene
        boxes = object_boxes(scene)
        assert (boxes >= 0).all() and (boxes <= 128).all() and (boxes[:, 2:] - boxes[:, :2] > 8).all()


def test_relations_have_their_opposites():
    opposite = dict(zip(RELATIONS, ("right of", "left of", "behind", "in front of"), strict=True))
    for seed in range(300):
        objects = sample_scene(seed, "all").objects
        for a in objects:
            for b in objects:
                if a is not b:
                    there = {opposite[relation] for relation in relation_between(a, b)}
                    assert there == set(relation_between(b, a))
                    gap = ((a.x - b.x) ** 2 + (a.depth - b.depth) ** 2) ** 0.5
                    assert gap > a.footprint + b.footprint
