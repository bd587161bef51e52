"""Captions taken apart: words are the tokenizer's, each object's words say what is claimed of it, told places hold."""

from scenes.captions.described_objects import described_words, split_words, told_places
from scenes.captions.picture_captions import (
    COLOUR_WORDS,
    MATERIAL_WORDS,
    NOUNS,
    SIZE_WORDS,
    Caption,
    Claims,
    ObjectClaim,
    RelationClaim,
    compose_caption,
)
from scenes.captions.text_tokenizer import build_tokenizer
from scenes.rendering.scene import sample_scene

WAYS = {"colour": COLOUR_WORDS, "material": MATERIAL_WORDS, "size": SIZE_WORDS}
PAIRS = [(scene, compose_caption(scene, scene.seed)) for scene in map(sample_scene, range(600))]


def claims(count: int, *relations: tuple[int, str, int]) -> Claims:
    return Claims((ObjectClaim("cube"),) * count, tuple(RelationClaim(*item) for item in relations))


def test_words_are_the_tokens_without_the_end():
    tokenizer = build_tokenizer()
    for _, caption in PAIRS:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(caption.text).input_ids)
        assert tokens[:-1] == split_words(caption.text)


def test_each_objects_words_say_all_and_only_what_is_claimed_of_it():
    seen = 0
    for _, caption in PAIRS:
        described = described_words(caption)
        if described is None:
            continue
        words = split_words(caption.text)
        assert len(described) == len(caption.claims.objects)
        for positions, claim in zip(described, caption.claims.objects, strict=True):
            spoken = [words[position] for position in positions]
            wanted = [{form for forms in NOUNS[claim.shape] for form in forms}]
            for name, ways in WAYS.items():
                value = getattr(claim, name)
                if value is not None:
                    wanted.append({*ways[value], "stripes"} if value == "striped" else set(ways[value]))
            assert len(spoken) == len(wanted)
            assert all(sum(word in words_for for word in spoken) == 1 for words_for in wanted)
            seen += 1
    assert seen > 600


def test_objects_that_share_a_noun_or_come_again_are_not_told_apart():
    for text, count in (
        ("two red cubes", 2),
        ("a red cube left of a blue cone. the cone is on grass", 2),
        ("three objects", 3),
    ):
        assert described_words(Caption(text, claims(count))) is None


def test_told_places_are_true():
    told = 0
    for scene, caption in PAIRS:
        if len(caption.claims.objects) != len(scene.objects):
            continue
        orders = {"left of": list(scene.objects), "in front of": sorted(scene.objects, key=lambda item: item.depth)}
        for relation, order in orders.items():
            for place, claim in zip(told_places(caption.claims, relation), caption.claims.objects, strict=True):
                if place is not None:
                    assert claim.matches(order[place])
                    told += len(scene.objects) > 1
    assert told > 200


def test_places_follow_through_and_stay_open_where_nothing_is_said():
    assert told_places(claims(1), "left of") == [0]
    assert told_places(claims(2), "left of") == [None, None]
    assert told_places(claims(2, (0, "right of", 1)), "left of") == [1, 0]
    assert told_places(claims(2, (0, "right of", 1)), "in front of") == [None, None]
    assert told_places(claims(3, (0, "left of", 1), (1, "left of", 2)), "left of") == [0, 1, 2]
    assert told_places(claims(3, (0, "left of", 1), (2, "left of", 1)), "left of") == [None, 2, None]
